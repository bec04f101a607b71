"""Descriptions of released checkpoints, and folders that have one or none."""

from __future__ import annotations

from pathlib import Path

import huggingface_hub
import pytest
import yaml

from stentor import CheckpointError
from stentor.models.calm_config import FLOWS
from stentor.models.pocket_tts import FOLDERS, released
from stentor.models.pocket_tts.checkpoint import Files
from stentor.models.pocket_tts.config import parse
from tests.fixtures.pocket_tts import tiny_pocket_tts as tiny


@pytest.mark.parametrize("name", released.NAMES)
def test_every_released_description_is_read(name: str):
    c = parse(released.description(name), name)
    assert c.head.flow in FLOWS
    assert c.backbone.head_dim == 64
    assert c.backbone.layers == (24 if name.endswith("24l") else 8 if c.projects_condition else 6)
    assert c.voice == (512 if name == "english_2026-01" else 32)


def test_a_description_does_not_change_the_others():
    before = released.description("english")
    released.description("english_2m_2026-10")["mimi"]["seanet"]["ratios"].append(7)
    assert released.description("english") == before


def test_what_a_bare_repository_means_is_released():
    assert {folder.removeprefix("languages/") for folder in FOLDERS.values()} <= set(released.NAMES)


@pytest.mark.parametrize(
    ("name", "language"), [("french_24l", "french"), ("english_7m_2026-10", "english")]
)
def test_a_folder_of_a_released_name_needs_no_description(name: str, language: str, tmp_path: Path):
    files = Files(tmp_path / name)
    assert files.language == language
    assert files.config == parse(released.description(name), name)


def test_a_download_takes_tokenizer_and_voices_from_the_open_repository(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    asked: list[tuple[str, list[str]]] = []

    def download(repository: str, allow_patterns: list[str]) -> str:
        asked.append((repository, allow_patterns))
        return str(tmp_path / "open")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    folder = (
        tmp_path
        / "models--kyutai--pocket-tts"
        / "snapshots"
        / "0"
        / "languages"
        / "english_2026-10"
    )
    folder.mkdir(parents=True)
    files = Files(folder)
    assert files.clones
    assert files.tokenizer == tmp_path / "open" / "languages" / "english_2026-09" / "tokenizer.json"
    assert files.voices == tmp_path / "open" / "languages" / "english_2026-10" / "embeddings"
    assert [repository for repository, _ in asked] == [released.OPEN_REPOSITORY] * 2
    local = tmp_path / "english"
    local.mkdir()
    # nothing is downloaded for a folder of one's own
    assert Files(local).voices == local / "embeddings"
    assert len(asked) == 2


def test_without_the_weights_that_clone_the_others_are_read_and_do_not(tmp_path: Path):
    folder = tiny.write(tmp_path / "lsd", "lsd")
    data = yaml.safe_load((folder / "config.yaml").read_text())
    (folder / "config.yaml").unlink()
    data |= {
        "weights_path": "hf://kyutai/pocket-tts/languages/english/gated.safetensors@0",
        "weights_path_without_voice_cloning": "model.safetensors",
    }
    (folder / "config.yaml").write_text(yaml.safe_dump(data))
    files = Files(folder)
    assert not files.clones
    assert files.weights == folder / "model.safetensors"
    (folder / "gated.safetensors").symlink_to(folder / "model.safetensors")
    assert files.clones
    assert files.weights == folder / "gated.safetensors"


def test_a_folder_with_two_descriptions_is_refused(tmp_path: Path):
    folder = tiny.write(tmp_path / "lsd", "lsd")
    (folder / "other.yaml").symlink_to(folder / "config.yaml")
    with pytest.raises(CheckpointError, match=r"several models: config\.yaml, other\.yaml"):
        Files(folder)

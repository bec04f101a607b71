"""From a name to a family: directories, Hub ids, dummies."""

import errno
import json
from pathlib import Path

import httpx
import huggingface_hub
import numpy as np
import pytest
import torch
from huggingface_hub import errors
from huggingface_hub.errors import LocalEntryNotFoundError
from safetensors.torch import save_file

from stentor import TTS, InvalidRequest, ModelNotFound
from stentor.cli import main
from stentor.models import families, hub, model_names


def test_every_family_folder_names_its_architectures_and_dummies():
    found = [f for f in families.families() if f.package.startswith("stentor.models.")]
    assert len(found) >= 4
    assert families.clashes() == []
    assert all(
        (f.architectures or f.files or f.tensors) and f.dummies and not f.problem for f in found
    )


def test_config_json_chooses_the_family(tmp_path: Path):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "toy", "seed": 3}))
    with TTS(tmp_path, memory_gb=0.002) as tts:
        assert tts.spec.family == "toy"


@pytest.mark.parametrize("config", [None, "{}", '{"model_type": "other"}'])
def test_a_file_of_its_own_chooses_the_family_whatever_config_json_says(
    tmp_path: Path, config: str | None
):
    (tmp_path / "toy.json").write_text('{"seed": 3}')
    if config is not None:
        (tmp_path / "config.json").write_text(config)
    with TTS(tmp_path, memory_gb=0.002) as tts:
        assert tts.spec.family == "toy"
        found = tts.generate("Hello.", seed=1, max_frames=3).frames
    other = tmp_path / "other"
    other.mkdir()
    (other / "config.json").write_text('{"model_type": "toy", "seed": 3}')
    with TTS(other, memory_gb=0.002) as tts:
        np.testing.assert_array_equal(tts.generate("Hello.", seed=1, max_frames=3).frames, found)


def test_a_directory_without_any_familys_file_holds_no_model(tmp_path: Path):
    (tmp_path / "toy.json").mkdir()
    with pytest.raises(ModelNotFound, match=r"holds no model: it has no config\.json"):
        TTS(tmp_path)


@pytest.mark.parametrize("name", ["/" + "x" * 300, "x" * 300, "x" * 300 + "/y"])
def test_a_name_too_long_for_a_file_is_no_model(name: str):
    with pytest.raises(ModelNotFound, match=r"model '/?x*(/y)?': no"):
        TTS(name)


def test_a_hub_id_is_downloaded(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    (tmp_path / "config.json").write_text('{"model_type": "toy"}')
    asked: list[str] = []
    ignored: list[str] = []

    def download(
        name: str, allow_patterns: list[str] | None, ignore_patterns: list[str] | None = None
    ) -> str:
        if ignore_patterns is None:  # what says which shards are read
            assert allow_patterns == ["config.json", "model.safetensors.index.json"]
            return str(tmp_path)
        assert allow_patterns is None
        asked.append(name)
        ignored.extend(ignore_patterns)
        return str(tmp_path)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    with TTS("owner/name", memory_gb=0.002) as tts:
        assert tts.spec.family == "toy"
    assert asked == ["owner/name"]
    assert {"*.md", "toy.unused"} <= set(ignored)


@pytest.mark.parametrize(
    ("name", "folder"),
    [
        ("kyutai/pocket-tts", "languages/english"),
        ("kyutai/pocket-tts/languages/french_24l", "languages/french_24l"),
    ],
)
def test_of_a_repository_with_several_checkpoints_one_folder_is_downloaded(
    name: str, folder: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    asked: list[tuple[str, list[str] | None]] = []

    def download(name: str, allow_patterns: list[str] | None, **_: object) -> str:
        asked.append((name, allow_patterns))
        return str(tmp_path)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    assert hub.directory(name) == tmp_path / folder
    assert asked == [("kyutai/pocket-tts", [f"{folder}/*"])]


@pytest.mark.parametrize(
    "name", ["owner/name/folder", "kyutai/pocket-tts/../other", "kyutai/pocket-tts//english"]
)
def test_a_folder_is_named_only_in_a_repository_with_several_checkpoints(name: str):
    with pytest.raises(ModelNotFound, match="not a Hub id"):
        model_names.check(name)


def test_a_tensor_of_its_own_chooses_the_family_where_there_is_no_config_json(tmp_path: Path):
    save_file({"flow_lm.bos_emb": torch.zeros(1)}, tmp_path / "model.safetensors")
    family = model_names.family_of_files(tmp_path)
    assert family is not None
    assert family.name == "pocket_tts"
    (tmp_path / "config.json").write_text('{"model_type": "toy"}')
    assert model_names.family_of_files(tmp_path) is None


@pytest.mark.parametrize(
    "content",
    [b"", b"\xff" * 16, (1 << 40).to_bytes(8, "little"), (2).to_bytes(8, "little") + b"[]"],
)
def test_a_file_that_is_no_safetensors_chooses_no_family(content: bytes, tmp_path: Path):
    (tmp_path / "model.safetensors").write_bytes(content)
    assert model_names.family_of_files(tmp_path) is None


def http_error(kind: type[errors.HfHubHTTPError], status: int) -> errors.HfHubHTTPError:
    response = httpx.Response(status, request=httpx.Request("GET", "https://huggingface.co"))
    return kind("forty words of another library", response=response)


HUB_ERRORS = [
    (LocalEntryNotFoundError("no network"), 1, "the Hub cannot be reached: check the network"),
    (errors.OfflineModeIsEnabled("offline"), 1, "the Hub cannot be reached: check the network"),
    (http_error(errors.HfHubHTTPError, 503), 1, "the Hub answers 503: try again later"),
    (OSError(errno.ENOSPC, "No space left"), 1, "the disk is full: HF_HOME names another folder"),
    (OSError("first line\nsecond"), 1, "the download failed: first line"),
    (
        http_error(errors.RepositoryNotFoundError, 404),
        2,
        "the Hub has no such model, or it is private",
    ),
    (
        http_error(errors.GatedRepoError, 403),
        2,
        "accept its terms at https://huggingface.co/owner/name",
    ),
]


@pytest.mark.parametrize("command", [["say", "Hello.", "-o", "none.wav", "--model"], ["serve"]])
@pytest.mark.parametrize(("error", "code", "expected"), HUB_ERRORS)
def test_what_the_hub_refuses_is_one_sentence_and_one_exit_code(
    command: list[str],
    error: Exception,
    code: int,
    expected: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
):
    """The server fails before it listens."""

    def refuse(name: str, **_: object) -> str:
        raise error

    monkeypatch.setattr(huggingface_hub, "snapshot_download", refuse)
    assert main([*command, "owner/name"]) == code
    printed = capsys.readouterr().err
    assert "model 'owner/name': " in printed
    assert expected in printed
    assert printed.count("\n") == 1
    assert "forty words" not in printed


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("voxcpm2", "openbmb/VoxCPM2"),
        ("VoxCPM", "openbmb/VoxCPM2"),
        ("fish-s2", "fishaudio/s2-pro"),
        ("qwen3_tts", "Qwen/Qwen3-TTS-12Hz-0.6B-CustomVoice"),
        ("cosyvoice", "FunAudioLLM/Fun-CosyVoice3-0.5B-2512"),
    ],
)
def test_a_short_name_is_answered_with_the_hub_id_that_is_meant(name: str, meant: str):
    with pytest.raises(ModelNotFound, match=f"Did you mean {meant}"):
        model_names.check(name)


@pytest.mark.parametrize("name", ["nothing-like-it", "", "x"])
def test_a_name_that_is_near_to_none_suggests_none(name: str):
    assert model_names.did_you_mean(name) == ""


def test_load_options_that_nobody_takes_are_named(tmp_path: Path):
    (tmp_path / "config.json").write_text('{"model_type": "toy"}')
    with pytest.raises(
        InvalidRequest, match=r"lora: .*no load option of this model, which takes none"
    ):
        TTS(tmp_path, lora="x")

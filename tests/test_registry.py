"""From a name to a family: directories, Hub ids, dummies."""

import json
from pathlib import Path

import huggingface_hub
import numpy as np
import pytest
from huggingface_hub.errors import LocalEntryNotFoundError

from stentor import TTS, CheckpointError, InvalidRequest, ModelNotFound, model_names


def test_every_family_folder_names_its_architectures_and_dummies():
    found = model_names.families()
    assert len(found) >= 4
    architectures = [a for f in found for a in f.ARCHITECTURES]
    dummies = [d for f in found for d in f.DUMMIES]
    assert len(architectures) == len(set(architectures))
    assert len(dummies) == len(set(dummies))
    assert all((f.ARCHITECTURES or f.FILES) and f.DUMMIES for f in found)


def test_config_json_chooses_the_family(tmp_path: Path):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "toy", "seed": 3}))
    with TTS(tmp_path, memory_gb=0.002) as tts:
        assert tts.spec.family == "toy"


@pytest.mark.parametrize("config", [None, "{}", '{"model_type": "other"}'])
def test_a_file_of_its_own_chooses_the_family_whatever_config_json_says(tmp_path: Path, config: str | None):
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

    def download(name: str, ignore_patterns: list[str]) -> str:
        asked.append(name)
        ignored.extend(ignore_patterns)
        return str(tmp_path)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    with TTS("owner/name", memory_gb=0.002) as tts:
        assert tts.spec.family == "toy"
    assert asked == ["owner/name"]
    assert {"*.md", "toy.unused"} <= set(ignored)


def test_a_hub_id_that_cannot_be_had_says_so(monkeypatch: pytest.MonkeyPatch):
    def offline(name: str, **_: object) -> str:
        raise LocalEntryNotFoundError("no network")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", offline)
    with pytest.raises(CheckpointError, match="not a local directory, and the Hub download failed: no network"):
        TTS("owner/name")


def test_load_options_that_nobody_takes_are_named(tmp_path: Path):
    (tmp_path / "config.json").write_text('{"model_type": "toy"}')
    with pytest.raises(InvalidRequest, match=r"lora: .*no load option of this model, which takes none"):
        TTS(tmp_path, lora="x")

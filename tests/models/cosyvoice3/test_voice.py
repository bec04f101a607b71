"""Voice files hold all that a prompt needs, and say what is wrong with them."""

from __future__ import annotations

import os

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file

from stentor.errors import CheckpointError
from stentor.models.cosyvoice3.voice import FOLDER, StoredVoice, load_voice, load_voices

RNG = np.random.default_rng(0)
VOICE = StoredVoice(
    RNG.integers(0, 50, 7), RNG.random((14, 80), np.float32), RNG.random(192, np.float32), "hello"
)


@pytest.mark.parametrize("text", ["hello", None])
def test_a_file_gives_the_voice_back(tmp_path, text):
    StoredVoice(VOICE.codes, VOICE.mel, VOICE.speaker, text).save(tmp_path / "v.safetensors")
    found = load_voice(tmp_path / "v.safetensors", 50)
    assert found.text == text
    assert found.codes.dtype == np.int64
    for name in ("codes", "mel", "speaker"):
        assert np.array_equal(getattr(found, name), getattr(VOICE, name))


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("codes", None, "codes is missing"),
        ("codes", np.full(7, 50, np.int32), "from 0 to 49"),
        ("codes", np.full(7, -1, np.int32), "from 0 to 49"),
        ("mel", np.zeros((13, 80), np.float32), "mel has shape"),
        ("mel", np.full((14, 80), np.nan, np.float32), "mel holds"),
        ("speaker", np.zeros(191, np.float32), "speaker has shape"),
        ("speaker", np.zeros(192, np.int8), "speaker has shape .* of I8"),
        ("codes", np.zeros(7, np.float32), "codes has shape .* of F32"),
        ("codes", np.array(1, np.int32), "codes has shape"),
        ("codes", np.zeros(100_000, np.int32), "codes must be at most"),
    ],
)
def test_a_file_that_is_wrong_says_why(tmp_path, name, value, message):
    file = tmp_path / "v.safetensors"
    VOICE.save(file)
    arrays = load_file(file)
    del arrays[name]
    save_file(arrays if value is None else {**arrays, name: value}, file)
    with pytest.raises(CheckpointError, match=message):
        load_voice(file, 50)


def test_a_corrupt_file_is_named(tmp_path):
    (tmp_path / "v.safetensors").write_bytes(b"no")
    with pytest.raises(CheckpointError, match="truncated or corrupt"):
        load_voice(tmp_path / "v.safetensors", 50)


def test_a_directorys_speakers_and_files_are_its_voices(tmp_path):
    torch.save({"Anna": {"embedding": torch.ones(1, 192)}}, tmp_path / "spk2info.pt")
    (tmp_path / FOLDER).mkdir()
    VOICE.save(tmp_path / FOLDER / "Me.v2.safetensors")
    found = load_voices(tmp_path, 50)
    assert list(found) == ["anna", "me.v2"]
    assert len(found["anna"].codes) == 0
    assert found["anna"].speaker.tolist() == [1.0] * 192


def test_a_voice_file_that_is_no_file_is_not_opened(tmp_path):
    os.mkfifo(tmp_path / "v.safetensors")
    with pytest.raises(CheckpointError, match="is not a regular file"):
        load_voice(tmp_path / "v.safetensors", 50)


@pytest.mark.parametrize(
    "speakers",
    [
        {7: {"embedding": torch.ones(3)}},
        {"a": {"embedding": torch.empty(192, device="meta")}},
        {"a": {"embedding": torch.ones(192).to_sparse()}},
        {"a": {"embedding": torch.ones(1).expand(192)}},
        {"a": 1},
    ],
)
def test_a_speaker_of_no_plain_numbers_is_refused(tmp_path, speakers):
    torch.save(speakers, tmp_path / "spk2info.pt")
    with pytest.raises(CheckpointError, match="has no embedding of 192"):
        load_voices(tmp_path, 50)


def test_a_speaker_without_an_embedding_is_named(tmp_path):
    torch.save({"Anna": {"embedding": torch.ones(3)}}, tmp_path / "spk2info.pt")
    with pytest.raises(CheckpointError, match="'Anna' has no embedding of 192"):
        load_voices(tmp_path, 50)

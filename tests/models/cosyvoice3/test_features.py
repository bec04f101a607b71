"""Features of reference audio are the official ones, and the encoders' models are optional."""

from __future__ import annotations

import pytest
import soundfile
import torch
from torch import Tensor

from stentor.audio import Reference
from stentor.errors import CheckpointError, InvalidRequest
from stentor.layers.fbank import speaker_fbank
from stentor.models.cosyvoice3.reference_encoder import (
    SPEAKER_MODEL,
    TOKENIZER,
    VoiceEncoder,
    prompt_mel,
    slaney,
    store_voice,
    tokenizer_mel,
)
from stentor.models.cosyvoice3.voice import load_voices
from tests.fixtures.cosyvoice3 import tiny_cosyvoice3 as tiny

E = {name: torch.from_numpy(value) for name, value in tiny.expected().items() if value.ndim}
WAV = E["mel_in"]


def error(got: Tensor, want: Tensor) -> float:
    assert got.shape == want.shape
    return float((got - want).abs().max() / want.abs().max())


def official(name: str) -> Tensor:
    """A run of the reference script leaves out what it has no package for."""
    if name not in E:
        pytest.skip(f"{name} is not in {tiny.FIXTURE}")
    return E[name]


def test_the_flows_prompt_reaches_to_12_khz():
    assert error(prompt_mel(WAV).T, E["mel_24k"]) < 1e-5
    assert slaney(24000, 1920, 80)[900:].any()


def test_the_speakers_filter_bank_is_the_official_one():
    assert error(speaker_fbank(WAV[:16000]), official("fbank")) < 1e-4


def test_the_tokenizers_mel_is_the_official_one():
    assert error(tokenizer_mel(WAV[:16000]), official("whisper_mel")) < 1e-4


class FakeSession:
    """A model that gives one code per four frames, or a speaker."""

    def __init__(self, inputs: int, value: Tensor) -> None:
        self.inputs, self.value = inputs, value
        self.given: dict[str, object] = {}

    def get_inputs(self):
        return [type("Input", (), {"name": f"in{i}"})() for i in range(self.inputs)]

    def run(self, outputs, given):
        self.given = given
        return [self.value.numpy()]


def test_codes_and_mel_are_cut_to_one_length():
    encoder = VoiceEncoder(None)
    encoder._sessions = {
        TOKENIZER: FakeSession(2, torch.arange(30)[None]),
        SPEAKER_MODEL: FakeSession(1, torch.ones(1, 192)),
    }
    found = encoder(WAV)  # one second: 50 frames, 25 codes
    assert found["codes"].tolist() == list(range(25))
    assert found["mel"].shape == (50, 80)
    assert found["speaker"].shape == (192,)
    features, length = encoder._sessions[TOKENIZER].given.values()
    assert features.shape == (1, 128, 100)
    assert length.tolist() == [100]


def test_a_stored_voice_is_loaded_as_it_was_encoded(tmp_path, monkeypatch):
    soundfile.write(tmp_path / "me.wav", WAV.numpy(), 24000, subtype="FLOAT")
    sessions = {
        TOKENIZER: FakeSession(2, torch.arange(30)[None]),
        SPEAKER_MODEL: FakeSession(1, torch.ones(1, 192)),
    }
    monkeypatch.setattr(VoiceEncoder, "_open", lambda self, name: sessions[name])
    store_voice(tmp_path, "me", Reference(str(tmp_path / "me.wav"), "what I say"))
    found = load_voices(tmp_path, 6561)["me"]
    assert found.text == "what I say"
    assert found.codes.tolist() == list(range(25))
    assert found.mel.shape == (50, 80)


@pytest.mark.parametrize("folder", [None, "empty"])
def test_without_the_models_a_reference_is_refused(tmp_path, folder):
    with pytest.raises(InvalidRequest, match="reference: cannot be encoded"):
        VoiceEncoder(folder and tmp_path)(WAV)


@pytest.mark.parametrize("names", [(TOKENIZER, SPEAKER_MODEL), (TOKENIZER,), ()])
def test_references_are_taken_where_both_models_are_there(tmp_path, names):
    for name in names:
        (tmp_path / name).write_bytes(b"")
    assert VoiceEncoder(tmp_path).available is (len(names) == 2)


def test_a_corrupt_model_is_a_checkpoint_error(tmp_path):
    (tmp_path / TOKENIZER).write_bytes(b"nothing")
    with pytest.raises(CheckpointError, match="corrupt"):
        VoiceEncoder(tmp_path)(WAV)

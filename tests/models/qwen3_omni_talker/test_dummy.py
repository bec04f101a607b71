"""A model of the released kind without files, with few and narrow layers."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from stentor import TTS, InvalidRequest
from stentor.models.qwen3_omni_talker import dummy
from stentor.models.qwen3_omni_talker.config import Config

NAME = "dummy:qwen3-omni-talker"
HOW = {"voice": "chelsie", "ignore_eos": True, "max_frames": 4, "seed": 3}


def narrow() -> Config:
    """All ids, experts and codes of the released model."""
    c = dummy.config()
    small = {"hidden": 64, "ffn": 64, "layers": 1}
    stack = replace(c.decoder.stack, **small, heads=4, kv_heads=4, head_dim=16)
    return replace(
        c,
        talker=replace(c.talker, stack=replace(c.talker.stack, **small, head_dim=16)),
        predictor=replace(c.predictor, stack=replace(c.predictor.stack, **small, head_dim=16)),
        decoder=replace(c.decoder, stack=stack, latent=64, width=64),
        text_hidden=16,
        text_inner=16,
    )


@pytest.fixture(autouse=True)
def _narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    released = narrow()
    monkeypatch.setattr(dummy, "config", lambda: released)


@pytest.mark.parametrize("quantization", ["auto", "int8", "fp8"])
def test_a_dummy_speaks_without_files_and_the_same_every_time(quantization: str) -> None:
    spoken = []
    for _ in range(2):
        with TTS(NAME, device="cpu", max_num_seqs=2, threads=1, quantization=quantization) as tts:
            assert tts.spec.voices == ("chelsie", "ethan", "aiden")
            spoken.append(tts.generate("Hello there, one two three.", **HOW))
    assert spoken[0].frames.tolist() == spoken[1].frames.tolist()
    assert spoken[0].frames.shape == (4, 16)
    assert spoken[0].frames.max() < 2048
    samples = spoken[0].samples
    assert len(samples) == 4 * 1920 - 555
    assert np.isfinite(samples).all()
    assert np.abs(samples).max() > 0


def test_what_it_does_not_take_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="codec_dtype"):
        TTS(NAME, device="cpu", codec_dtype="float32")

"""A model of the released kind without files, with few and narrow layers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from stentor import TTS, InvalidRequest
from tests.helpers.released import shrink

NAME = "dummy:qwen3-omni-talker"
HOW = {"voice": "chelsie", "ignore_eos": True, "max_frames": 4, "seed": 3}


def narrow(files: dict[str, Any]) -> None:
    """Keep all ids, experts and codes of the released model."""
    config = files["config.json"]
    talker, small = (
        config["talker_config"],
        {"hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 1},
    )
    talker["text_config"] |= {**small, "head_dim": 16, "intermediate_size": 16}
    talker["code_predictor_config"] |= {**small, "head_dim": 16}
    config["code2wav_config"] |= {
        **small,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "decoder_dim": 64,
    }
    talker["thinker_hidden_size"] = config["thinker_config"]["text_config"]["hidden_size"] = 16


@pytest.fixture(autouse=True)
def _narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    shrink(monkeypatch, narrow)


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

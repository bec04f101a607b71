"""The codec gives the official audio for whole utterances, whatever shares a call with them."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from stentor import registry
from stentor.layers.types import CodecCall
from stentor.models.cosyvoice3.codec import HOP, CosyVoice3Codec
from stentor.models.cosyvoice3.codec_vocoder import DELAY
from tests.fixtures.cosyvoice3 import tiny_cosyvoice3 as tiny

E = {name: torch.from_numpy(value) for name, value in tiny.expected().items() if value.ndim}
CHAIN = 1e-2  # of the peak: the phase of the source grows with rounding of the mel
CODES, P = E["flow_token"], tiny.PROMPT


def error(got: Tensor, want: Tensor) -> float:
    assert got.shape == want.shape
    return float((got - want).abs().max() / want.abs().max())


@pytest.fixture(scope="module")
def codec(tmp_path_factory) -> CosyVoice3Codec:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("stentor.models.cosyvoice3.codec_noise.source_noise", tiny.source_noise)
        path = tiny.write(tmp_path_factory.mktemp("cosyvoice3"))
        return registry.load(path, torch.device("cpu"), None, {}).codec


def whole(codec: CosyVoice3Codec, rows: list[tuple[Tensor, int]]) -> list[Tensor]:
    """Utterances of other lengths and prompts, in one call."""
    state = {n: c.rows(len(rows)) for n, c in codec.columns.items()}
    state["speaker"][:] = E["spk"]
    for i, (_, prompt) in enumerate(rows):
        state["prompt_codes"][i, :prompt] = E["prompt_speech"][:prompt]
        state["prompt_mel"][i, : 2 * prompt] = E["flow_feat"][: 2 * prompt]
        state["prompt_count"][i] = prompt
    size = max(len(codes) + prompt for codes, prompt in rows) + 4
    frames = torch.stack(
        [F.pad(codes, (prompt, size - prompt - len(codes)), value=3) for codes, prompt in rows]
    )
    ends = torch.tensor([len(codes) for codes, _ in rows])
    start = torch.zeros_like(ends)
    samples, _ = codec.decode(frames[..., None], state, CodecCall(start, ends, ends, size))
    return [
        row[DELAY : DELAY + HOP * len(codes)] for row, (codes, _) in zip(samples, rows, strict=True)
    ]


def test_a_whole_utterance_is_the_official_one(codec: CosyVoice3Codec):
    found = whole(codec, [(CODES, P)])[0]
    tail = E["official_whole_tail"]
    assert error(found[-len(tail) :], tail) < CHAIN


def test_it_is_the_vocoder_of_the_official_mel(codec: CosyVoice3Codec):
    of_mel = tiny.audio_of(codec.vocoder, E["mel_full"].T)
    assert error(whole(codec, [(CODES, P)])[0], of_mel) < CHAIN


def test_utterances_of_other_lengths_and_prompts_do_not_disturb_each_other(codec: CosyVoice3Codec):
    rows = [(CODES, P), (CODES[:31], 7), (CODES[40:52], 0)]
    together = whole(codec, rows)
    for row, found in zip(rows, together, strict=True):
        assert error(found, whole(codec, [row])[0]) < CHAIN


def test_the_official_speed_is_an_interpolated_mel(codec: CosyVoice3Codec):
    mel = E["mel_full"][None]
    fast = F.interpolate(mel, size=int(mel.shape[2] / 1.3), mode="linear").transpose(1, 2)
    found = tiny.audio_of(codec.vocoder, fast[0])
    assert len(found) == int(tiny.expected()["official_speed_samples"])
    assert error(found[: len(E["official_speed_1.3"])], E["official_speed_1.3"]) < CHAIN

"""A codec call that nobody hears makes the state that all frames make, without their audio."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from stentor.layers.configs import StackConfig
from stentor.layers.conv import CausalConv1d, CausalConvTranspose1d, context_steps
from stentor.layers.frame_decoder import FrameCodec
from stentor.layers.types import NO_END, CodecCall, State
from stentor.models.dummy import initialize_dummy_weights
from stentor.models.qwen3_tts.codec import Decoder
from stentor.models.qwen3_tts.config import read_codec
from stentor.models.weights import on_meta
from tests.helpers.released import released

NONE = torch.zeros(1, dtype=torch.int64)
SILENT = CodecCall(NONE, NONE, torch.full((1,), NO_END), 0, silent=True)


@pytest.fixture
def codec() -> FrameCodec:
    source = released("qwen3_tts", "qwen3-tts-1.7b-base")
    stack = StackConfig(hidden=32, ffn=48, layers=2, heads=2, kv_heads=2, head_dim=16, eps=1e-5)
    small = {"width": 32, "latent": 32, "codebook_dim": 32, "codebook_size": 64, "codebooks": 3}
    c = replace(
        read_codec(source).decoder, stack=stack, window=5, rates=(3, 8), ratios=(2, 2), **small
    )
    decoder = on_meta(lambda: Decoder(c), torch.float64)
    initialize_dummy_weights(decoder, torch.device("cpu"), 0, constants=source.constants)
    decoder.process_weights_after_loading()
    return FrameCodec(decoder)


def fresh(codec: FrameCodec) -> State:
    return {name: column.rows(1) for name, column in codec.columns.items()}


@torch.inference_mode()
def test_the_state_after_a_silent_call_is_that_of_one_that_is_heard(codec: FrameCodec) -> None:
    count = codec.context + 9
    frames = torch.randint(64, (1, count, 3), generator=torch.Generator().manual_seed(0))
    heard, want = codec.decode(frames, fresh(codec))
    few, state = codec.decode(frames, fresh(codec), SILENT)
    assert few.shape[1] * count == heard.shape[1] * codec.context < heard.shape[1] * count
    for name, value in want.items():
        torch.testing.assert_close(state[name], value, msg=name)
    codec.context = 3  # too few, so that the test would see it
    _, other = codec.decode(frames, fresh(codec), SILENT)
    assert any(not torch.allclose(other[name], value) for name, value in want.items())


def test_the_state_of_convolutions_depends_on_few_of_their_inputs() -> None:
    up = CausalConvTranspose1d(1, 1, 4)
    assert context_steps(CausalConv1d(1, 1, 7, dilation=3)) == 18
    assert context_steps(up) == 1
    assert context_steps(up, CausalConv1d(1, 1, 7)) == 1 + 2  # 6 of its outputs
    assert context_steps(CausalConv1d(1, 1, 3), up, CausalConv1d(1, 1, 7)) == 2 + 1 + 2

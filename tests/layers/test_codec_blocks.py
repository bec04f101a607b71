"""Blocks of convolutional codecs give the same output whole and in chunks."""

import torch

from stentor.layers.codec_blocks import Snake, Upsample
from stentor.layers.conv import StreamingState, cast_codec, state_columns


def test_up_sampling_in_chunks_equals_the_whole():
    block = Upsample(4, 3).double()
    columns = state_columns(block)
    for p in block.parameters():
        p.data = torch.randn(
            p.shape, generator=torch.Generator().manual_seed(p.numel()), dtype=torch.float64
        )
    x = torch.randn(2, 4, 9, dtype=torch.float64)
    whole = block(x)
    assert whole.shape == (2, 4, 27)
    state, out = {n: torch.zeros(2, *c.shape, dtype=torch.float64) for n, c in columns.items()}, []
    for part in x.split((1, 5, 3), dim=-1):
        streaming = StreamingState(state)
        out.append(block(part, streaming))
        state = streaming.new
    torch.testing.assert_close(torch.cat(out, -1), whole)


def test_a_snake_computes_its_large_argument_in_float32():
    act = Snake(3)
    act.alpha.data = torch.tensor([1.0, 50.0, 0.5]).view(1, 3, 1)
    x = torch.randn(2, 3, 40, generator=torch.Generator().manual_seed(1)) * 10
    want = x.half().double()
    want = want + torch.sin(act.alpha.double() * want).pow(2) / act.alpha.double()
    torch.testing.assert_close(act(x.half()).double(), want, rtol=2e-3, atol=2e-3)


def test_nothing_is_computed_of_weights_that_are_not_in_yet():
    """Arithmetic on the meta device imports torch._dynamo and sympy."""
    with torch.device("meta"):
        act = Snake(3)
    cast_codec(act, torch.float16)
    assert act.cached_params is None
    act.to_empty(device="cpu")
    act.alpha.data.fill_(2.0)
    cast_codec(act, torch.float16)
    torch.testing.assert_close(act.cached_params.gain, torch.full((3,), 0.5))

"""Causal convolutions give the same output whole and in chunks of any length."""

import pytest
import torch
from torch import nn

from stentor.layers.conv import CausalConv1d, CausalConvTranspose1d, StreamingState, state_columns


def fresh(columns, batch: int, dtype=torch.float64):
    return {n: torch.zeros(batch, *c.shape, dtype=dtype) for n, c in columns.items()}


def initialised(module: nn.Module) -> nn.Module:
    generator = torch.Generator().manual_seed(0)
    for p in module.parameters():
        p.data = torch.randn(p.shape, generator=generator, dtype=torch.float64)
    return module


MODULES = {
    "dilated": lambda: CausalConv1d(3, 4, 5, dilation=3),
    "grouped": lambda: CausalConv1d(4, 4, 7, groups=4),
    "pointwise": lambda: CausalConv1d(3, 4, 1),
    "strided": lambda: CausalConv1d(3, 4, 6, stride=3, left=3),
    "upsampling": lambda: CausalConvTranspose1d(3, 2, 4),
    "upsampling without overlap": lambda: CausalConvTranspose1d(3, 2, 2, kernel=2),
}


@pytest.mark.parametrize("name", MODULES)
@pytest.mark.parametrize("chunks", [(1,) * 12, (5, 1, 6), (12,)])
def test_a_convolution_in_chunks_equals_the_whole(name: str, chunks: tuple[int, ...]):
    chunks = tuple(3 * n for n in chunks)  # whole strides
    module = nn.Sequential(initialised(MODULES[name]()))
    columns = state_columns(module)
    x = torch.randn(2, module[0].channels, sum(chunks), dtype=torch.float64)
    whole = module[0](x)
    state, out = fresh(columns, 2), []
    for part in x.split(chunks, dim=-1):
        streaming = StreamingState(state)
        out.append(module[0](part, streaming))
        state = streaming.new
    assert set(state) == set(columns)
    torch.testing.assert_close(torch.cat(out, -1), whole)


def test_an_upsampling_convolution_equals_torch_without_its_look_ahead():
    module = initialised(CausalConvTranspose1d(3, 2, 4))
    x = torch.randn(1, 3, 6, dtype=torch.float64)
    plain = torch.nn.functional.conv_transpose1d(x, module.weight, module.bias, 4)
    torch.testing.assert_close(module(x), plain[..., :-4])


def test_a_kernel_that_would_need_more_history_is_refused():
    with pytest.raises(ValueError, match="kernel must be"):
        CausalConvTranspose1d(3, 2, 4, kernel=12)

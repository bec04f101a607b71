"""Causal modules give the same output whole and in chunks of any length."""

import pytest
import torch
from torch import nn

from stentor.layers.conv import CausalConv1d, CausalConvTranspose1d, StreamingState, state_columns
from stentor.layers.qk_norm_rope import NormRope
from stentor.layers.sliding_window import NEVER, WindowKV, window_columns


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
    "upsampling": lambda: CausalConvTranspose1d(3, 2, 4),
    "upsampling without overlap": lambda: CausalConvTranspose1d(3, 2, 2, kernel=2),
}


@pytest.mark.parametrize("name", MODULES)
@pytest.mark.parametrize("chunks", [(1,) * 12, (5, 1, 6), (12,)])
def test_a_convolution_in_chunks_equals_the_whole(name: str, chunks: tuple[int, ...]):
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


@pytest.mark.parametrize("chunks", [(1,) * 12, (5, 1, 6), (12,)])
def test_window_attention_in_chunks_equals_the_whole(chunks: tuple[int, ...]):
    window, total = 4, sum(chunks)
    q, k, v = (torch.randn(2, total, 2, 3, dtype=torch.float64) for _ in range(3))
    pos = torch.arange(total).expand(2, -1)
    whole = WindowKV("a", window, pos, None).attend(0, q, k, v, NormRope())
    expected = torch.empty_like(whole)
    for t in range(total):
        lo = max(0, t - window + 1)
        scores = torch.einsum("bhd,bshd->bhs", q[:, t], k[:, lo : t + 1]) / 3**0.5
        expected[:, t] = torch.einsum("bhs,bshd->bhd", scores.softmax(-1), v[:, lo : t + 1])
    torch.testing.assert_close(whole, expected)
    state, out = fresh(window_columns("a", 1, 2, 3, window), 2), []
    start = 0
    for n in chunks:
        streaming = StreamingState(state)
        part = slice(start, start + n)
        kv = WindowKV("a", window, pos[:, part], streaming)
        out.append(kv.attend(0, q[:, part], k[:, part], v[:, part], NormRope()))
        state, start = streaming.new, start + n
    torch.testing.assert_close(torch.cat(out, 1), whole)


@pytest.mark.parametrize("length", [1, 5, 8])
def test_rows_of_what_a_window_adds_to_scores_end_on_whole_words(length: int):
    """A library kernel reads them four or sixteen bytes at a time: the memory of the last row must reach as far."""
    pos = torch.arange(length)[None]
    bias = WindowKV("a", 3, pos, None).bias(torch.float16)
    assert bias.shape == (1, 1, length, length)
    assert bias.stride()[-2:] == (8, 1)
    assert bias.untyped_storage().nbytes() == length * 16
    expected = [[0.0 if t - 3 < s <= t else NEVER for s in range(length)] for t in range(length)]
    assert bias[0, 0].tolist() == expected

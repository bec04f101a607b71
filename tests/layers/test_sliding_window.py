"""Window attention gives the same output whole and in chunks of any length."""

import pytest
import torch

from stentor.layers.conv import StreamingState
from stentor.layers.qk_norm_rope import NormRope
from stentor.layers.sliding_window import NEVER, WindowKV, window_columns


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
    columns = window_columns("a", 1, 2, 3, window)
    state, out = {n: torch.zeros(2, *c.shape, dtype=torch.float64) for n, c in columns.items()}, []
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

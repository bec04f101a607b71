"""Inside `kernels.batch_invariant` a row's bits do not depend on the rows beside it, nor on how its history was cut."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import tests.helpers.kernel_tests  # noqa: F401  (first: it imports the kernels interpreted where there is no GPU)
from stentor import kernels
from stentor.kernels import (
    conv1d,
    gemm,
    prefill_attention,
    short_attention,
    switches,
    window_attention,
)
from stentor.kernels.configs import (
    FIXED_ROWS,
    GemmConfig,
    PrefillConfig,
    WindowConfig,
    depth_config,
    local_config,
)
from stentor.kernels.types import SnakeParams
from stentor.layers.attention import sdpa
from stentor.layers.linear import Linear
from stentor.layers.quantized import quantize
from tests.helpers.kernel_tests import DEVICE, DOTS, close, integers, random
from tests.helpers.rowwise_dot import interpreter, rowwise_dot

TILE = GemmConfig(16, 16, 16, 4, 2)
pytestmark = pytest.mark.usefixtures("kernel_test", "rowwise")


@pytest.fixture
def rowwise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        interpreter.InterpreterBuilder, "create_dot", rowwise_dot
    )  # a GPU has its own
    monkeypatch.setattr(switches, "INTERPRETED", DEVICE == "cpu")  # kernels serve tensors of a CPU


@pytest.mark.parametrize("dtype", DOTS)
@pytest.mark.parametrize(("k", "n"), [(48, 40), (50, 16)])
def test_a_row_of_a_product_is_the_same_wherever_it_stands(dtype, k, n):
    x, weight, bias = random(37, k, dtype=dtype), random(n, k, dtype=dtype), random(n, dtype=dtype)
    together = gemm.linear(x, weight, bias, TILE)
    close(together, torch.nn.functional.linear(x, weight, bias))
    for row in (0, 15, 16, 36):
        assert torch.equal(gemm.linear(x[row], weight, bias, TILE), together[row])
    assert torch.equal(gemm.linear(x[20:37], weight, bias, TILE), together[20:])
    assert gemm.linear(x[:0], weight).shape == (0, n)


def test_products_are_ours_inside_only():
    layer = Linear(32, 16).to(DEVICE)
    x = random(3, 32)
    with kernels.batch_invariant(True):
        inside = layer(x)
        assert torch.equal(layer(x[1:2]), inside[1:2])
        assert (
            kernels.linear.select(kernels.linear.problem(x[:1], layer.weight))[0].backend
            == "one order"
        )
    assert torch.equal(inside, gemm.linear(x, layer.weight, layer.bias))
    assert torch.equal(layer(x), torch.nn.functional.linear(x, layer.weight, layer.bias))


def test_it_holds_for_its_own_thread_and_ends():
    states = []
    with kernels.batch_invariant(True):
        thread = threading.Thread(target=lambda: states.append(kernels.is_batch_invariant()))
        thread.start()
        thread.join()
        with kernels.batch_invariant(False):
            states.append(kernels.is_batch_invariant())
        states.append(kernels.is_batch_invariant())
    assert [*states, kernels.is_batch_invariant()] == [False, False, True, False]


@pytest.mark.parametrize("dtype", DOTS)
def test_a_token_attends_alike_in_a_prompt_and_in_a_piece_and_in_a_decode_step(dtype):
    """So a request that is preempted goes on as it would have."""
    config, length = PrefillConfig(16, 16, 4, 2), 39
    pool, table = (
        random(2, 61, 4, 2, 64, dtype=dtype),
        torch.randperm(60, device=DEVICE).view(6, 10),
    )
    pos, slot = torch.arange(length, device=DEVICE), torch.full((length,), 2, device=DEVICE)
    q = random(length, 4, 64, dtype=dtype)
    at_once = prefill_attention.prefill_attention(pool, table, slot, pos, q, config)
    for first in (5, 38):
        piece = slice(first, length)
        out = prefill_attention.prefill_attention(
            pool, table, slot[piece], pos[piece], q[piece], config
        )
        assert torch.equal(out, at_once[piece])
    step, rows = integers(38, 3, 17), integers(0, 2, 1)  # among tokens of other requests
    decoded = prefill_attention.prefill_attention(
        pool, table, rows, step, q[step], config, alone=True
    )
    assert torch.equal(decoded[1], at_once[3])
    alone = prefill_attention.prefill_attention(
        pool, table, slot[38:], pos[38:], q[38:], config, alone=True
    )
    assert torch.equal(alone, at_once[38:])


def _recorded(
    asked: set[tuple[str, int]], name: str, choose: Callable[..., Any], rows: int, group: int
) -> Any:
    asked.add((name, rows))
    return choose(rows, group)


CUTS = ((1, 2, 4, 8, 16, 9), (25, 15), (40,))


@pytest.mark.parametrize("dtype", DOTS)
@pytest.mark.parametrize(("heads", "group", "dim"), [(2, 2, 16), (1, 1, 24)])
def test_a_stream_gets_the_same_window_attention_however_it_is_cut(dtype, heads, group, dim):
    count, window = 40, 12
    q, k, v = (random(2, count, h, dim, dtype=dtype) for h in (heads * group, heads, heads))
    at = torch.arange(count, device=DEVICE)
    want = sdpa(q, k, v, (at[None] <= at[:, None]) & (at[None] > at[:, None] - window))
    before = random(2, window - 1, heads, dim, dtype=dtype)  # what lies before a stream is not seen
    keys, values = (torch.cat((before, t), 1) for t in (k, v))
    outputs = [_chunks(q, keys, values, cut, window) for cut in CUTS]
    close(outputs[0], want)
    assert all(torch.equal(outputs[0], other) for other in outputs[1:])
    assert torch.equal(_chunks(q[1:], keys[1:], values[1:], CUTS[0], window), outputs[0][1:])
    start = torch.zeros(2, dtype=torch.int64, device=DEVICE)
    assert torch.equal(
        window_attention.window_attention(q, k, v, start, window, WindowConfig(16, 16, 4)),
        outputs[0],
    )


def _chunks(q: Tensor, k: Tensor, v: Tensor, cut: tuple[int, ...], window: int) -> Tensor:
    parts, at = [], 0
    for n in cut:
        span = slice(at, at + n + window - 1)
        start = torch.full((len(q),), at, device=DEVICE)
        arguments = q[:, at : at + n], k[:, span], v[:, span], start
        parts.append(window_attention.window_attention(*arguments, window, WindowConfig(16, 16, 4)))
        at += n
    return torch.cat(parts, 1)


def test_a_stream_that_is_older_than_its_window_goes_on_alike():
    count, window, dim = 30, 12, 16
    q, k, v = (random(1, count, 1, dim) for _ in range(3))
    start = torch.full((1,), 100, device=DEVICE)
    keys, values = (torch.cat((random(1, window - 1, 1, dim), t), 1) for t in (k, v))
    at_once = window_attention.window_attention(q, keys, values, start, window)
    at = torch.arange(count, device=DEVICE)
    key_at = torch.arange(-window + 1, count, device=DEVICE)
    key_mask = (key_at[None] <= at[:, None]) & (key_at[None] > at[:, None] - window)
    close(at_once, sdpa(q, keys, values, key_mask))
    tail = window_attention.window_attention(
        q[:, 13:], keys[:, 13:], values[:, 13:], start + 13, window
    )
    assert torch.equal(tail, at_once[:, 13:])


@pytest.mark.parametrize("dtype", DOTS)
def test_short_attention_takes_one_config_for_any_number_of_rows(dtype, monkeypatch):
    q, k, v = (random(5, 5, h, 16, dtype=dtype) for h in (4, 1, 1))
    cache, choices = random(2, 5, 6, 1, 16, dtype=dtype), set()
    for name, choose in (("depth_config", depth_config), ("local_config", local_config)):
        monkeypatch.setattr(short_attention, name, partial(_recorded, choices, name, choose))
    with kernels.batch_invariant(True):
        local = short_attention.local_attention(q, k, v)
        depth = short_attention.depth_attention(cache.clone(), 3, q[:, :1], k[:, :1], v[:, :1])
        part = slice(3, 4)
        assert torch.equal(short_attention.local_attention(q[part], k[part], v[part]), local[part])
        row = (t[part, :1] for t in (q, k, v))
        assert torch.equal(
            short_attention.depth_attention(cache[:, part].clone(), 3, *row), depth[part]
        )
    assert choices == {("depth_config", FIXED_ROWS), ("local_config", FIXED_ROWS)}


def test_products_in_8_bits_are_the_same_for_any_number_of_rows():
    weight, scale = quantize(random(24, 64), torch.int8)
    x = random(70, 64)
    with kernels.batch_invariant(True):
        assert (
            kernels.linear.select(kernels.linear.problem(x, weight, scale))[0].backend == "8 bits"
        )
        together = gemm.linear(x, weight, scale=scale)
        assert torch.equal(gemm.linear(x[66:67], weight, scale=scale), together[66:67])


def test_convolutions_are_the_same_for_any_number_of_rows_and_chunk():
    weight = random(3, 24, 16).half().permute(1, 2, 0)
    snake = SnakeParams(random(24).abs() + 0.5, random(24).abs())
    x, bias = random(3, 42, 16).half(), random(24).half()
    with kernels.batch_invariant(True):
        together = conv1d.conv1d(x, weight, bias, 1, snake, None)
        assert torch.equal(conv1d.conv1d(x[2:], weight, bias, 1, snake, None), together[2:])
        late = conv1d.conv1d(x[:1, 30:].contiguous(), weight, bias, 1, snake, None)
    assert torch.equal(late, together[:1, 30:])
    assert np.isfinite(together.float().cpu().numpy()).all()

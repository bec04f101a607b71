"""Low-rank products of rows with different adapters, against the reference of layers/lora.py."""

from __future__ import annotations

import pytest
import torch

import tests.helpers.kernel_tests  # noqa: F401  (first: it imports the kernels interpreted where there is no GPU)
from stentor.kernels import lora
from stentor.kernels.configs import LORA_FEW_ROWS, LORA_TILE_ROWS, LoraTile, lora_splits, lora_tile
from stentor.layers.lora import add_lora
from tests.helpers.kernel_tests import DOTS, close, integers, random
from tests.helpers.rowwise_dot import interpreter, rowwise_dot

pytestmark = pytest.mark.usefixtures("kernel_test")


def weights(widths, inputs, slots, rank, dtype):
    return random(len(widths), slots, rank, inputs, dtype=dtype) / inputs**0.5, random(
        slots, rank, sum(widths), dtype=dtype
    )


@pytest.mark.parametrize("dtype", DOTS)
@pytest.mark.parametrize(
    ("shape", "widths", "rank"),
    [
        ((5,), (40, 24, 24), 4),  # a decode step, stacked queries, keys and values
        ((10, 11), (33,), 20),  # a flow: rows of tokens, and those for guidance behind
        ((10, 1), (16, 16), 16),
        ((5, 40), (64,), 3),  # more tokens of a row than a tile has
    ],
)
def test_products_of_mixed_rows_equal_the_reference(dtype, shape, widths, rank):
    inputs = 136
    a, b = weights(widths, inputs, 4, rank, dtype)
    x, y = random(*shape, inputs, dtype=dtype), random(*shape, sum(widths), dtype=dtype)
    index = integers(4, 0, 1, 1, 2)
    want = add_lora(y.clone(), x, index, a, b, widths)
    close(lora.add_lora(y.clone(), x, index, a, b, widths), want)


@pytest.mark.parametrize("dtype", DOTS)
def test_prompts_whose_tokens_share_tiles_equal_the_reference(dtype):
    a, b = weights((24,), 32, 3, 8, dtype)
    count = LORA_FEW_ROWS + 9
    index = integers(*[0] * 5, *[3] * 70, *[1] * (count - 84), *[0] * 9)
    x, y = random(count, 32, dtype=dtype), random(count, 24, dtype=dtype)
    want = add_lora(y.clone(), x, index, a, b, (24,))
    close(lora.add_lora(y.clone(), x, index, a, b, (24,)), want)


@pytest.mark.parametrize("dtype", DOTS)
def test_some_parts_of_a_stacked_layer_and_rows_that_lie_apart(dtype):
    widths = (16, 8, 8)
    a, b = weights(widths, 32, 2, 4, dtype)
    x, y = random(3, 7, 32, dtype=dtype)[:, -4:], random(3, 4, 16, dtype=dtype)
    index = integers(2, 0, 1)
    given = (x, index, a[1:], b[:, :, 16:], widths[1:])
    close(lora.add_lora(y.clone(), *given), add_lora(y.clone(), *given))


def test_rows_without_adapter_are_not_written():
    a, b = weights((16,), 32, 2, 4, torch.float32)
    y = random(4, 16)
    got = lora.add_lora(y.clone(), random(4, 32), integers(0, 0, 1, 0), a, b, (16,))
    assert torch.equal(got[[0, 1, 3]], y[[0, 1, 3]])
    assert not torch.equal(got[2], y[2])


@pytest.mark.parametrize("dtype", DOTS)
@pytest.mark.parametrize("shape", [(6,), (6, 11), (LORA_FEW_ROWS + 8,)])
def test_inputs_that_several_ctas_add_up(dtype, shape):
    widths, inputs = (40, 8), 1160
    a, b = weights(widths, inputs, 3, 20, dtype)
    x, y = random(*shape, inputs, dtype=dtype), random(*shape, sum(widths), dtype=dtype)
    index = integers(*[3, 0, 1] * (shape[0] // 3))
    assert lora_splits(inputs)[0] > 1
    want = add_lora(y.clone(), x, index, a, b, widths)
    close(lora.add_lora(y.clone(), x, index, a, b, widths), want)


@pytest.mark.parametrize("k", [24, 512, 1024, 1160, 2048, 2560, 9728])
def test_splits_hold_every_input_once(k):
    splits, each = lora_splits(k)
    assert each % 128 == 0
    assert (splits - 1) * each < k <= splits * each


def test_tiles_hold_the_rows_of_one_adapter_where_they_can():
    assert lora_tile(64, 1, 64) == LoraTile(1, 16, 64, 1, one_adapter=True)  # a step
    assert lora_tile(128, 1, 64) == LoraTile(
        2, 16, 64, 1, one_adapter=True
    )  # with rows for guidance
    assert lora_tile(128 * 11, 11, 64) == LoraTile(22, 32, 64, 1, one_adapter=True)  # a flow
    assert lora_tile(128 * 40, 40, 64) == LoraTile(32, 32, 192, 3, one_adapter=True)
    assert lora_tile(2048, 1, 2048) == LoraTile(32, 32, 64, 1, one_adapter=False)  # prompts
    by_table = LoraTile(16, 16, 64, 1, one_adapter=True, by_adapter=True)
    assert lora_tile(64, 1, 64, True) == by_table  # a step
    assert not lora_tile(128 * 11, 11, 64, True).by_adapter


@pytest.mark.parametrize(
    "numbers", [[0, 0, 0], [2], [1, 3, 1, 0, 3, 1], [2] * 40, [0, 1] * 20 + [1] * 3 + [2] * 17]
)
def test_a_table_of_tiles_holds_every_row_with_an_adapter_once(numbers):
    tiles = lora.tiles_of(integers(*numbers)).tolist()
    assert len(tiles) == len(numbers)
    used = [tile for tile in tiles if tile[0]]
    assert used == tiles[: len(used)]  # CTAs with nothing to do start last
    found = [(row, adapter) for adapter, *rows in used for row in rows if row >= 0]
    assert sorted(found) == [(i, n) for i, n in enumerate(numbers) if n]
    for adapter in set(numbers) - {0}:
        assert sum(tile[0] == adapter for tile in used) == -(
            -numbers.count(adapter) // LORA_TILE_ROWS
        )
    assert all(row == -1 for tile in tiles[len(used) :] for row in tile[1:])


@pytest.mark.parametrize("dtype", DOTS)
def test_rows_in_tiles_by_adapter_have_the_bits_that_they_have_alone(dtype, monkeypatch):
    monkeypatch.setattr(
        interpreter.InterpreterBuilder, "create_dot", rowwise_dot
    )  # a GPU has its own
    numbers = [3, 0, 1, *[2] * 20, 1, 0, 3]
    widths, inputs = (40, 24, 24), 1160
    a, b = weights(widths, inputs, 3, 20, dtype)
    index, count = integers(*numbers), len(numbers)
    x, y = random(count, inputs, dtype=dtype), random(count, sum(widths), dtype=dtype)
    got = lora.add_lora(y.clone(), x, index, a, b, widths, lora.tiles_of(index))
    close(got, add_lora(y.clone(), x, index, a, b, widths))
    for row in range(count):
        one = slice(row, row + 1)
        alone = lora.add_lora(
            y[one].clone(), x[one], index[one], a, b, widths, lora.tiles_of(index[one])
        )
        assert torch.equal(alone, got[one])

"""A Triton kernel for LSTMs in both directions: all steps in one launch.

A CTA runs all steps of some rows in one direction, each row from its own end. So rows of any
lengths share a launch, and none changes another. Products have the digits of float32: weights and
outputs are sums of two numbers of 16 bits.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

SIZES = (16, 32, 64, 128, 256)
"""Outputs of a direction that `lstm` computes."""
ROWS = 16
"""Rows of a CTA: a product takes no fewer."""
BLOCK_K = 16
GATES = 4


class Recurrence(NamedTuple):
    """Weights of an LSTM in both directions for its last output.

    weight: float16 [direction, part, gate, input, output]. The parts of a weight sum up to it.
    """

    weight: Tensor

    @classmethod
    def of(
        cls,
        forward: Tensor,
        backward: Tensor,
    ) -> Recurrence:
        """Lay out weights [4 H, H] of both directions."""
        weight = torch.stack((forward, backward)).float()
        size = weight.shape[2]
        by_gate = weight.view(2, GATES, size, size).transpose(2, 3)
        return cls(torch.stack(_parts(by_gate), dim=1).contiguous())


def _parts(x: Tensor) -> tuple[Tensor, Tensor]:
    """Two numbers of 16 bits whose sum has the digits of a float32."""
    high = x.half()
    return high, (x - high.float()).half()


@triton.jit
def _sigmoid(x):
    return 1.0 / (1.0 + tl.exp(-x))


@triton.jit
def _tanh(x):
    return 2.0 * _sigmoid(2.0 * x) - 1.0


@triton.jit(do_not_specialize=["num_rows", "num_steps"])
def _lstm_kernel(
    inputs_ptr,
    weight_ptr,
    lengths_ptr,
    last_ptr,
    out_ptr,
    num_rows,
    num_steps,
    SIZE: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """All steps of some rows in one direction. The last output is kept in two parts of 16 bits, in
    turns of two: a step reads one while it writes the other."""
    direction = tl.program_id(1)
    cta = tl.program_id(0) * 2 + direction
    offs_b = tl.arange(0, ROWS)
    offs_h = tl.arange(0, SIZE)
    offs_k = tl.arange(0, BLOCK_K)
    row = tl.program_id(0) * ROWS + offs_b
    in_rows = row < num_rows
    length = tl.load(lengths_ptr + row, in_rows, 0).to(tl.int32)
    longest = tl.max(length, 0)
    first = row.to(tl.int64) * num_steps
    out_mask = in_rows[:, None] & (offs_h < SIZE)[None, :]

    part_size: tl.constexpr = ROWS * SIZE
    gate_size: tl.constexpr = SIZE * SIZE
    last_ptr += cta * 4 * part_size
    weight_ptr += direction * 8 * gate_size
    low_weight_ptr = weight_ptr + 4 * gate_size
    mine = offs_b[:, None] * SIZE + offs_h[None, :]
    tl.store(last_ptr + mine, tl.zeros((ROWS, SIZE), tl.float16))
    tl.store(last_ptr + part_size + mine, tl.zeros((ROWS, SIZE), tl.float16))
    cell = tl.zeros((ROWS, SIZE), tl.float32)
    for step in range(longest):
        # Outputs of all warps must be in memory before any is read.
        tl.debug_barrier()
        exists = step < length
        place = tl.where((direction == 1) & exists, length - 1 - step, step)
        input_ptrs = (
            inputs_ptr + ((first + place) * 8 + direction * 4)[:, None] * SIZE + offs_h[None, :]
        )
        mask = exists[:, None] & (offs_h < SIZE)[None, :]
        input_in = tl.load(input_ptrs, mask, 0.0)
        input_forget = tl.load(input_ptrs + SIZE, mask, 0.0)
        input_cell = tl.load(input_ptrs + 2 * SIZE, mask, 0.0)
        input_out = tl.load(input_ptrs + 3 * SIZE, mask, 0.0)

        high_ptr = last_ptr + (step % 2) * 2 * part_size
        gate_in = tl.zeros((ROWS, SIZE), tl.float32)
        gate_forget = tl.zeros((ROWS, SIZE), tl.float32)
        gate_cell = tl.zeros((ROWS, SIZE), tl.float32)
        gate_out = tl.zeros((ROWS, SIZE), tl.float32)
        for k in range(0, SIZE, BLOCK_K):
            places = k + offs_k
            last_ptrs = high_ptr + offs_b[:, None] * SIZE + places[None, :]
            weight_ptrs = weight_ptr + places[:, None] * SIZE + offs_h[None, :]
            high = tl.load(last_ptrs)
            low = tl.load(last_ptrs + part_size)
            weight_in = tl.load(weight_ptrs)
            weight_forget = tl.load(weight_ptrs + gate_size)
            weight_cell = tl.load(weight_ptrs + 2 * gate_size)
            weight_out = tl.load(weight_ptrs + 3 * gate_size)
            gate_in = tl.dot(low, weight_in, tl.dot(high, weight_in, gate_in))
            gate_forget = tl.dot(low, weight_forget, tl.dot(high, weight_forget, gate_forget))
            gate_cell = tl.dot(low, weight_cell, tl.dot(high, weight_cell, gate_cell))
            gate_out = tl.dot(low, weight_out, tl.dot(high, weight_out, gate_out))
        # The product of both low parts has no digit of a float32.
        for k in range(0, SIZE, BLOCK_K):
            places = k + offs_k
            last_ptrs = high_ptr + offs_b[:, None] * SIZE + places[None, :]
            weight_ptrs = low_weight_ptr + places[:, None] * SIZE + offs_h[None, :]
            high = tl.load(last_ptrs)
            gate_in = tl.dot(high, tl.load(weight_ptrs), gate_in)
            gate_forget = tl.dot(high, tl.load(weight_ptrs + gate_size), gate_forget)
            gate_cell = tl.dot(high, tl.load(weight_ptrs + 2 * gate_size), gate_cell)
            gate_out = tl.dot(high, tl.load(weight_ptrs + 3 * gate_size), gate_out)

        cell *= _sigmoid(gate_forget + input_forget)
        cell += _sigmoid(gate_in + input_in) * _tanh(gate_cell + input_cell)
        y = _sigmoid(gate_out + input_out) * _tanh(cell)
        out_ptrs = out_ptr + ((first + place) * 2 + direction)[:, None] * SIZE + offs_h[None, :]
        row_y = tl.where(mask, y, 0.0)
        tl.store(out_ptrs, row_y, out_mask)
        next_ptrs = last_ptr + ((step + 1) % 2) * 2 * part_size + mine
        high = y.to(tl.float16)
        tl.store(next_ptrs, high)
        low = y - high.to(tl.float32)
        tl.store(next_ptrs + part_size, low.to(tl.float16))

    for step in range(longest, num_steps):
        out_ptrs = out_ptr + ((first + step) * 2 + direction)[:, None] * SIZE + offs_h[None, :]
        tl.store(out_ptrs, tl.zeros((ROWS, SIZE), tl.float32), out_mask)


def lstm(
    inputs: Tensor,
    recurrence: Recurrence,
    lengths: Tensor,
) -> Tensor:
    """Run an LSTM in both directions over rows of these lengths [B].

    inputs: products of the gates' inputs with their biases, float32 [B, T, 2, 4 H], gates in the
    order of torch. Returns [B, T, 2 H]. The other direction begins at each row's own end. Zeros
    stand behind the ends.
    """
    batch, count, _, width = inputs.shape
    size = width // GATES
    num_tiles = triton.cdiv(batch, ROWS)
    out = inputs.new_empty(batch, count, 2 * size)
    last = torch.empty(num_tiles, 2, 2, 2, ROWS, size, dtype=torch.float16, device=inputs.device)
    _lstm_kernel[(num_tiles, 2)](
        inputs,
        recurrence.weight,
        lengths,
        last,
        out,
        batch,
        count,
        SIZE=size,
        ROWS=ROWS,
        BLOCK_K=BLOCK_K,
        num_warps=8,
        num_stages=4,
    )
    return out

"""Rotary position embedding (Su et al., 2021). Tables are explicit, because every family rounds
them in its own way."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from stentor import kernels
from stentor.kernels.types import RopeArgs

CosSin = tuple[Tensor, Tensor]


def angles(dim: int, positions: int, theta: float, factors: list[float] | None = None) -> Tensor:
    """Angles [positions, dim / 2] in float32. `factors` [dim / 2] divide the frequencies
    (LongRoPE)."""
    exponents = torch.arange(0, dim, 2, dtype=torch.float32) / dim
    inverse = 1.0 / (theta**exponents)
    time = torch.arange(positions, dtype=torch.float32)
    if factors is None:
        return torch.outer(time, inverse)
    # This order of products rounds as the reference does.
    scales = 1.0 / torch.tensor(factors, dtype=torch.float32)
    return torch.outer(time, scales) * inverse


class Rope(nn.Module):
    """cos/sin tables [positions, dim / 2], rounded to `table_dtype` and kept in float32.

    `interleaved` rotates pairs (x[2i], x[2i+1]) as GPT-J does. Otherwise halves (x[i], x[i +
    dim/2]) are rotated as NeoX does. `in_float32` rotates in float32 and rounds once. Otherwise the
    arithmetic is in the dtype of x.
    """

    cos: Tensor
    sin: Tensor

    def __init__(
        self,
        table: Tensor,
        table_dtype: torch.dtype,
        interleaved: bool,
        in_float32: bool,
    ) -> None:
        super().__init__()
        cos = table.cos().to(table_dtype)
        sin = table.sin().to(table_dtype)
        self.register_buffer("cos", cos.float(), persistent=False)
        self.register_buffer("sin", sin.float(), persistent=False)
        self.interleaved = interleaved
        self.in_float32 = in_float32

    def at(self, pos: Tensor) -> CosSin:
        """Tables for positions [...]: two tensors [..., 1, dim / 2], to be used with `rotate`."""
        return self.cos[pos].unsqueeze(-2), self.sin[pos].unsqueeze(-2)

    def first(self, tokens: int) -> CosSin:
        """Tables for positions 0 to `tokens` - 1: two views [tokens, 1, dim / 2], to be used with
        `rotate`."""
        return self.cos[:tokens].unsqueeze(-2), self.sin[:tokens].unsqueeze(-2)

    def rotate(self, x: Tensor, cos_sin: CosSin) -> Tensor:
        """x [..., heads, dim] rotated by tables [..., 1, dim / 2]."""
        if kernels.enabled(kernels.Kernel.ROPE, x):
            return kernels.norm_rope.apply_rope(x, self.kernel_args(cos_sin))
        return self.turn(x, self.factors(cos_sin))

    def factors(self, cos_sin: CosSin) -> CosSin:
        """Tables [..., 1, dim / 2] as `turn` takes them: factors [..., 1, dim] of each number and
        of its partner."""
        cos, sin = cos_sin
        return self._arranged(cos, cos), self._arranged(-sin, sin)

    def turn(self, x: Tensor, factors: CosSin) -> Tensor:
        """x [..., heads, dim] rotated by `factors`, without kernels."""
        if self.in_float32:
            y = x.float()
        else:
            y = x
        cos = factors[0].to(y.dtype)
        others = factors[1].to(y.dtype)
        if self.interleaved:
            a = y[..., 0::2]
            b = y[..., 1::2]
        else:
            a, b = y.chunk(2, dim=-1)
        partners = self._arranged(b, a).mul_(others)
        return (y * cos).add_(partners).to(x.dtype)

    def _arranged(self, a: Tensor, b: Tensor) -> Tensor:
        """[..., dim] of the first [..., dim / 2] and the second numbers of the pairs that are
        rotated."""
        if self.interleaved:
            return torch.stack((a, b), dim=-1).flatten(-2)
        return torch.cat((a, b), dim=-1)

    def kernel_args(self, cos_sin: CosSin) -> RopeArgs:
        """The arguments of the RoPE kernels for tokens with these tables."""
        return RopeArgs(*cos_sin, self.interleaved, self.in_float32)

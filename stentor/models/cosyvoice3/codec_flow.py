"""Flow matching, codes to mel frames, by a diffusion transformer (DiT) over both branches of guidance at once.

Frames of a cell attend to it and to what is kept of the cells before, or to all of a call.
"""

from __future__ import annotations

import math
from typing import NamedTuple, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from stentor import kernels
from stentor.kernels import Kernel
from stentor.layers.attention import sdpa
from stentor.layers.linear import linear_gelu
from stentor.layers.rope import Rope, angles
from stentor.layers.types import Column, State
from stentor.models.cosyvoice3.codec_noise import FLOW_FRAMES
from stentor.models.cosyvoice3.config import MELS, SPEAKER, TAIL, FlowConfig
from stentor.models.cosyvoice3.ops import add_norm, position_conv, tail_of, taps_product


class Turns(NamedTuple):
    """RoPE of the first head alone, as in the original: cos and sin [B, T, D / 2] float32 of the frames of a call."""

    cos: Tensor
    sin: Tensor

    @property
    def head_dim(self) -> int:
        return 2 * self.cos.shape[-1]

    def __call__(self, x: Tensor) -> Tensor:
        """x [B, 2, T, H, D], of which pairs of neighbours of head 0 are turned."""
        a = x[..., 0, 0::2]
        b = x[..., 0, 1::2]
        cos = self.cos[:, None]
        sin = self.sin[:, None]
        first = torch.stack((a * cos - b * sin, b * cos + a * sin), dim=-1).flatten(-2)
        return torch.cat((first[..., None, :].to(x.dtype), x[..., 1:, :]), dim=-2)

    def heads(self, qkv: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Turned queries and keys, and values, [B, 2, T, H, D] each, of qkv [B, 2, T, 3 C]."""
        q, k, v = (t.view(*t.shape[:-1], -1, self.head_dim) for t in qkv.chunk(3, dim=-1))
        return self(q), self(k), v


class Keys(Protocol):
    """Attention of block `block` in step `step` for rows of one call."""

    def attend(self, step: int, block: int, qkv: Tensor, rope: Turns) -> Tensor:
        """qkv [B, 2, T, 3 C] as projected -> [B, 2, T, C]. The two branches do not see each other."""
        ...


def fused(qkv: Tensor, rope: Turns) -> bool:
    """Whether a kernel attends."""
    if not kernels.enabled(Kernel.PAGED, qkv):
        return False
    from stentor.models.cosyvoice3.kernels import takes

    return takes(rope.head_dim)


class CallKeys:
    """Every frame sees all frames of its row in this call, of which the first `count` [B] exist."""

    def __init__(self, count: Tensor, frames: int) -> None:
        exist = torch.arange(frames, device=count.device) < count[:, None]
        self._count = count
        self._mask = exist.repeat_interleave(2, 0)[:, None, None]
        self._kept: Tensor | None = None  # keys and values of one block at a time

    def attend(self, step: int, block: int, qkv: Tensor, rope: Turns) -> Tensor:
        if fused(qkv, rope):
            from stentor.models.cosyvoice3.attention_kernels import whole_attention

            batch, _, frames, width = qkv.shape
            if self._kept is None:
                self._kept = qkv.new_empty(batch, 2, 2, frames, width // 3)
            return whole_attention(qkv, *rope, self._count, width // 3 // rope.head_dim, self._kept)
        q, k, v = (t.flatten(0, 1) for t in rope.heads(qkv))
        return sdpa(q, k, v, self._mask).reshape(*qkv.shape[:3], -1)


class KeptKeys:
    """Frames of a cell see each other and those of the cells before, whose keys and values lie in pages.

    pool [pages, steps, blocks, 2, 2, H, cell, D] has a cell in each page: its keys, then its values, of both branches.
    table [B, n]: each row's pages in order. filled [B] of them hold earlier cells, and the next take the `cells` of the
    call. Of its frames the first `count` [B] exist.
    """

    def __init__(
        self, pool: Tensor, table: Tensor, filled: Tensor, count: Tensor, cells: int = 1
    ) -> None:
        self._pool = pool
        self._table = table
        self._filled = filled
        self._count = count
        self._cells = cells
        device = table.device
        size = pool.shape[6]
        own = torch.arange(cells, device=device)
        page = torch.arange(table.shape[1], device=device)
        last = filled[:, None] + own  # page of each cell
        self._page = table.gather(1, last)
        frames = torch.where(page < filled[:, None], size, 0)
        frames = frames.scatter(1, last, (count[:, None] - size * own).clamp(0, size))
        exist = torch.arange(size, device=device) < frames[..., None]
        seen = (exist[:, None] & (page <= last[..., None])[..., None]).flatten(2)
        self._mask = seen.repeat_interleave(size, 1).repeat_interleave(2, 0)[:, None]

    def attend(self, step: int, block: int, qkv: Tensor, rope: Turns) -> Tensor:
        if fused(qkv, rope):
            from stentor.models.cosyvoice3.attention_kernels import cell_attention
            from stentor.models.cosyvoice3.hopper_attention import Pages

            pages = Pages(self._pool, self._table, self._filled)
            at = step * self._pool.shape[2] + block
            heads = qkv.shape[-1] // 3 // rope.head_dim
            return cell_attention(qkv, *rope, self._count, heads, pages, self._cells, at)
        q, k, v = rope.heads(qkv)
        shape = (
            len(q),
            2,
            2,
            self._cells,
            -1,
            *q.shape[3:],
        )  # [B, keys or values, branch, cells, cell, H, D]
        new = torch.stack((k, v), 1).view(shape)
        self._pool[self._page, step, block] = new.permute(0, 3, 1, 2, 5, 4, 6).to(self._pool.dtype)
        kept = self._pool[self._table, step, block]  # [B, n, 2, 2, H, cell, D]
        both = (
            kept.permute(2, 0, 3, 1, 5, 4, 6).reshape(2, 2 * len(q), -1, *q.shape[3:]).to(q.dtype)
        )
        return sdpa(q.flatten(0, 1), both[0], both[1], self._mask).reshape(*qkv.shape[:3], -1)


STEPS = 10
GROUPS = 16
SINUSOIDS = 256

Left = tuple[Tensor | None, Tensor]
"""Residual that a block leaves to be added, and its gate."""
Added = tuple[Tensor, Left]


class StepTimes(NamedTuple):
    """float32 [10] each: the time of every Euler step, and its length."""

    time: Tensor
    length: Tensor


def step_times() -> StepTimes:
    """A cosine schedule. Times accumulate in float32, and each length is measured from the accumulated time."""
    span = 1 - torch.cos(torch.linspace(0, 1, STEPS + 1) * 0.5 * torch.pi)
    time = [span[0]]
    length = [span[1] - span[0]]
    for n in range(2, STEPS + 1):
        time.append(time[-1] + length[-1])
        length.append(span[n] - time[-1])
    return StepTimes(torch.stack(time), torch.stack(length))


class Block(nn.Module):
    """Attention and a GELU layer on x [B, 2, T, C], each normalised and modulated.

    The second layer's output is left to the norm that follows, which adds it.
    """

    def __init__(self, c: FlowConfig) -> None:
        super().__init__()
        self.modulation = nn.Linear(c.dim, 6 * c.dim)
        self.qkv_proj = nn.Linear(c.dim, 3 * c.dim)
        self.o_proj = nn.Linear(c.dim, c.dim)
        self.up = nn.Linear(c.dim, c.ff)
        self.down = nn.Linear(c.ff, c.dim)

    def forward(
        self,
        x: Tensor,
        left: Left,
        modulation: Tensor,
        at: tuple[int, int],
        keys: Keys,
        rope: Turns,
    ) -> Added:
        """modulation [6, C]: shift, scale and gate of each branch, the scales with 1 added. at: step and block."""
        shift, scale, gate, shift2, scale2, gate2 = modulation
        x, y = add_norm(x, *left, scale, shift)
        x, y = add_norm(
            x, self.o_proj(keys.attend(*at, self.qkv_proj(y), rope)), gate, scale2, shift2
        )
        return x, (self.down(linear_gelu(self.up, y)), gate2)


class DiT(nn.Module):
    """Parameters start on the meta device. `columns` hold the inputs that the convolutions see again."""

    modulations: Tensor
    last: Tensor

    def __init__(self, c: FlowConfig) -> None:
        super().__init__()
        self.config = c
        self.time_in = nn.Linear(SINUSOIDS, c.dim)
        self.time_out = nn.Linear(c.dim, c.dim)
        self.input = nn.Linear(4 * MELS, c.dim)
        self.positions = nn.ModuleList(
            nn.Conv1d(c.dim, c.dim, TAIL + 1, groups=GROUPS) for _ in range(2)
        )
        self.blocks = nn.ModuleList(Block(c) for _ in range(c.depth))
        self.last_modulation = nn.Linear(c.dim, 2 * c.dim)
        self.output = nn.Linear(c.dim, MELS)
        self.rope: Rope | None = None

    def columns(self, dtype: torch.dtype) -> dict[str, Column]:
        """The last inputs of both convolutions in every step, for both branches."""
        shape = (STEPS, 2, TAIL, self.config.dim)
        return {f"dit.{i}": Column(shape, dtype) for i in range(2)}

    @torch.no_grad()
    def process_weights_after_loading(self, dtype: torch.dtype) -> None:
        """Nothing but the time enters the modulations: they become a table of the ten steps, and their weights go."""
        time = 1000 * step_times().time.to(self.time_in.weight.device)
        half = SINUSOIDS // 2
        rates = torch.exp(
            torch.arange(half, device=time.device).float() * -(math.log(10000) / (half - 1))
        )
        phase = time[:, None] * rates
        h = F.silu(
            self.time_out(F.silu(self.time_in(torch.cat((phase.sin(), phase.cos()), dim=1))))
        )
        table = torch.stack(
            [self._modulation(i)(h).view(STEPS, 6, -1) for i in range(self.config.depth)], dim=1
        )
        table[:, :, [1, 4]] += 1
        scale, shift = self.last_modulation(h).chunk(2, dim=-1)
        for block in self.blocks:
            del block.modulation
        del self.time_in, self.time_out, self.last_modulation
        self.to(dtype)
        for conv in (
            self._convolutions()
        ):  # inputs and outputs of a tap lie side by side, as the kernel reads them
            conv.weight.data = conv.weight.data.permute(2, 1, 0).contiguous().permute(2, 1, 0)
        self.register_buffer("modulations", table.to(dtype), persistent=False)
        self.register_buffer(
            "last", torch.stack((scale + 1, shift), dim=1).to(dtype), persistent=False
        )
        rotations = angles(self.config.head_dim, FLOW_FRAMES, 1e4)
        self.rope = Rope(rotations, torch.float32, interleaved=True, in_float32=True).to(
            table.device
        )

    def _convolutions(self) -> list[nn.Conv1d]:
        return [conv for conv in self.positions if isinstance(conv, nn.Conv1d)]

    def _modulation(self, block: int) -> nn.Module:
        return self.blocks[block].get_submodule("modulation")

    def rope_at(self, where: Tensor) -> Turns:
        """For frames at where [B, T], counted from the first frame of the prompt."""
        assert self.rope is not None
        return Turns(self.rope.cos[where], self.rope.sin[where])

    def conditions(self, cond: Tensor, mu: Tensor, speaker: Tensor) -> Tensor:
        """The input projection's share of what stays during all steps: cond, mu [B, T, 80], speaker [B, 80].

        [B, 2, T, C]. The second branch is unconditional: it has zeros in their place.
        """
        weight = self.input.weight
        bias = self.input.bias
        given = torch.cat((cond, mu, speaker[:, None].expand_as(mu)), dim=-1).to(weight.dtype)
        first = F.linear(given, weight[:, MELS:], bias)
        return torch.stack((first, bias.expand_as(first)), dim=1)

    def forward(
        self, x: Tensor, fixed: Tensor, step: int, keys: Keys, rope: Turns, state: State
    ) -> tuple[Tensor, list[Tensor]]:
        """x [B, T, 80] -> velocities [B, 2, T, 80], and the tails [B, 2, 30, C] of both convolutions."""
        h = fixed + F.linear(x.to(fixed.dtype), self.input.weight[:, :MELS])[:, None]
        first, second = self._convolutions()
        y = position_conv(first, h, state["dit.0"][:, step])
        tails = [tail_of(h), tail_of(y)]
        h = position_conv(second, y, state["dit.1"][:, step], residual=h)
        left: Left = (None, self.last[step, 0])
        for i, block in enumerate(self.blocks):
            h, left = block(h, left, self.modulations[step, i], (step, i), keys, rope)
        out: Tensor = self.output(add_norm(h, *left, *self.last[step])[1])
        return out.float(), tails


PAST = 2
"""Codes before a cell that its first frames depend on."""


class LookAhead(nn.Module):
    """Each code with the three after it and the two before: [B, 2 + n + 3, 80] -> [B, n, 80]."""

    def __init__(self, c: FlowConfig) -> None:
        super().__init__()
        self.conv1 = nn.Conv1d(MELS, c.look_channels, c.look + 1)
        self.conv2 = nn.Conv1d(c.look_channels, MELS, PAST + 1)
        self.ahead = c.look

    def forward(self, x: Tensor, begun: Tensor) -> Tensor:
        """begun [B, 2 + n]: whether a code is one of the stream's. What is before the stream is zero in both layers."""
        y = (
            F.leaky_relu(taps_product(self.conv1.weight, self.conv1.bias, x), 0.01)
            * begun[..., None]
        )
        return (
            taps_product(self.conv2.weight, self.conv2.bias, y)
            + x[:, PAST : x.shape[1] - self.ahead]
        )


class Flow(nn.Module):
    """Parameters start on the meta device in float32. Frames and codes are counted from the first one of the prompt."""

    noise: Tensor
    lengths: Tensor

    def __init__(self, c: FlowConfig) -> None:
        super().__init__()
        self.config = c
        self.input_embedding = nn.Embedding(c.codes, MELS)
        self.spk_embed_affine_layer = nn.Linear(SPEAKER, MELS)
        self.look = LookAhead(c)
        self.dit = DiT(c)

    def process_weights_after_loading(self, noise: Tensor, dtype: torch.dtype) -> None:
        """noise: `codec_noise.flow_noise`. dtype: of the transformer. All else stays float32."""
        device = self.input_embedding.weight.device
        self.register_buffer("noise", noise.to(device), persistent=False)
        self.register_buffer("lengths", step_times().length.to(device), persistent=False)
        self.dit.process_weights_after_loading(dtype)

    def columns(self) -> dict[str, Column]:
        """State of a stream beside its keys and values."""
        return self.dit.columns(self.dit.output.weight.dtype)

    def speaker(self, embedding: Tensor) -> Tensor:
        """A speaker embedding [B, 192] of any length -> [B, 80]."""
        out: Tensor = self.spk_embed_affine_layer(F.normalize(embedding, dim=-1, eps=1e-12))
        return out

    def means(self, codes: Tensor, first: Tensor, end: Tensor) -> Tensor:
        """codes [B, 2 + n + 3] from code first - 2 on -> mu [B, 2 n, 80] of codes first .. first + n - 1.

        first, end [B]: there are no codes below 0, and none from `end` on: zeros stand in their place.
        """
        at = first[:, None] - PAST + torch.arange(codes.shape[1], device=codes.device)
        exist = (at >= 0) & (at < end[:, None])
        x = self.input_embedding(codes.clamp(0, self.config.codes - 1)) * exist[..., None]
        mu: Tensor = self.look(x, (at >= 0)[:, : codes.shape[1] - self.config.look])
        return mu.repeat_interleave(self.config.ratio, dim=1)

    def solve(
        self, mu: Tensor, cond: Tensor, speaker: Tensor, at: Tensor, keys: Keys, state: State
    ) -> tuple[Tensor, State]:
        """Ten Euler steps with guidance on frames at [B] .. of mu, cond [B, T, 80] -> mel [B, T, 80] and next state."""
        where = (at[:, None] + torch.arange(mu.shape[1], device=mu.device)).clamp_max(
            len(self.noise) - 1
        )
        x = self.noise[where]
        rope = self.dit.rope_at(where)
        fixed = self.dit.conditions(cond, mu, speaker)
        tails = []
        guidance = self.config.guidance
        for step in range(STEPS):
            v, tail = self.dit(x, fixed, step, keys, rope, state)
            x = x + self.lengths[step] * ((1 + guidance) * v[:, 0] - guidance * v[:, 1])
            tails.append(tail)
        first, second = zip(*tails, strict=True)
        return x, {"dit.0": torch.stack(first, dim=1), "dit.1": torch.stack(second, dim=1)}

    def whole(self, mu: Tensor, cond: Tensor, speaker: Tensor, count: Tensor) -> Tensor:
        """Run the flow on whole rows, of which the first `count` [B] frames exist and all see each other."""
        fresh = {n: c.rows(len(mu), mu.device) for n, c in self.columns().items()}
        return self.solve(
            mu, cond, speaker, torch.zeros_like(count), CallKeys(count, mu.shape[1]), fresh
        )[0]

"""Flow matching, codes to mel frames, by a diffusion transformer (DiT) over both branches of
guidance at once.

A call solves whole rows, from the first frame of their prompts on.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from stentor import kernels
from stentor.kernels import Kernel
from stentor.layers.attention import sdpa
from stentor.layers.linear import linear_gelu
from stentor.layers.rope import Rope, angles
from stentor.models.cosyvoice3.codec_noise import FLOW_FRAMES
from stentor.models.cosyvoice3.config import MELS, SPEAKER, TAIL, FlowConfig
from stentor.models.cosyvoice3.ops import add_norm, by_row, position_conv, taps_product


class Turns(NamedTuple):
    """RoPE of the first head alone, as in the original: cos and sin [B, T, D / 2] float32 of the
    frames of a call."""

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


def fused(qkv: Tensor, rope: Turns) -> bool:
    """Whether a kernel attends."""
    if not kernels.enabled(Kernel.PAGED, qkv):
        return False
    from stentor.models.cosyvoice3.kernels import takes

    return takes(rope.head_dim)


class Attention:
    """Attention of the frames of one call, each to those of its row and branch.

    count [B]: frames of each row that exist. chunk: frames of a chunk of the streamed solution.
    ended [B] bool: rows whose utterance has ended, so that every frame attends to all. In other
    rows a frame attends to its own chunk and those before.
    """

    def __init__(self, count: Tensor, ended: Tensor, chunk: int) -> None:
        self._count = count
        self._ended = ended
        self._chunk = chunk
        self._mask: Tensor | None = None
        self._turned: Tensor | None = None  # room for keys and values of one block at a time

    def attend(self, qkv: Tensor, rope: Turns) -> Tensor:
        """qkv [B, 2, T, 3 C] as projected -> [B, 2, T, C]. The two branches do not see each
        other."""
        if fused(qkv, rope):
            from stentor.models.cosyvoice3.attention_kernels import row_attention

            batch, _, frames, width = qkv.shape
            if self._turned is None:
                self._turned = qkv.new_empty(batch, 2, 2, frames, width // 3)
            heads = width // 3 // rope.head_dim
            rows = (self._count, self._ended, self._chunk)
            return row_attention(qkv, *rope, rows, heads, self._turned)
        if self._mask is None:
            self._mask = self._attended(qkv.shape[2]).repeat_interleave(2, 0)[:, None]
        q, k, v = (t.flatten(0, 1) for t in rope.heads(qkv))
        return sdpa(q, k, v, self._mask).reshape(*qkv.shape[:3], -1)

    def _attended(self, frames: int) -> Tensor:
        """[B, T, T] bool: the keys that each frame attends to."""
        at = torch.arange(frames, device=self._count.device)
        until = torch.minimum((at // self._chunk + 1) * self._chunk, self._count[:, None])
        until = torch.where(self._ended[:, None], self._count[:, None], until)
        return at < until[..., None]


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
    """A cosine schedule. Times accumulate in float32, and each length is measured from the
    accumulated time."""
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
        attention: Attention,
        rope: Turns,
    ) -> Added:
        """modulation [6, C]: shift, scale and gate of each branch, the scales with 1 added."""
        shift, scale, gate, shift2, scale2, gate2 = modulation
        x, y = add_norm(x, *left, scale, shift)
        attended = self.o_proj(attention.attend(self.qkv_proj(y), rope))
        x, y = add_norm(x, attended, gate, scale2, shift2)
        return x, (self.down(linear_gelu(self.up, y)), gate2)


class DiT(nn.Module):
    """Parameters start on the meta device."""

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

    @torch.no_grad()
    def process_weights_after_loading(self, dtype: torch.dtype) -> None:
        """Nothing but the time enters the modulations: they become a table of the ten steps, and
        their weights go."""
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
        # inputs and outputs of a tap lie side by side, as the kernel reads them
        for conv in self._convolutions():
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
        """The input projection's share of what stays during all steps: cond, mu [B, T, 80], speaker
        [B, 80].

        [B, 2, T, C]. The second branch is unconditional: it has zeros in their place.
        """
        weight = self.input.weight
        bias = self.input.bias
        inputs = torch.cat((cond, mu, speaker[:, None].expand_as(mu)), dim=-1).to(weight.dtype)
        first = F.linear(inputs, weight[:, MELS:], bias)
        return torch.stack((first, bias.expand_as(first)), dim=1)

    def forward(
        self, x: Tensor, fixed: Tensor, step: int, attention: Attention, rope: Turns
    ) -> Tensor:
        """x [B, T, 80] -> velocities [B, 2, T, 80] float32."""
        h = fixed + F.linear(x.to(fixed.dtype), self.input.weight[:, :MELS])[:, None]
        first, second = self._convolutions()
        y = position_conv(first, h)
        h = position_conv(second, y, residual=h)
        pending: Left = (None, self.last[step, 0])
        for i, block in enumerate(self.blocks):
            h, pending = block(h, pending, self.modulations[step, i], attention, rope)
        out: Tensor = self.output(add_norm(h, *pending, *self.last[step])[1])
        return out.float()


PAST = 2
"""Codes before one that its frames depend on."""


class LookAhead(nn.Module):
    """Each code with the three after it and the two before: [B, 2 + n + 3, 80] -> [B, n, 80]."""

    def __init__(self, c: FlowConfig) -> None:
        super().__init__()
        self.conv1 = nn.Conv1d(MELS, c.look_channels, c.look + 1)
        self.conv2 = nn.Conv1d(c.look_channels, MELS, PAST + 1)
        self.ahead = c.look

    def forward(self, x: Tensor) -> Tensor:
        """The two columns before the first code are zero in both layers."""
        y = F.leaky_relu(taps_product(self.conv1.weight, self.conv1.bias, x), 0.01)
        y = F.pad(y[:, PAST:], (0, 0, PAST, 0))
        return (
            taps_product(self.conv2.weight, self.conv2.bias, y)
            + x[:, PAST : x.shape[1] - self.ahead]
        )


class Flow(nn.Module):
    """Parameters start on the meta device in float32. Frames and codes are counted from the first
    one of the prompt."""

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

    def speaker(self, embedding: Tensor) -> Tensor:
        """A speaker embedding [B, 192] of any length -> [B, 80]."""

        def project(rows: Tensor) -> Tensor:
            normalized = F.normalize(rows, dim=-1, eps=1e-12)
            out: Tensor = self.spk_embed_affine_layer(normalized)
            return out

        return by_row(project, embedding)

    def means(self, codes: Tensor, end: Tensor) -> Tensor:
        """codes [B, n] from the prompt's first one on -> mu [B, 2 n, 80].

        end [B]: from there on, zeros stand in the place of codes, as before the first one.
        """
        at = torch.arange(codes.shape[1], device=codes.device)
        x = self.input_embedding(codes.clamp(0, self.config.codes - 1))
        x = x * (at < end[:, None])[..., None]
        x = F.pad(x, (0, 0, PAST, self.config.look))
        mu: Tensor = self.look(x)
        return mu.repeat_interleave(self.config.ratio, dim=1)

    def solve(
        self, mu: Tensor, cond: Tensor, speaker: Tensor, count: Tensor, ended: Tensor
    ) -> Tensor:
        """Ten Euler steps with guidance on rows of T frames -> mel [B, T, 80].

        mu, cond [B, T, 80], speaker [B, 80]. count [B]: frames that exist. ended [B] bool: rows
        whose utterance has ended (see `Attention`).
        """
        where = torch.arange(mu.shape[1], device=mu.device).clamp_max(len(self.noise) - 1)
        x = self.noise[where].expand(len(mu), -1, -1)
        rope = self.dit.rope_at(where.expand(len(mu), -1))
        fixed = self.dit.conditions(cond, mu, speaker)
        attention = Attention(count, ended, self.config.ratio * self.config.chunk)
        guidance = self.config.guidance
        for step in range(STEPS):
            v = self.dit(x, fixed, step, attention, rope)
            x = x + self.lengths[step] * ((1 + guidance) * v[:, 0] - guidance * v[:, 1])
        return x

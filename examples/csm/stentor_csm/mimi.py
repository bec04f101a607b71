"""Modules that Mimi's decoder and encoder share, named as in the checkpoint."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from stentor.layers.attention import Attend
from stentor.layers.conv import (
    CausalConv1d,
    CausalConvTranspose1d,
    CausalModule,
    StreamingState,
    convolve,
)
from stentor.layers.linear import Linear
from stentor.layers.qk_norm_rope import RopePositions
from stentor.layers.rope import Rope
from stentor.layers.transformer import Attention
from stentor_csm.config import MimiConfig

USAGE_FLOOR = 1e-5


class ResnetBlock(nn.Module):
    """x + conv1x1(elu(conv(elu(x)))), x [B, C, n]."""

    def __init__(self, channels: int, c: MimiConfig) -> None:
        super().__init__()
        inner = channels // c.compress
        wide, narrow = (
            CausalConv1d(channels, inner, c.residual_kernel),
            CausalConv1d(inner, channels, 1),
        )
        self.block = nn.ModuleList([nn.ELU(), wide, nn.ELU(), narrow])

    def forward(self, x: Tensor, state: StreamingState | None = None) -> Tensor:
        _, wide, _, narrow = self.block
        return convolve(narrow, F.elu(convolve(wide, F.elu(x), state)), state, residual=x)


class DepthwiseUpsample(CausalModule):
    """A transposed convolution of each channel by itself, with a kernel of 2 * stride.

    x [B, C, n] -> [B, C, n * stride].
    """

    def __init__(self, channels: int, stride: int) -> None:
        super().__init__(channels, 1)
        self.weight = nn.Parameter(torch.empty(channels, 1, 2 * stride))
        self.bias = None
        self.stride = stride

    def forward(self, x: Tensor, state: StreamingState | None = None) -> Tensor:
        length, x = x.shape[-1] * self.stride, self.with_history(x, state)
        y = F.conv_transpose1d(x, self.weight, None, self.stride, groups=self.channels)
        return y[..., self.stride : self.stride + length]


class MLP(nn.Module):
    def __init__(self, hidden: int, ffn: int) -> None:
        super().__init__()
        self.fc1 = Linear(hidden, ffn, bias=False)
        self.fc2 = Linear(ffn, hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.fc2(F.gelu(self.fc1(x)))
        return out


class Scale(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.empty(channels))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.scale


class Layer(nn.Module):
    """A pre-norm block with LayerNorm, a plain MLP, and a gain for each branch."""

    def __init__(self, c: MimiConfig) -> None:
        super().__init__()
        s = c.stack
        self.input_layernorm = nn.LayerNorm(s.hidden, eps=s.eps)
        self.self_attn = Attention(s)
        self.self_attn_layer_scale = Scale(s.hidden)
        self.post_attention_layernorm = nn.LayerNorm(s.hidden, eps=s.eps)
        self.mlp = MLP(s.hidden, s.ffn)
        self.mlp_layer_scale = Scale(s.hidden)

    def forward(self, x: Tensor, layer: int, attend: Attend, positions: RopePositions) -> Tensor:
        x = x + self.self_attn_layer_scale(
            self.self_attn(self.input_layernorm(x), layer, attend, positions)
        )
        out: Tensor = x + self.mlp_layer_scale(self.mlp(self.post_attention_layernorm(x)))
        return out


class Transformer(nn.Module):
    """Windowed attention over [B, n, hidden]."""

    def __init__(self, c: MimiConfig) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer(c) for _ in range(c.stack.layers))

    def forward(self, x: Tensor, attend: Attend, rope: Rope, pos: Tensor) -> Tensor:
        positions = RopePositions(rope, pos)
        for i, layer in enumerate(self.layers):
            x = layer(x, i, attend, positions)
        return x


class Codebook(nn.Module):
    def __init__(self, c: MimiConfig) -> None:
        super().__init__()
        self.cluster_usage = nn.Parameter(torch.empty(c.codebook_size))
        self.embed_sum = nn.Parameter(torch.empty(c.codebook_size, c.codebook_dim))
        self.initialized = nn.Parameter(torch.empty(1))

    @property
    def centroids(self) -> Tensor:
        """[codebook_size, codebook_dim] in float32 at least."""
        return self.embed_sum / self.cluster_usage.clamp_min(USAGE_FLOOR)[:, None]


class Quantizer(nn.Module):
    def __init__(self, c: MimiConfig, codebooks: int) -> None:
        super().__init__()
        if c.quantizer_dim != c.stack.hidden:
            self.input_proj = nn.Conv1d(c.stack.hidden, c.quantizer_dim, 1, bias=False)
            self.output_proj = nn.Conv1d(c.quantizer_dim, c.stack.hidden, 1, bias=False)
        self.projects = c.quantizer_dim != c.stack.hidden
        self.layers = nn.ModuleList(
            nn.ModuleDict({"codebook": Codebook(c)}) for _ in range(codebooks)
        )

    def tables(self) -> list[Tensor]:
        """Latent that each code adds: a table [codebook_size, hidden] for each codebook."""
        found = [layer["codebook"].centroids for layer in self.layers]
        return [
            F.linear(t, self.output_proj.weight[:, :, 0]) if self.projects else t for t in found
        ]

    def encode(self, x: Tensor, codebooks: int) -> list[Tensor]:
        """Latents [n, hidden] -> the nearest centroid [n] of what the codebooks before have left, for each."""
        residual = F.linear(x, self.input_proj.weight[:, :, 0]) if self.projects else x
        codes = []
        for layer in self.layers[:codebooks]:
            centroids = layer["codebook"].centroids
            nearest = torch.cdist(residual[None], centroids[None])[0].argmin(-1)
            residual = residual - centroids[nearest]
            codes.append(nearest)
        return codes


class SplitQuantizer(nn.Module):
    """The first codebook, which says what is spoken, and all others, both of the same latents."""

    def __init__(self, c: MimiConfig) -> None:
        super().__init__()
        self.semantic_residual_vector_quantizer = Quantizer(c, 1)
        self.acoustic_residual_vector_quantizer = Quantizer(c, c.quantizers - 1)

    def tables(self) -> list[Tensor]:
        return (
            self.semantic_residual_vector_quantizer.tables()
            + self.acoustic_residual_vector_quantizer.tables()
        )

    def encode(self, x: Tensor, codebooks: int) -> Tensor:
        """Latents [n, hidden] -> codes [n, codebooks]."""
        first = self.semantic_residual_vector_quantizer.encode(x, 1)
        return torch.stack(
            [*first, *self.acoustic_residual_vector_quantizer.encode(x, codebooks - 1)], dim=-1
        )


def decoder_layers(c: MimiConfig) -> nn.ModuleList:
    """Latents [B, hidden, n] -> samples [B, 1, n * prod(ratios)]."""
    width = c.filters * 2 ** len(c.ratios)
    layers: list[nn.Module] = [CausalConv1d(c.stack.hidden, width, c.kernel)]
    for ratio in c.ratios:
        width //= 2
        layers += [nn.ELU(), CausalConvTranspose1d(2 * width, width, ratio), ResnetBlock(width, c)]
    return nn.ModuleList([*layers, nn.ELU(), CausalConv1d(width, 1, c.last_kernel)])


class StridedConv1d(CausalConv1d):
    """One output for each `stride` inputs, of whole recordings: what is missing at the end is padded."""

    def __init__(
        self, inputs: int, outputs: int, stride: int, bias: bool = True, mode: str = "constant"
    ) -> None:
        super().__init__(inputs, outputs, 2 * stride, stride=stride, bias=bias, left=stride)
        self.mode = mode

    def forward(self, x: Tensor, state: StreamingState | None = None) -> Tensor:
        x = F.pad(x, (self.stride, -x.shape[-1] % self.stride), self.mode)
        return F.conv1d(x, self.weight, self.bias, self.stride)


def encoder_layers(c: MimiConfig) -> nn.ModuleList:
    """Samples [B, 1, n] -> [B, hidden, ceil(n / prod(ratios))]."""
    width = c.filters
    layers: list[nn.Module] = [CausalConv1d(1, width, c.kernel)]
    for ratio in reversed(c.ratios):
        layers += [ResnetBlock(width, c), nn.ELU(), StridedConv1d(width, 2 * width, ratio)]
        width *= 2
    return nn.ModuleList([*layers, nn.ELU(), CausalConv1d(width, c.stack.hidden, c.last_kernel)])


def run_layers(layers: nn.ModuleList, x: Tensor, state: StreamingState | None) -> Tensor:
    """Convolutions, blocks and activations in turn."""
    for layer in layers:
        x = layer(x) if isinstance(layer, nn.ELU) else layer(x, state)
    return x

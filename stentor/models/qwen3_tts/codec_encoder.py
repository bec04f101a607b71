"""The 12 Hz codec's encoder: reference audio to codes (the encoder half of Mimi, Defossez et al., 2024).

It runs once per voice, whole, but the convolutions take a window at a time.
"""

from __future__ import annotations

from math import prod

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from stentor.layers.attention import causal
from stentor.layers.conv import CausalConv1d, StreamingState, in_windows, state_columns
from stentor.layers.qk_norm_rope import RopePositions
from stentor.layers.rope import Rope, angles
from stentor.layers.transformer import Attention
from stentor.models.qwen3_tts.codec_decoder import USAGE_FLOOR, LayerScale
from stentor.models.qwen3_tts.config import EncoderConfig


class PaddedConv1d(CausalConv1d):
    """Causal convolution whose input is padded on the right to a whole number of strides."""

    def __init__(
        self, inputs: int, outputs: int, kernel: int, stride: int = 1, dilation: int = 1, bias: bool = True
    ) -> None:
        left = (kernel - 1) * dilation + 1 - stride
        super().__init__(inputs, outputs, kernel, dilation, stride=stride, bias=bias, left=left)

    def forward(self, x: Tensor, state: StreamingState | None = None) -> Tensor:
        missing = -x.shape[-1] % self.stride
        return super().forward(F.pad(x, (0, missing)) if missing else x, state)


class Downsample(PaddedConv1d):
    """The same with the first and the last column repeated as padding. Whole sequences only."""

    def forward(self, x: Tensor, state: StreamingState | None = None) -> Tensor:
        padded = F.pad(x, (self.tail, -x.shape[-1] % self.stride), "replicate")
        return F.conv1d(padded, self.weight, self.bias, self.stride)


class ResnetBlock(nn.Module):
    def __init__(self, channels: int, c: EncoderConfig, dilation: int) -> None:
        super().__init__()
        inner = channels // c.compress
        first = PaddedConv1d(channels, inner, c.residual_kernel, dilation=dilation)
        self.block = Convolutions(nn.ELU(), first, nn.ELU(), PaddedConv1d(inner, channels, 1))

    def forward(self, x: Tensor, state: StreamingState | None) -> Tensor:
        out: Tensor = x + self.block(x, state)
        return out


class Convolutions(nn.Sequential):
    """Layers one after the other, over whole sequences or in chunks."""

    def forward(self, x: Tensor, state: StreamingState | None = None) -> Tensor:
        for layer in self:
            x = layer(x) if isinstance(layer, nn.ELU) else layer(x, state)
        return x


def convolutions(c: EncoderConfig) -> Convolutions:
    """The SEANet stack: samples [B, 1, n] -> [B, hidden, ceil(n / prod(ratios))]."""
    width = c.filters
    layers: list[nn.Module] = [PaddedConv1d(1, width, c.kernel)]
    for ratio in reversed(c.ratios):
        layers += [ResnetBlock(width, c, c.growth**i) for i in range(c.residual_layers)]
        layers += [nn.ELU(), PaddedConv1d(width, 2 * width, 2 * ratio, stride=ratio)]
        width *= 2
    return Convolutions(*layers, nn.ELU(), PaddedConv1d(width, c.stack.hidden, c.last_kernel))


class EncoderMLP(nn.Module):
    def __init__(self, hidden: int, ffn: int) -> None:
        super().__init__()
        self.fc1 = nn.Linear(hidden, ffn, bias=False)
        self.fc2 = nn.Linear(ffn, hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.fc2(F.gelu(self.fc1(x)))
        return out


class EncoderBlock(nn.Module):
    def __init__(self, c: EncoderConfig) -> None:
        super().__init__()
        s = c.stack
        self.input_layernorm = nn.LayerNorm(s.hidden, eps=s.eps)
        self.self_attn = Attention(s)
        self.self_attn_layer_scale = LayerScale(s.hidden)
        self.post_attention_layernorm = nn.LayerNorm(s.hidden, eps=s.eps)
        self.mlp = EncoderMLP(s.hidden, s.ffn)
        self.mlp_layer_scale = LayerScale(s.hidden)

    def forward(self, x: Tensor, positions: RopePositions) -> Tensor:
        x = x + self.self_attn_layer_scale(self.self_attn(self.input_layernorm(x), 0, causal, positions))
        out: Tensor = x + self.mlp_layer_scale(self.mlp(self.post_attention_layernorm(x)))
        return out


class EncoderTransformer(nn.Module):
    def __init__(self, c: EncoderConfig) -> None:
        super().__init__()
        self.layers = nn.ModuleList(EncoderBlock(c) for _ in range(c.stack.layers))

    def forward(self, x: Tensor, rope: Rope) -> Tensor:
        """x [B, n, hidden]. Full causal attention: the reference builds no window mask for this stack."""
        positions = RopePositions(rope)
        for block in self.layers:
            x = block(x, positions)
        return x


class EncoderCodebook(nn.Module):
    def __init__(self, size: int, dim: int) -> None:
        super().__init__()
        self.cluster_usage = nn.Parameter(torch.empty(size))
        self.embed_sum = nn.Parameter(torch.empty(size, dim))

    def forward(self, residual: Tensor) -> tuple[Tensor, Tensor]:
        """residual [B, n, dim] -> nearest centroids [B, n] and the next residual."""
        table = (self.embed_sum / self.cluster_usage.clamp_min(USAGE_FLOOR)[:, None]).float()
        nearest = torch.cdist(residual, table[None]).argmin(-1)
        return nearest, residual - table[nearest]


class QuantizerLayer(nn.Module):
    def __init__(self, size: int, dim: int) -> None:
        super().__init__()
        self.codebook = EncoderCodebook(size, dim)

    def forward(self, residual: Tensor) -> tuple[Tensor, Tensor]:
        out: tuple[Tensor, Tensor] = self.codebook(residual)
        return out


class ResidualQuantizer(nn.Module):
    """Nearest centroid of the residual of the codebooks before."""

    def __init__(self, c: EncoderConfig, codebooks: int) -> None:
        super().__init__()
        self.input_proj = nn.Conv1d(c.stack.hidden, c.quantizer_dim, 1, bias=False)
        self.layers = nn.ModuleList(QuantizerLayer(c.codebook_size, c.codebook_dim) for _ in range(codebooks))

    def forward(self, x: Tensor) -> Tensor:
        """x [B, hidden, n] -> codes [B, n, codebooks]."""
        residual = self.input_proj(x).transpose(1, 2).float()
        codes = []
        for layer in self.layers:
            nearest, residual = layer(residual)
            codes.append(nearest)
        return torch.stack(codes, dim=-1)


class SplitResidualQuantizer(nn.Module):
    def __init__(self, c: EncoderConfig) -> None:
        super().__init__()
        self.semantic_residual_vector_quantizer = ResidualQuantizer(c, c.semantic)
        self.acoustic_residual_vector_quantizer = ResidualQuantizer(c, c.used - c.semantic)

    def forward(self, x: Tensor) -> Tensor:
        both = (self.semantic_residual_vector_quantizer(x), self.acoustic_residual_vector_quantizer(x))
        return torch.cat(both, dim=-1)


class Encoder(nn.Module):
    """Samples to codes, named as in the checkpoint. `process_weights_after_loading` must follow the loading."""

    def __init__(self, c: EncoderConfig) -> None:
        super().__init__()
        self.config = c
        self.encoder = nn.ModuleDict({"layers": convolutions(c)})
        self.columns = state_columns(self.encoder["layers"])
        self.encoder_transformer = EncoderTransformer(c)
        self.downsample = Downsample(c.stack.hidden, c.stack.hidden, 4, stride=2, bias=False)
        self.quantizer = SplitResidualQuantizer(c)
        self.rope: Rope | None = None

    def process_weights_after_loading(self, samples: int) -> None:
        """Make the RoPE table for references of up to `samples` samples."""
        c, weight = self.config, self.downsample.weight
        positions = -(-samples // prod(c.ratios))
        rope = Rope(angles(c.stack.head_dim, positions, c.theta), weight.dtype, interleaved=False, in_float32=False)
        self.rope = rope.to(weight.device)

    def forward(self, samples: Tensor) -> Tensor:
        """samples [n] at 24 kHz -> codes [ceil(n / hop), used]."""
        assert self.rope is not None, "process_weights_after_loading comes first"
        wav = samples[None, None].to(self.downsample.weight.dtype)
        x = in_windows(self.encoder["layers"], wav, prod(self.config.ratios), self.columns)
        x = self.encoder_transformer(x.transpose(1, 2), self.rope).transpose(1, 2)
        codes: Tensor = self.quantizer(self.downsample(x))[0]
        return codes[: -(-samples.shape[0] // self.config.hop)]

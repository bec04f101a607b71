"""The 12 Hz codec: 16 codes per frame to 1920 samples, causal and exact in chunks, and reference
audio to codes.

The encoder (that half of Mimi, Defossez et al., 2024) runs once per voice, whole, but its
convolutions take a window at a time.
"""

from __future__ import annotations

from collections import OrderedDict
from math import prod

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from stentor.layers.attention import Attend, causal
from stentor.layers.configs import FrameDecoderConfig
from stentor.layers.conv import (
    CausalConv1d,
    StreamingState,
    cast_codec,
    convolve,
    state_columns,
    upcast,
)
from stentor.layers.frame_decoder import FrameDecoder, LayerScale, ScaledStack
from stentor.layers.linear import Linear
from stentor.layers.qk_norm_rope import RopePositions
from stentor.layers.rope import Rope, angles
from stentor.layers.transformer import Attention
from stentor.layers.types import Launch, eager
from stentor.layers.windows import Windows, padded, step_of
from stentor.models.qwen3_tts.config import EncoderConfig

USAGE_FLOOR = 1e-5


class DecoderTransformer(ScaledStack):
    """Windowed self-attention over frames: latent [B, n, latent] -> the same."""

    def __init__(self, c: FrameDecoderConfig) -> None:
        super().__init__(c.stack)
        self.input_proj = Linear(c.latent, c.stack.hidden)
        self.output_proj = Linear(c.stack.hidden, c.latent)

    def forward(
        self, x: Tensor, attend: Attend, rope: Rope | None = None, pos: Tensor | None = None
    ) -> Tensor:
        out: Tensor = self.output_proj(super().forward(self.input_proj(x), attend, rope, pos))
        return out


class Codebook(nn.Module):
    def __init__(self, size: int, dim: int) -> None:
        super().__init__()
        self.cluster_usage = nn.Parameter(torch.empty(size))
        self.embedding_sum = nn.Parameter(torch.empty(size, dim))

    def forward(self) -> Tensor:
        """Centroids [size, dim]."""
        return self.embedding_sum / self.cluster_usage.clamp_min(USAGE_FLOOR)[:, None]


class Quantizer(nn.Module):
    """Residual codebooks between one pair of projections, in the checkpoint's layout."""

    def __init__(self, c: FrameDecoderConfig, codebooks: int) -> None:
        super().__init__()
        inner = c.codebook_dim // 2
        books = (
            nn.ModuleDict({"_codebook": Codebook(c.codebook_size, inner)}) for _ in range(codebooks)
        )
        self.vq = nn.ModuleDict({"layers": nn.ModuleList(books)})
        self.input_proj = nn.Conv1d(c.codebook_dim, inner, 1, bias=False)
        self.output_proj = nn.Conv1d(inner, c.codebook_dim, 1, bias=False)

    def tables(self) -> list[Tensor]:
        """One table [codebook_size, codebook_dim] per codebook, projected."""
        weight = self.output_proj.weight[:, :, 0]
        return [F.linear(book(), weight) for book in self.modules() if isinstance(book, Codebook)]


class Decoder(FrameDecoder):
    """The decoder as the checkpoint names it. `process_weights_after_loading` must follow the
    loading of weights."""

    def __init__(self, c: FrameDecoderConfig) -> None:
        super().__init__(c)
        self.quantizer = nn.ModuleDict(
            {"rvq_first": Quantizer(c, 1), "rvq_rest": Quantizer(c, c.codebooks - 1)}
        )
        self.pre_conv = CausalConv1d(c.codebook_dim, c.latent, 3)
        self.pre_transformer = DecoderTransformer(c)
        self.add_convolutions()

    def process_weights_after_loading(self, dtype: torch.dtype | None = None) -> None:
        """Prepare for decoding, once.

        In the precision of the weights, the 16 codebooks and their projections become one table,
        gains are multiplied into the weights in front of them, and the RoPE table is made. Then the
        weights are rounded to `dtype` unless it is None.
        """
        self.fold_gains()
        parts = [part for part in self.quantizer.children() if isinstance(part, Quantizer)]
        tables = [table for part in parts for table in part.tables()]
        del self.quantizer
        self.finish(torch.cat(tables), dtype)

    def latents(self, codes: Tensor, state: StreamingState | None) -> Tensor:
        return convolve(self.pre_conv, self.embed(codes).transpose(1, 2), state).transpose(1, 2)


EVEN = 2  # columns that `Downsample` makes one of


class PaddedConv1d(CausalConv1d):
    """Causal convolution whose input counts as padded with zeros to a whole number of strides."""

    def __init__(
        self, inputs: int, outputs: int, kernel: int, stride: int = 1, dilation: int = 1
    ) -> None:
        padding = (kernel - 1) * dilation + 1 - stride
        super().__init__(inputs, outputs, kernel, dilation, stride=stride, left=padding)


class Downsample(CausalConv1d):
    """Two steps to one, with the first and the last step repeated as padding. Whole sequences
    only."""

    def __init__(self, channels: int) -> None:
        super().__init__(channels, channels, 4, stride=2, bias=False, left=0)

    def whole(self, x: Tensor) -> Tensor:
        """x [B, C, n] -> [B, C, ceil(n / 2)]."""
        return convolve(self, F.pad(x, (2, x.shape[-1] % 2), "replicate"), None)


class ResnetBlock(nn.Module):
    def __init__(self, channels: int, c: EncoderConfig, dilation: int) -> None:
        super().__init__()
        inner = channels // c.compress
        first = PaddedConv1d(channels, inner, c.residual_kernel, dilation=dilation)
        self.block = nn.ModuleList([nn.ELU(), first, nn.ELU(), PaddedConv1d(inner, channels, 1)])

    def forward(self, x: Tensor, state: StreamingState | None) -> Tensor:
        act, first, _, second = self.block
        return convolve(second, act(convolve(first, act(x), state)), state, residual=x)


class Convolutions(nn.ModuleList):
    """Layers one after the other, over pieces of whole strides."""

    def forward(self, x: Tensor, state: StreamingState | None, count: Tensor) -> Tensor:
        """Encode x [B, C, n], of which `count` [] columns are of the recording. What follows is
        zeros in each strided layer's input, as in the reference, which pads there."""
        stride = 1
        for layer in self:
            if not isinstance(layer, PaddedConv1d):
                if isinstance(layer, nn.ELU):
                    x = layer(x)
                else:
                    x = layer(x, state)
                continue
            if layer.stride > 1:
                exists = torch.arange(x.shape[2], device=x.device) * stride < count
                x = torch.where(exists, x, 0)
                stride *= layer.stride
            x = convolve(layer, x, state)
        return x


def convolutions(c: EncoderConfig) -> Convolutions:
    """The SEANet stack: samples [B, 1, n] -> [B, hidden, ceil(n / prod(ratios))]."""
    width = c.filters
    layers: list[nn.Module] = [PaddedConv1d(1, width, c.kernel)]
    for ratio in reversed(c.ratios):
        layers += [ResnetBlock(width, c, c.growth**i) for i in range(c.residual_layers)]
        layers += [nn.ELU(), PaddedConv1d(width, 2 * width, 2 * ratio, stride=ratio)]
        width *= 2
    return Convolutions([*layers, nn.ELU(), PaddedConv1d(width, c.stack.hidden, c.last_kernel)])


class EncoderBlock(nn.Module):
    def __init__(self, c: EncoderConfig) -> None:
        super().__init__()
        s = c.stack
        self.input_layernorm = nn.LayerNorm(s.hidden, eps=s.eps)
        self.self_attn = Attention(s)
        self.self_attn_layer_scale = LayerScale(s.hidden)
        self.post_attention_layernorm = nn.LayerNorm(s.hidden, eps=s.eps)
        fc1 = nn.Linear(s.hidden, s.ffn, bias=False)
        fc2 = nn.Linear(s.ffn, s.hidden, bias=False)
        self.mlp = nn.Sequential(OrderedDict(fc1=fc1, act=nn.GELU(), fc2=fc2))
        self.mlp_layer_scale = LayerScale(s.hidden)

    def forward(self, x: Tensor, positions: RopePositions) -> Tensor:
        x = x + self.self_attn_layer_scale(
            self.self_attn(self.input_layernorm(x), 0, causal, positions)
        )
        out: Tensor = x + self.mlp_layer_scale(self.mlp(self.post_attention_layernorm(x)))
        return out


class EncoderTransformer(nn.Module):
    def __init__(self, c: EncoderConfig) -> None:
        super().__init__()
        self.layers = nn.ModuleList(EncoderBlock(c) for _ in range(c.stack.layers))

    def forward(self, x: Tensor, rope: Rope) -> Tensor:
        """x [B, n, hidden]. Full causal attention: the reference builds no window mask for this
        stack."""
        positions = RopePositions(rope)
        for block in self.layers:
            x = block(x, positions)
        return x


class EncoderCodebook(nn.Module):
    table: Tensor
    half_norms: Tensor

    def __init__(self, size: int, dim: int) -> None:
        super().__init__()
        self.cluster_usage = nn.Parameter(torch.empty(size))
        self.embed_sum = nn.Parameter(torch.empty(size, dim))

    def process_weights_after_loading(self) -> None:
        """Work the centroids out once, and half of their squared norms."""
        table = (
            (self.embed_sum / self.cluster_usage.clamp_min(USAGE_FLOOR)[:, None]).detach().float()
        )
        self.register_buffer("table", table, persistent=False)
        self.register_buffer("half_norms", table.square().sum(-1) / 2, persistent=False)
        del self.embed_sum, self.cluster_usage

    def forward(self, residual: Tensor) -> tuple[Tensor, Tensor]:
        """residual [n, dim] -> nearest centroids [n] and the next residual."""
        nearest = torch.addmm(self.half_norms, residual, self.table.T, alpha=-1.0).argmin(-1)
        return nearest, residual - self.table[nearest]


class ResidualQuantizer(nn.Module):
    """Nearest centroid of the residual of the codebooks before."""

    def __init__(self, c: EncoderConfig, codebooks: int) -> None:
        super().__init__()
        self.input_proj = nn.Conv1d(c.stack.hidden, c.quantizer_dim, 1, bias=False)
        books = (EncoderCodebook(c.codebook_size, c.codebook_dim) for _ in range(codebooks))
        self.layers = nn.ModuleList(nn.ModuleDict({"codebook": book}) for book in books)

    def forward(self, x: Tensor) -> Tensor:
        """x [n, hidden] -> codes [n, codebooks]."""
        residual = F.linear(x, self.input_proj.weight[:, :, 0]).float()
        codes = []
        for book in (m for m in self.modules() if isinstance(m, EncoderCodebook)):
            nearest, residual = book(residual)
            codes.append(nearest)
        return torch.stack(codes, dim=-1)


class SplitResidualQuantizer(nn.Module):
    def __init__(self, c: EncoderConfig) -> None:
        super().__init__()
        self.semantic_residual_vector_quantizer = ResidualQuantizer(c, c.semantic)
        self.acoustic_residual_vector_quantizer = ResidualQuantizer(c, c.num_codebooks - c.semantic)

    def forward(self, x: Tensor) -> Tensor:
        both = (
            self.semantic_residual_vector_quantizer(x),
            self.acoustic_residual_vector_quantizer(x),
        )
        return torch.cat(both, dim=-1)


class Encoder(nn.Module):
    """Encoder of 24 kHz samples to codes. Its parameters have the checkpoint's names. Call
    `process_weights_after_loading` once they are loaded."""

    def __init__(self, c: EncoderConfig) -> None:
        super().__init__()
        self.config = c
        self.encoder = nn.ModuleDict({"layers": convolutions(c)})
        layers = self.encoder["layers"]
        self.windows = Windows(layers, prod(c.ratios), state_columns(layers))
        self.encoder_transformer = EncoderTransformer(c)
        self.downsample = Downsample(c.stack.hidden)
        self.quantizer = SplitResidualQuantizer(c)
        self.rope: Rope | None = None
        self.step = step_of(prod(c.ratios), EVEN)

    def process_weights_after_loading(self, samples: int, dtype: torch.dtype) -> None:
        """Make the codebooks, and the RoPE table for references of up to `samples` samples. Then
        round the weights in front of the codebooks to `dtype`."""
        for module in self.modules():
            if isinstance(module, EncoderCodebook):
                module.process_weights_after_loading()
        for part in (self.encoder, self.encoder_transformer, self.downsample):
            cast_codec(part, dtype)
        c = self.config
        weight = self.downsample.weight
        positions = -(-samples // prod(c.ratios)) + self.step
        rope = Rope(
            angles(c.stack.head_dim, positions, c.theta),
            weight.dtype,
            interleaved=False,
            in_float32=False,
        )
        self.rope = rope.to(weight.device)

    def forward(self, samples: Tensor, launch: Launch = eager) -> Tensor:
        """samples [n] at 24 kHz -> codes [ceil(n / hop), used]."""
        (codes,) = launch(self._codes, self._latents(samples, launch))
        return codes[: -(-samples.shape[0] // self.config.hop)]

    def latents(self, samples: Tensor, launch: Launch = eager) -> Tensor:
        """Latents that `forward` quantizes: [n / hop, hidden], in float32 at least."""
        return self._latents(samples, launch)[: -(-samples.shape[0] // self.config.hop)]

    def _latents(self, samples: Tensor, launch: Launch) -> Tensor:
        """`latents`, and more behind them."""
        wav = samples[None, None].to(self.downsample.weight.dtype)
        x = self.windows(wav, launch)
        count = x.shape[2]
        x = launch(self._transformed, padded(x, self.step))[0][:, :, :count]
        x = F.pad(x, (0, count % EVEN), "replicate")
        return launch(self._merged, padded(x, self.step))[0]

    def _transformed(self, x: Tensor) -> tuple[Tensor]:
        assert self.rope is not None, "process_weights_after_loading comes first"
        return (self.encoder_transformer(x.transpose(1, 2), self.rope).transpose(1, 2),)

    def _merged(self, x: Tensor) -> tuple[Tensor]:
        return (upcast(self.downsample.whole(x)[0].T),)

    def _codes(self, latents: Tensor) -> tuple[Tensor]:
        return (self.quantizer(latents),)

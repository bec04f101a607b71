"""The 12 Hz codec's decoder: 16 codes per frame to 1920 samples, causal, exact in chunks."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from stentor.layers.attention import Attend
from stentor.layers.conv import CausalConv1d, StreamingState, convolve
from stentor.layers.frame_decoder import FrameDecoder, FrameDecoderConfig, ScaledStack
from stentor.layers.linear import Linear
from stentor.layers.rope import Rope

USAGE_FLOOR = 1e-5


class DecoderTransformer(ScaledStack):
    """Windowed self-attention over frames: latent [B, n, latent] -> the same."""

    def __init__(self, c: FrameDecoderConfig) -> None:
        super().__init__(c.stack)
        self.input_proj = Linear(c.latent, c.stack.hidden)
        self.output_proj = Linear(c.stack.hidden, c.latent)

    def forward(self, x: Tensor, attend: Attend, rope: Rope | None = None, pos: Tensor | None = None) -> Tensor:
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


class VectorQuantizer(nn.Module):
    def __init__(self, c: FrameDecoderConfig) -> None:
        super().__init__()
        self._codebook = Codebook(c.codebook_size, c.codebook_dim // 2)

    def forward(self) -> Tensor:
        centroids: Tensor = self._codebook()
        return centroids


class Residual(nn.Module):
    def __init__(self, c: FrameDecoderConfig, codebooks: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(VectorQuantizer(c) for _ in range(codebooks))


class Quantizer(nn.Module):
    """Residual codebooks between one pair of projections, in the checkpoint's layout."""

    def __init__(self, c: FrameDecoderConfig, codebooks: int) -> None:
        super().__init__()
        inner = c.codebook_dim // 2
        self.vq = Residual(c, codebooks)
        self.input_proj = nn.Conv1d(c.codebook_dim, inner, 1, bias=False)
        self.output_proj = nn.Conv1d(inner, c.codebook_dim, 1, bias=False)

    def tables(self) -> list[Tensor]:
        """One table [codebook_size, codebook_dim] per codebook, projected."""
        weight = self.output_proj.weight[:, :, 0]
        return [F.linear(layer(), weight) for layer in self.vq.layers]


class SplitQuantizer(nn.Module):
    def __init__(self, c: FrameDecoderConfig) -> None:
        super().__init__()
        self.rvq_first = Quantizer(c, 1)
        self.rvq_rest = Quantizer(c, c.codebooks - 1)


class Decoder(FrameDecoder):
    """The decoder as the checkpoint names it. `process_weights_after_loading` must follow the loading of weights."""

    def __init__(self, c: FrameDecoderConfig) -> None:
        super().__init__(c)
        self.quantizer: SplitQuantizer | None = SplitQuantizer(c)
        self.pre_conv = CausalConv1d(c.codebook_dim, c.latent, 3)
        self.pre_transformer = DecoderTransformer(c)
        self.add_convolutions()

    def process_weights_after_loading(self, dtype: torch.dtype | None = None) -> None:
        """Prepare for decoding. Later calls do nothing.

        In the precision of the weights, the 16 codebooks and their projections become one table, gains are multiplied
        into the weights in front of them, and the RoPE table is made. Then the weights are rounded to `dtype`, if it is
        given.
        """
        if self.quantizer is None:
            return
        self.fold_gains()
        tables = [*self.quantizer.rvq_first.tables(), *self.quantizer.rvq_rest.tables()]
        self.quantizer = None
        self.finish(torch.cat(tables), dtype)

    def latents(self, codes: Tensor, state: StreamingState | None) -> Tensor:
        return convolve(self.pre_conv, self.embed(codes).transpose(1, 2), state).transpose(1, 2)

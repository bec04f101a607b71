"""Latents to codes and back: one semantic codebook, then residual codebooks."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from stentor.layers.codec_blocks import Upsample
from stentor.layers.rope import Rope
from stentor.layers.transformer import Stack
from stentor.models.fish_s2.codec_blocks import Downsample, windowed
from stentor.models.fish_s2.codec_config import WINDOW, CodecConfig


class Codebook(nn.Module):
    """Vector quantization by cosine similarity in a small space. Decoding takes the row that is found as it is."""

    def __init__(self, latent: int, codes: int, dim: int) -> None:
        super().__init__()
        self.in_proj = nn.Conv1d(latent, dim, 1)
        self.out_proj = nn.Conv1d(dim, latent, 1)
        self.codebook = nn.Embedding(codes, dim)

    def nearest(self, z: Tensor) -> Tensor:
        """z [B, T, C] -> codes [B, T]."""
        unit = F.normalize(F.linear(z, self.in_proj.weight[:, :, 0], self.in_proj.bias), dim=-1)
        return (unit @ F.normalize(self.codebook.weight, dim=-1).T).argmax(-1)

    def rows(self, codes: Tensor) -> Tensor:
        """codes [B, T] -> latents [B, T, C]."""
        return F.linear(self.codebook(codes), self.out_proj.weight[:, :, 0], self.out_proj.bias)

    def table(self) -> Tensor:
        """Rows of every code: [codes, C]."""
        out: Tensor = self.out_proj(self.codebook.weight.T[None])[0].T
        return out


class Books(nn.Module):
    """Codebooks that quantize one after the other, each the residual of those before it."""

    def __init__(self, latent: int, books: int, codes: int, dim: int) -> None:
        super().__init__()
        self.quantizers = nn.ModuleList(Codebook(latent, codes, dim) for _ in range(books))


class Quantizer(nn.Module):
    """Latents to codes. The way back is `books`, `post_module` and `upsample`, which the codec runs in chunks."""

    def __init__(self, c: CodecConfig) -> None:
        super().__init__()
        self.semantic_quantizer = Books(c.latent, 1, c.semantic_codes, c.code_dim)
        self.quantizer = Books(c.latent, c.residual_books, c.residual_codes, c.code_dim)
        self.downsample = nn.ModuleList(Downsample(c.latent, s) for s in c.downsample)
        self.upsample = nn.ModuleList(Upsample(c.latent, s) for s in reversed(c.downsample))
        self.pre_module = Stack(c.pre_stack)
        self.post_module = Stack(c.post_stack)

    @property
    def books(self) -> list[Codebook]:
        """Semantic first, in the order of the codes of a frame."""
        return [*self.semantic_quantizer.quantizers, *self.quantizer.quantizers]

    def latents(self, x: Tensor, rope: Rope) -> Tensor:
        """Encoder output [B, C, T * merged] -> what is quantized [B, T, C], in float32."""
        for layer in self.downsample:
            x = layer(x)
        return windowed(self.pre_module, x, rope, WINDOW).transpose(1, 2).float()

    def encode(self, rest: Tensor) -> Tensor:
        """Latents [B, T, C] -> codes [B, T, books]."""
        codes = []
        for book in self.books:
            codes.append(book.nearest(rest))
            rest = rest - book.rows(codes[-1])
        return torch.stack(codes, dim=-1)

"""The codec: reference audio to codes in one pass, codes to audio in a stream.

The released directory has no configuration for it: its sizes are read off its tensors.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from stentor.layers.codec_blocks import ConvNeXt, DownsampleBlock, Snake, Upsample, UpsampleBlock
from stentor.layers.configs import StackConfig
from stentor.layers.conv import (
    CausalConv1d,
    StreamingState,
    cast_codec,
    convolve,
    state_columns,
    upcast,
)
from stentor.layers.rope import Rope, angles
from stentor.layers.sliding_window import WindowKV, window_columns
from stentor.layers.transformer import Stack
from stentor.layers.types import CodecCall, Column, Launch, State, eager
from stentor.layers.windows import Windows, padded, step_of
from stentor.models.fish_s2.checkpoint import count, size
from stentor.models.weights import meta_init

WINDOW = 128  # tokens that attention sees, itself included
ENCODER_WINDOW = 512
HEAD_DIM = 64
ROPE_BASE = 10_000.0
EPS = 1e-5


@dataclass(frozen=True)
class CodecConfig:
    """Channels and strides of the modified DAC."""

    encoder_dim: int  # channels after the first convolution, which each block doubles
    encoder_strides: tuple[int, ...]
    decoder_dim: int  # channels before the first up-sampling block, which each block halves
    decoder_strides: tuple[int, ...]
    latent: int
    downsample: tuple[
        int, ...
    ]  # strides between encoder and quantizer, undone in reverse before the decoder
    encoder_stack: StackConfig  # ends the last encoder block
    pre_stack: StackConfig
    post_stack: StackConfig
    semantic_codes: int
    residual_codes: int
    residual_books: int
    code_dim: int

    @property
    def encoder_hop(self) -> int:
        """Samples per encoder output."""
        return math.prod(self.encoder_strides)

    @property
    def hop(self) -> int:
        """Samples per frame."""
        return self.encoder_hop * math.prod(self.downsample)


def stack_config(hidden: int, ffn: int, layers: int) -> StackConfig:
    """A codec transformer: multi-head (not grouped) attention."""
    heads = hidden // HEAD_DIM
    return StackConfig(hidden, ffn, layers, heads, heads, HEAD_DIM, EPS)


RELEASED = CodecConfig(
    encoder_dim=64,
    encoder_strides=(2, 4, 8, 8),
    decoder_dim=1536,
    decoder_strides=(8, 8, 4, 2),
    latent=1024,
    downsample=(2, 2),
    encoder_stack=stack_config(1024, 3072, 4),
    pre_stack=stack_config(1024, 3072, 8),
    post_stack=stack_config(1024, 3072, 8),
    semantic_codes=4096,
    residual_codes=1024,
    residual_books=9,
    code_dim=8,
)
"""Sizes of the codec.pth of fishaudio/s2-pro, for random weights."""


def infer(tensors: Mapping[str, Tensor]) -> CodecConfig:
    """Sizes from the shapes of renamed tensors (see checkpoint.codec). CheckpointError names one
    that is missing or has no such size."""
    encoder = _strides(
        tensors, r"encoder\.block\.(\d+)\.block\.4\.weight", "encoder.block.{}.block.4.weight"
    )
    decoder = _strides(
        tensors, r"decoder\.model\.(\d+)\.block\.1\.weight", "decoder.model.{}.block.1.weight"
    )
    merges = count(tensors, r"quantizer\.downsample\.(\d+)\.")
    semantic = "quantizer.semantic_quantizer.quantizers"
    residual = "quantizer.quantizer.quantizers"
    return CodecConfig(
        encoder_dim=size(tensors, "encoder.block.0.weight", 0),
        encoder_strides=encoder,
        decoder_dim=size(tensors, "decoder.model.0.weight", 0),
        decoder_strides=decoder,
        latent=size(tensors, "decoder.model.0.weight", 1),
        downsample=tuple(
            size(tensors, f"quantizer.downsample.{i}.0.weight", 2) for i in range(merges)
        ),
        encoder_stack=_stack(tensors, f"encoder.block.{len(encoder)}.block.5"),
        pre_stack=_stack(tensors, "quantizer.pre_module"),
        post_stack=_stack(tensors, "quantizer.post_module"),
        semantic_codes=size(tensors, f"{semantic}.0.codebook.weight", 0),
        residual_codes=size(tensors, f"{residual}.0.codebook.weight", 0),
        residual_books=count(tensors, re.escape(residual) + r"\.(\d+)\."),
        code_dim=size(tensors, f"{semantic}.0.codebook.weight", 1),
    )


def _strides(tensors: Mapping[str, Tensor], pattern: str, name: str) -> tuple[int, ...]:
    """Strides of consecutive blocks, numbered from 1: the kernel of a strided convolution is twice
    its stride."""
    blocks = count(tensors, pattern, first=1)
    return tuple(size(tensors, name.format(i), 2, least=2) // 2 for i in range(1, blocks + 1))


def _stack(tensors: Mapping[str, Tensor], prefix: str) -> StackConfig:
    layers = count(tensors, re.escape(prefix) + r"\.layers\.(\d+)\.")
    hidden = size(tensors, f"{prefix}.norm.weight", 0)
    return stack_config(hidden, size(tensors, f"{prefix}.layers.0.mlp.gate_proj.weight", 0), layers)


def windowed(stack: Stack, x: Tensor, rope: Rope, window: int) -> Tensor:
    """A transformer over whole sequences x [B, C, T]. Each token sees the last `window` ones,
    itself included."""
    pos = torch.arange(x.shape[-1], device=x.device).expand(x.shape[0], -1)
    y: Tensor = stack(x.transpose(1, 2), WindowKV("", window, pos, None).attend, rope, pos)
    return y.transpose(1, 2)


class Downsample(nn.ModuleList):
    """Frames are merged `stride` at a time, then refined. Whole sequences only."""

    def __init__(self, channels: int, stride: int) -> None:
        super().__init__(
            [CausalConv1d(channels, channels, stride, stride=stride, left=0), ConvNeXt(channels)]
        )

    def forward(self, x: Tensor) -> Tensor:
        merge, refine = self
        out: Tensor = refine(convolve(merge, x, None))
        return out


class Codebook(nn.Module):
    """Vector quantization by cosine similarity in a small space. Decoding takes the row that is
    found as it is."""

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
        """Latents of all codes, each as `rows` returns it: [codes, C]."""
        out: Tensor = self.out_proj(self.codebook.weight.T[None])[0].T
        return out


class Books(nn.Module):
    """Codebooks that quantize one after the other, each the residual of those before it."""

    def __init__(self, latent: int, books: int, codes: int, dim: int) -> None:
        super().__init__()
        self.quantizers = nn.ModuleList(Codebook(latent, codes, dim) for _ in range(books))


class Quantizer(nn.Module):
    """Latents to codes. The way back is `books`, `post_module` and `upsample`, which the codec runs
    in chunks."""

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


def interleaved(dim: int, positions: int, base: float) -> Rope:
    """Rotation in float32 of neighbouring pairs, by tables rounded to bfloat16 whatever the model's
    dtype."""
    return Rope(angles(dim, positions, base), torch.bfloat16, interleaved=True, in_float32=True)


class Encoder(nn.Module):
    """Audio [B, 1, n] -> latents [B, C, n / encoder_hop]: `windows` of a recording, then `refine`
    over all of it."""

    def __init__(self, c: CodecConfig) -> None:
        super().__init__()
        widths = [c.encoder_dim * 2**i for i in range(len(c.encoder_strides) + 1)]
        blocks = [
            DownsampleBlock(w, 2 * w, s) for w, s in zip(widths, c.encoder_strides, strict=False)
        ]
        blocks[-1].block.append(Stack(c.encoder_stack))  # which `refine` runs
        ends = [Snake(widths[-1]), CausalConv1d(widths[-1], c.latent, 3)]
        self.block = nn.ModuleList([CausalConv1d(1, c.encoder_dim, 7), *blocks, *ends])
        blocks_columns = state_columns(nn.ModuleList(self.block[:-1]))
        self.windows = Windows(self.convolutions, c.encoder_hop, blocks_columns)

    def refine(self, x: Tensor, rope: Rope) -> Tensor:
        """The transformer and what follows it, over whole sequences [B, C, T]."""
        *_, act, last = self.block
        stack = next(m for m in self.modules() if isinstance(m, Stack))  # of the last block
        return convolve(last, windowed(stack, x, rope, ENCODER_WINDOW), None, before=act)

    def convolutions(self, x: Tensor, state: StreamingState, _: Tensor) -> Tensor:
        """Convolutions before the transformer."""
        first, *blocks = self.block[:-2]
        x = convolve(first, x, state)
        for block in blocks:
            x = block(x, state)
        return x


class Decoder(nn.Module):
    """Latents [B, C, n] -> audio [B, 1, n * encoder_hop]."""

    def __init__(self, c: CodecConfig) -> None:
        super().__init__()
        widths = [c.decoder_dim // 2**i for i in range(len(c.decoder_strides) + 1)]
        blocks = [
            UpsampleBlock(w, w // 2, s) for w, s in zip(widths, c.decoder_strides, strict=False)
        ]
        ends = [Snake(widths[-1]), CausalConv1d(widths[-1], 1, 7)]
        self.model = nn.ModuleList([CausalConv1d(c.latent, c.decoder_dim, 7), *blocks, *ends])

    def forward(self, x: Tensor, state: StreamingState | None) -> Tensor:
        first, *blocks, act, last = self.model
        x = convolve(first, x, state)
        for block in blocks:
            x = block(x, state)
        return torch.tanh(upcast(convolve(last, x, state, before=act)))


class FishCodec(nn.Module):
    """Modified DAC. The encoding half is in `encoder_dtype`, with its codebooks in float32, and the
    decoding half in `dtype`. Parameters start on the meta device.

    Positions are absolute from the start of a stream: rounded rotation tables make the codec depend
    on them.
    """

    table: Tensor
    offsets: Tensor
    last_code: Tensor

    def __init__(
        self, c: CodecConfig, positions: int, dtype: torch.dtype, encoder_dtype: torch.dtype
    ) -> None:
        """`positions`: frames of the longest stream, or encoder outputs of the longest reference if
        that is more."""
        super().__init__()
        self.config = c
        with meta_init():
            self.encoder = Encoder(c)
            self.quantizer = Quantizer(c)
            self.decoder = Decoder(c)
        self.dtype = dtype
        self.encoder_dtype = encoder_dtype
        self._cast()
        self.step = step_of(c.encoder_hop, c.hop // c.encoder_hop)
        self.rope = interleaved(HEAD_DIM, positions + self.step, ROPE_BASE)
        sizes = torch.tensor([c.semantic_codes] + [c.residual_codes] * c.residual_books)
        self.register_buffer("last_code", sizes - 1, persistent=False)
        self.register_buffer("offsets", sizes.cumsum(0) - sizes, persistent=False)
        stack = c.post_stack
        self.columns = {
            **state_columns(self.quantizer.upsample),
            **state_columns(self.decoder),
            **window_columns("post", stack.layers, stack.kv_heads, stack.head_dim, WINDOW, dtype),
            "frames": Column(dtype=torch.int64),
        }

    def _cast(self) -> None:
        q = self.quantizer
        encoding: tuple[nn.Module, ...] = (self.encoder, q.downsample, q.pre_module)
        decoding: tuple[nn.Module, ...] = (q.post_module, q.upsample, self.decoder)
        for parts, dtype in ((encoding, self.encoder_dtype), (decoding, self.dtype)):
            for part in parts:
                cast_codec(part, dtype)

    def process_weights_after_loading(self) -> None:
        """Once the weights are in: every code's latent, so that decoding looks up and adds."""
        self._cast()
        with torch.no_grad():
            table = torch.cat([book.table() for book in self.quantizer.books])
        self.register_buffer("table", table, persistent=False)

    def encode(self, wav: Tensor, launch: Launch = eager) -> Tensor:
        """Mono float32 [n] at the codec's rate, padded with zeros to whole frames -> codes [ceil(n
        / hop), books]."""
        (codes,) = launch(self._codes, self._latents(wav, launch))
        return codes[0, : -(-len(wav) // self.config.hop)]

    def latents(self, wav: Tensor, launch: Launch = eager) -> Tensor:
        """Latents that `encode` quantizes: [1, ceil(n / hop), C] in float32."""
        return self._latents(wav, launch)[:, : -(-len(wav) // self.config.hop)]

    def _latents(self, wav: Tensor, launch: Launch) -> Tensor:
        """`latents`, and more behind them."""
        c = self.config
        frames = F.pad(wav.to(self.encoder_dtype), (0, -len(wav) % c.hop))
        x = padded(self.encoder.windows(frames[None, None], launch), self.step)
        return launch(self._refined, x)[0]

    def _refined(self, x: Tensor) -> tuple[Tensor]:
        return (self.quantizer.latents(self.encoder.refine(x, self.rope), self.rope),)

    def _codes(self, latents: Tensor) -> tuple[Tensor]:
        return (self.quantizer.encode(latents),)

    def decode(
        self, frames: Tensor, state: State, _: CodecCall | None = None
    ) -> tuple[Tensor, State]:
        """frames [B, n, books]. Codes past the end of a codebook mean its last row, as in the
        reference."""
        streaming = StreamingState(state)
        pos = state["frames"][:, None] + torch.arange(frames.shape[1], device=frames.device)
        samples = self.samples(frames, pos, streaming)
        streaming.new["frames"] = state["frames"] + frames.shape[1]
        return samples, streaming.new

    def samples(self, frames: Tensor, pos: Tensor, state: StreamingState | None) -> Tensor:
        """frames [B, n, books] at positions pos [B, n] -> samples [B, n * hop]. state None: whole
        utterances."""
        rows = frames.minimum(self.last_code) + self.offsets
        x = F.embedding(rows, self.table).sum(-2).to(self.dtype)
        x = self.quantizer.post_module(
            x, WindowKV("post", WINDOW, pos, state).attend, self.rope, pos
        )
        x = x.transpose(1, 2)
        for layer in self.quantizer.upsample:
            x = layer(x, state)
        audio: Tensor = self.decoder(x, state)
        return audio[:, 0].float()

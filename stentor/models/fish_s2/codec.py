"""The codec: reference audio to codes in one pass, codes to audio in a stream."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from stentor.layers.codec_blocks import Snake, UpsampleBlock
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
from stentor.layers.types import NO_PAGES, CodecCall, Column, Launch, State, eager
from stentor.layers.windows import Windows, padded, step_of
from stentor.models.fish_s2.codec_blocks import EncoderBlock, windowed
from stentor.models.fish_s2.codec_config import ENCODER_WINDOW, HEAD_DIM, ROPE_BASE, WINDOW, CodecConfig
from stentor.models.fish_s2.codec_quantizer import Quantizer
from stentor.models.weights import meta_init


def interleaved(dim: int, positions: int, base: float) -> Rope:
    """Rotation in float32 of neighbouring pairs, by tables rounded to bfloat16 whatever the model's dtype."""
    return Rope(angles(dim, positions, base), torch.bfloat16, interleaved=True, in_float32=True)


class Encoder(nn.Module):
    """Audio [B, 1, n] -> latents [B, C, n / encoder_hop]: `windows` of a recording, then `refine` over all of it."""

    def __init__(self, c: CodecConfig) -> None:
        super().__init__()
        widths = [c.encoder_dim * 2**i for i in range(len(c.encoder_strides) + 1)]
        stacks = [None] * (len(c.encoder_strides) - 1) + [c.encoder_stack]
        blocks = [EncoderBlock(w, s, t) for w, s, t in zip(widths, c.encoder_strides, stacks, strict=False)]
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
        blocks = [UpsampleBlock(w, w // 2, s) for w, s in zip(widths, c.decoder_strides, strict=False)]
        ends = [Snake(widths[-1]), CausalConv1d(widths[-1], 1, 7)]
        self.model = nn.ModuleList([CausalConv1d(c.latent, c.decoder_dim, 7), *blocks, *ends])

    def forward(self, x: Tensor, state: StreamingState | None) -> Tensor:
        first, *blocks, act, last = self.model
        x = convolve(first, x, state)
        for block in blocks:
            x = block(x, state)
        return torch.tanh(upcast(convolve(last, x, state, before=act)))


class FishCodec(nn.Module):
    """Modified DAC. The encoding half is in `encoder_dtype`, with its codebooks in float32, and the decoding half in
    `dtype`. Parameters start on the meta device.

    Positions are absolute from the start of a stream: rounded rotation tables make the codec depend on them.
    """

    pages = NO_PAGES
    table: Tensor
    offsets: Tensor
    last_code: Tensor

    def __init__(self, c: CodecConfig, positions: int, dtype: torch.dtype, encoder_dtype: torch.dtype) -> None:
        """`positions`: frames of the longest stream, or encoder outputs of the longest reference if that is more."""
        super().__init__()
        self.config = c
        with meta_init():
            self.encoder, self.quantizer, self.decoder = Encoder(c), Quantizer(c), Decoder(c)
        self.dtype, self.encoder_dtype = dtype, encoder_dtype
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
        """Mono float32 [n] at the codec's rate, padded with zeros to whole frames -> codes [ceil(n / hop), books]."""
        (codes,) = launch(self._codes, self._latents(wav, launch))
        return codes[0, : -(-len(wav) // self.config.hop)]

    def latents(self, wav: Tensor, launch: Launch = eager) -> Tensor:
        """Latents that `encode` quantizes: [1, ceil(n / hop), C] in float32."""
        return self._latents(wav, launch)[:, : -(-len(wav) // self.config.hop)]

    def _latents(self, wav: Tensor, launch: Launch) -> Tensor:
        """`latents`, and more behind them."""
        c = self.config
        whole = F.pad(wav.to(self.encoder_dtype), (0, -len(wav) % c.hop))
        x = padded(self.encoder.windows(whole[None, None], launch), self.step)
        return launch(self._refined, x)[0]

    def _refined(self, x: Tensor) -> tuple[Tensor]:
        return (self.quantizer.latents(self.encoder.refine(x, self.rope), self.rope),)

    def _codes(self, latents: Tensor) -> tuple[Tensor]:
        return (self.quantizer.encode(latents),)

    def decode(self, frames: Tensor, state: State, _: CodecCall | None = None) -> tuple[Tensor, State]:
        """frames [B, n, books]. Codes past the end of a codebook mean its last row, as in the reference."""
        streaming = StreamingState(state)
        pos = state["frames"][:, None] + torch.arange(frames.shape[1], device=frames.device)
        samples = self._synthesize(frames, pos, streaming)
        streaming.new["frames"] = state["frames"] + frames.shape[1]
        return samples, streaming.new

    def decode_whole(self, frames: Tensor) -> Tensor:
        """frames [B, n, books] of whole utterances -> samples [B, n * hop] (checks)."""
        pos = torch.arange(frames.shape[1], device=frames.device).expand(frames.shape[0], -1)
        return self._synthesize(frames, pos, None)

    def _synthesize(self, frames: Tensor, pos: Tensor, state: StreamingState | None) -> Tensor:
        rows = frames.minimum(self.last_code) + self.offsets
        x = F.embedding(rows, self.table).sum(-2).to(self.dtype)
        x = self.quantizer.post_module(x, WindowKV("post", WINDOW, pos, state).attend, self.rope, pos)
        x = x.transpose(1, 2)
        for layer in self.quantizer.upsample:
            x = layer(x, state)
        audio: Tensor = self.decoder(x, state)
        return audio[:, 0].float()

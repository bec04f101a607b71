"""Mimi's decoder as a causal codec with state: `stentor.models.base.Codec`."""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from stentor.layers.conv import StreamingState, cast_codec, state_columns, upcast
from stentor.layers.rope import Rope
from stentor.layers.sliding_window import WindowKV, window_columns
from stentor.layers.types import CodecCall, Column, State
from stentor_csm.config import MimiConfig
from stentor_csm.mimi import (
    DepthwiseUpsample,
    SplitQuantizer,
    Transformer,
    decoder_layers,
    run_layers,
)

WINDOW, CLOCK = "window", "clock"
POSITIONS = 1 << 15  # frames of the transformer, 20 minutes of the released codec


class Decoder(nn.Module):
    """Codes to samples, named as in the checkpoint. Call `process_weights_after_loading` once they are in."""

    table: Tensor
    offset: Tensor

    def __init__(self, c: MimiConfig) -> None:
        super().__init__()
        self.config = c
        self.quantizer: SplitQuantizer | None = SplitQuantizer(c)
        self.upsample = nn.ModuleDict({"conv": DepthwiseUpsample(c.stack.hidden, c.stride)})
        self.decoder_transformer = Transformer(c)
        self.decoder = nn.ModuleDict({"layers": decoder_layers(c)})
        self.rope: Rope | None = None

    @torch.no_grad()
    def process_weights_after_loading(self, codebooks: int, dtype: torch.dtype) -> None:
        """Make one table of the codebooks that frames have, and round the rest to `dtype`."""
        assert self.quantizer is not None
        c = self.config
        tables = torch.cat(self.quantizer.tables()[:codebooks])
        self.register_buffer("table", tables, persistent=False)
        offset = torch.arange(codebooks, device=tables.device) * c.codebook_size
        self.register_buffer("offset", offset, persistent=False)
        self.quantizer = None
        self.rope = c.rope.rope(c.stack.head_dim, POSITIONS, dtype).to(tables.device)
        cast_codec(self, dtype)

    @property
    def dtype(self) -> torch.dtype:
        return self.upsample["conv"].weight.dtype

    def forward(self, codes: Tensor, pos: Tensor, state: StreamingState | None = None) -> Tensor:
        """codes [B, n, codebooks], positions pos [B, n * stride] -> samples [B, n * hop]."""
        assert self.rope is not None, "process_weights_after_loading comes first"
        codes = codes.clamp_max(self.config.codebook_size - 1)  # special codes have no sound
        x = F.embedding(codes + self.offset, self.table).sum(-2).to(self.dtype).transpose(1, 2)
        x = self.upsample["conv"](x, state).transpose(1, 2)
        attend = WindowKV(WINDOW, self.config.window, pos, state).attend
        x = self.decoder_transformer(x, attend, self.rope, pos).transpose(1, 2)
        return upcast(run_layers(self.decoder["layers"], x, state))[:, 0].clamp(-1.0, 1.0)


class Codec:
    """The decoder with its state in columns."""

    def __init__(self, decoder: Decoder) -> None:
        c, s = decoder.config, decoder.config.stack
        self.decoder = decoder
        window = window_columns(WINDOW, s.layers, s.kv_heads, s.head_dim, c.window, decoder.dtype)
        self.columns: Mapping[str, Column] = {
            **state_columns(decoder),
            **window,
            CLOCK: Column(dtype=torch.int64),
        }

    def decode(
        self, frames: Tensor, state: State, call: CodecCall | None = None
    ) -> tuple[Tensor, State]:
        """frames [B, n, codebooks] -> samples [B, n * hop] float32, and the streams' next state."""
        streaming, count = StreamingState(state), frames.shape[1] * self.decoder.config.stride
        pos = state[CLOCK][:, None] + torch.arange(count, device=frames.device)
        samples = self.decoder(frames.long(), pos, streaming)
        return samples.float(), {**streaming.new, CLOCK: state[CLOCK] + count}

"""The shapes of the engine's buffers, which `sizing.plan_memory` computes. No torch."""

from __future__ import annotations

from dataclasses import dataclass

MIB, GIB = 1 << 20, 1 << 30


@dataclass(frozen=True)
class BufferSizes:
    """Shapes of the engine's buffers."""

    slots: int
    max_frames: int  # per request
    page_size: int  # tokens per page
    pages: int
    max_pages: int  # per request
    max_model_len: int  # tokens (prompt and frames) that one request can take
    slot_bytes: int
    page_bytes: int
    prefill_tokens: int  # of the largest captured prefill
    graph_bytes: int  # left free for graphs of the language model and workspaces
    codec_frames: int  # rows times frames of one codec call at most
    codec_bytes: int  # left free for codec calls
    encoder_bytes: int  # left free for encoding references
    encoder_columns: int  # of the largest window in which a reference is encoded
    codec_states: int  # codec states after voices that the host keeps, about
    codec_window: float = 0.0  # seconds of a stream, with its prefix, that the codec keeps pages of. 0: it has none
    codec_page_bytes: int = 0  # of those pages, in all slots and for priming
    adapter_bytes: int = 0  # of all slots for LoRA adapters, taken at load

    def parked(self, mb: float) -> int:
        """Rows that so many MiB of the host hold."""
        return int(mb * MIB) // self.slot_bytes

    def describe(self) -> str:
        kv, rows = self.pages * self.page_bytes / GIB, (self.slots + 1) * self.slot_bytes / GIB
        adapters = f", adapters {self.adapter_bytes / GIB:.2f} GiB" if self.adapter_bytes else ""
        pages = (
            f", the last {self.codec_window:.1f} s of a stream and its voice in the codec's pages "
            f"({self.codec_page_bytes / GIB:.2f} GiB), what is older is cut"
            if self.codec_window
            else ""
        )
        slots = "1 slot" if self.slots == 1 else f"{self.slots} slots"
        return (
            f"{slots} ({rows:.2f} GiB), {self.pages} pages of {self.page_size} tokens ({kv:.2f} GiB), "
            f"{self.max_model_len} tokens per request, prefills of {self.prefill_tokens} tokens "
            f"({self.graph_bytes / GIB:.2f} GiB of graphs), codec calls of {self.codec_frames} frames "
            f"({self.codec_bytes / GIB:.2f} GiB), encoding of references ({self.encoder_bytes / GIB:.2f} GiB), "
            f"codec states of {self.codec_states} voices on the host{pages}{adapters}"
        )

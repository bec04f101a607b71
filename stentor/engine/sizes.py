"""Division of memory between pages, graphs, codec calls and encodings: arithmetic on bytes, and the
buffers' shapes.

`engine.memory` measures what a model takes for each part (`Needs`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

MIB = 1 << 20
GIB = 1 << 30

CONTEXT = 704 * MIB
"""Bytes that CUDA takes for a process beside what torch asks for: context, modules, local memory of
kernels. 701 MiB on an H200 once products, convolutions, transforms and attention have run."""
WORKSPACE = GIB // 4
"""Bytes for libraries' workspaces and eager calls, whatever is captured."""
GRAPHS = 7 * GIB // 4
"""Bytes of the language model's graphs with prefills of 2048 tokens. With 64 slots and 512 frames
in a codec call, graphs, codec and workspace were 2.3 to 2.7 GiB for the released models
(docs/models). It grows with the tokens."""
LEVELS = ((2048, 512), (1024, 256), (512, 128), (256, 64), (128, 0))
"""(tokens of the largest captured prefill, frames of a codec call), from what suits a large GPU to
the least. An H200 decodes no more audio per second in calls of more than 512 frames, such as 64
chunks of 8 frames or 20 of 25."""
CODEC_FRAMES = LEVELS[0][1]
CODEC_SHARE = 0.1
"""Share of all memory that codec calls take before smaller ones are tried."""
ENOUGH_TOKENS = 512
"""Key-value tokens per slot, below which smaller graphs and codec calls are tried first."""
SPARE = 0.3
"""At the last level, at most this share of all memory is left for graphs and codec calls, for
models that are tiny."""


@dataclass(frozen=True)
class Needs:
    """Bytes that a model takes for each part."""

    slot: int
    page: int
    codec_frame: int  # of a codec call, by frame
    encoder: int  # of encoding references
    page_size: int  # tokens of a page
    request_pages: int  # of the longest request
    chunk: int  # frames that a codec call holds at least
    priming: int  # frames of a codec call beside the others

    def codec_frames(self, level: int, slots: int) -> int:
        """Frames of a codec call, of which the level allows `level`."""
        return min(max(level, self.chunk), slots * self.chunk)

    def buffers(self, slots: int, pages: int) -> int:
        """Bytes that are taken whatever runs."""
        return slots * self.slot + pages * self.page + self.encoder


@dataclass(frozen=True)
class Shares:
    """Memory of each part, and the number of slots and pages that fit."""

    slots: int
    prefill_tokens: int  # of the largest captured prefill
    codec_frames: int  # rows times frames of one codec call at most
    graph_bytes: int  # left free for graphs of the language model and workspaces
    codec_bytes: int  # left free for codec calls
    pages: int


def divide(needs: Needs, slots: int, usable: int, total: int) -> Shares | None:
    """The largest level at which every slot has enough pages, or the last if it has at least one.
    None: nothing fits.

    usable: bytes beside the weights. total: with them.
    """
    enough = _enough(needs, slots)
    for level in LEVELS:
        tokens = level[0]
        last = level == LEVELS[-1]
        frames = needs.codec_frames(level[1], slots)
        graphs = WORKSPACE + GRAPHS * tokens // LEVELS[0][0]
        codec = (frames + needs.priming) * needs.codec_frame
        reserve = graphs + codec
        if last:
            reserve = min(reserve, int(SPARE * total))
        pages = (usable - reserve - needs.buffers(slots, 0)) // needs.page
        if pages >= slots if last else (pages >= enough and codec <= CODEC_SHARE * total):
            pages = min(pages, slots * needs.request_pages)
            return Shares(slots, tokens, frames, graphs, codec, pages)
    return None


def shares_of_pages(needs: Needs, slots: int, pages: int) -> Shares:
    """Slots and at most `pages` pages, whether they fit or not, with the largest graphs and codec
    calls."""
    tokens, level = LEVELS[0]
    frames = needs.codec_frames(level, slots)
    codec = (frames + needs.priming) * needs.codec_frame
    return Shares(slots, tokens, frames, 0, codec, min(slots * needs.request_pages, pages))


def bytes_with_graphs(needs: Needs, shares: Shares) -> int:
    """Bytes of all that `shares_of_pages` has, with graphs."""
    return needs.buffers(shares.slots, shares.pages) + WORKSPACE + GRAPHS + shares.codec_bytes


def _enough(needs: Needs, slots: int) -> int:
    """Pages with which no slot waits for pages most of the time."""
    return slots * min(needs.request_pages, -(-ENOUGH_TOKENS // needs.page_size))


def fit(needs: Needs, slots: Sequence[int], usable: int, total: int) -> Shares | None:
    """Return what fits with the first of these numbers of slots that has enough pages, else the
    first that fits."""
    fits = [f for f in (divide(needs, n, usable, total) for n in slots) if f is not None]
    return next((f for f in fits if f.pages >= _enough(needs, f.slots)), fits[0] if fits else None)


def fewer(slots: int) -> list[int]:
    """Numbers of slots to try, from `slots` down to one."""
    return [slots >> i for i in range(slots.bit_length())]


def least_bytes(needs: Needs, slots: int) -> int:
    """Bytes besides the weights with which `slots` slots of one page each fit at the last level."""
    tokens, level = LEVELS[-1]
    codec = (needs.codec_frames(level, slots) + needs.priming) * needs.codec_frame
    graphs = WORKSPACE + GRAPHS * tokens // LEVELS[0][0]
    return needs.buffers(slots, slots) + graphs + codec


@dataclass(frozen=True)
class BufferSizes(Shares):
    """Shapes of the engine's buffers."""

    max_frames: int  # per request
    page_size: int  # tokens per page
    max_pages: int  # per request
    max_model_len: int  # tokens (prompt and frames) that one request can take
    slot_bytes: int
    page_bytes: int
    encoder_bytes: int  # left free for encoding references
    encoder_columns: int  # of the largest window in which a reference is encoded
    frame_pages: int = (
        0  # of page sets by frame, one frame each. Their bytes are those of the KV pages
    )
    adapter_bytes: int = 0  # of all slots for LoRA adapters, taken at load

    def parked(self, mb: float) -> int:
        """Rows that `mb` MiB of the host hold."""
        return int(mb * MIB) // self.slot_bytes

    def describe(self) -> str:
        """Describe what memory is for, in one line. Parts that take none, as on a CPU, are left
        out."""
        if self.slots == 1:
            slots = "1 slot"
        else:
            slots = f"{self.slots} slots"
        if self.frame_pages:
            frames = f" and {self.frame_pages} of a frame"
        else:
            frames = ""
        parts = {
            slots: (self.slots + 1) * self.slot_bytes,
            f"{self.pages} KV pages of {self.page_size} tokens{frames}": self.pages
            * self.page_bytes,
            f"graphs, prefills of up to {self.prefill_tokens} tokens": self.graph_bytes,
            f"codec calls of up to {self.codec_frames} frames": self.codec_bytes,
            "encoding of references": self.encoder_bytes,
            "adapters": self.adapter_bytes,
        }
        shares = [f"{name} ({size(count)})" for name, count in parts.items() if count]
        return ", ".join([*shares, f"at most {self.max_model_len} tokens per request"])


def size(count: int) -> str:
    """Bytes in words: MiB, or GiB from one on."""
    if count >= GIB:
        return f"{count / GIB:.2f} GiB"
    return f"{max(1, round(count / MIB))} MiB"

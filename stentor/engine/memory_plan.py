"""How memory is divided between pages, graphs, codec calls and encodings. Arithmetic on bytes, without torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from stentor.engine.buffer_sizes import GIB

WORKSPACE = GIB // 4
"""Bytes for libraries' workspaces and eager calls, whatever is captured."""
GRAPHS, GRAPHS_TOKENS = 7 * GIB // 4, 2048
"""Bytes of the language model's graphs with prefills of so many tokens. With 64 slots and 512 frames in a codec call,
graphs, codec and workspace were 2.3 to 2.7 GiB for the released models (docs/models). It grows with the tokens."""
LARGER_GRAPHS = GIB // 4
"""Bytes for larger prefills: 3072 tokens took 0.1 to 0.3 GiB more than 2048."""
LEVELS = ((3072, 512), (2048, 512), (1024, 256), (512, 128), (256, 64), (128, 0))
"""(tokens of the largest captured prefill, frames of a codec call), from what suits a large GPU to the least. An H200
decodes no more audio per second in calls of more than 512 frames, such as 64 chunks of 8 frames or 20 of 25."""
CODEC_FRAMES = LEVELS[0][1]
CODEC_CELLS = 64
"""Chunks of a codec call, where the codec has a grid and they are more frames than that."""
CODEC_SHARE = 0.1
"""Of all memory, codec calls take at most this share before smaller ones are tried."""
ENOUGH_TOKENS = 512
"""Key-value tokens per slot, below which smaller graphs and codec calls are tried first."""
SPARE = 0.3
"""At the last level, at most this share of all memory is left for graphs and codec calls, for models that are tiny."""


@dataclass(frozen=True)
class Needs:
    """Bytes that a model takes for each part."""

    slot: int
    page: int
    codec_frame: int  # of a codec call, by frame
    encoder: int  # of encoding references
    page_size: int  # tokens of a page
    wanted: int  # pages of the longest request
    chunk: int  # frames that a codec call holds at least
    priming: int  # frames of a codec call beside the others
    primer: int = 0  # pages of the codec for the voice that is being primed
    grid: int = 1  # of the codec, in frames

    def codec_frames(self, level: int, slots: int) -> int:
        """Frames of a codec call, where a causal codec without a grid would take `level` of them."""
        cells = CODEC_CELLS * self.grid * level // CODEC_FRAMES if self.grid > 1 else 0
        return min(max(level, cells, self.chunk), slots * self.chunk)

    def buffers(self, slots: int, pages: int) -> int:
        """Bytes that are taken whatever runs."""
        return slots * self.slot + pages * self.page + self.encoder + self.primer


@dataclass(frozen=True)
class Shares:
    """What fits."""

    slots: int
    prefill_tokens: int
    codec_frames: int
    graph_bytes: int
    codec_bytes: int
    pages: int


def divide(needs: Needs, slots: int, usable: int, total: int) -> Shares | None:
    """The largest level at which every slot has enough pages, or the last if it has at least one. None: nothing fits.

    usable: bytes beside the weights. total: with them.
    """
    enough = _enough(needs, slots)
    for level in LEVELS:
        tokens, last = level[0], level == LEVELS[-1]
        frames = needs.codec_frames(level[1], slots)
        graphs = WORKSPACE + _graphs(tokens)
        codec = (frames + needs.priming) * needs.codec_frame
        left = graphs + codec
        if last:
            left = min(left, int(SPARE * total))
        pages = (usable - left - needs.buffers(slots, 0)) // needs.page
        if pages >= slots if last else (pages >= enough and codec <= CODEC_SHARE * total):
            pages = min(pages, slots * needs.wanted)
            return Shares(slots, tokens, frames, graphs, codec, pages)
    return None


def given_pages(needs: Needs, slots: int, pages: int) -> Shares:
    """Slots and at most so many pages, whether they fit or not, with the largest graphs and codec calls."""
    tokens, level = LEVELS[0]
    frames = needs.codec_frames(level, slots)
    codec = (frames + needs.priming) * needs.codec_frame
    return Shares(slots, tokens, frames, 0, codec, min(slots * needs.wanted, pages))


def _graphs(tokens: int) -> int:
    """Bytes of the language model's graphs with prefills of at most so many tokens."""
    return GRAPHS * min(tokens, GRAPHS_TOKENS) // GRAPHS_TOKENS + (LARGER_GRAPHS if tokens > GRAPHS_TOKENS else 0)


def beside_weights(needs: Needs, shares: Shares) -> int:
    """Bytes of all that `given_pages` has, with graphs."""
    return needs.buffers(shares.slots, shares.pages) + WORKSPACE + _graphs(shares.prefill_tokens) + shares.codec_bytes


def _enough(needs: Needs, slots: int) -> int:
    """Pages with which no slot waits for pages most of the time."""
    return slots * min(needs.wanted, -(-ENOUGH_TOKENS // needs.page_size))


def fit(needs: Needs, slots: Sequence[int], usable: int, total: int) -> Shares | None:
    """What fits with the first of these numbers of slots that have enough pages, or else with the first that fits."""
    found = [f for f in (divide(needs, n, usable, total) for n in slots) if f is not None]
    return next((f for f in found if f.pages >= _enough(needs, f.slots)), found[0] if found else None)


def fewer(slots: int) -> list[int]:
    """Numbers of slots to try, from so many down to one."""
    return [slots >> i for i in range(slots.bit_length())]


def advice(needs: Needs, slots: int, usable: int, total: int) -> str:
    """What would fit instead of `slots` slots, in words."""
    fitting = (divide(needs, n, usable, total) for n in range(slots, 0, -1))
    most = next((f for f in fitting if f is not None), None)
    more = total
    while divide(needs, slots, usable + more - total, more) is None:
        more += max(1, total // 50)
    larger = f"{more / GIB:.2f} GiB hold {slots} slots"
    return larger if most is None else f"{most.slots} slots fit, or {larger}"

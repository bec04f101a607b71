"""Page tables of requests: shared pages that hold the beginning of a prompt, and new ones. No torch.

A family may have page sets that count frames, beside the one that counts positions. All of them have one table, whose
pages hold one frame. A request gets, shares and gives back pages of both tables together.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import takewhile
from typing import NamedTuple

from stentor.config import Policy
from stentor.engine.scheduling.page_allocator import PageAllocator
from stentor.engine.scheduling.sequence import Sequence


class Shared(NamedTuple):
    """Pages that hold the beginning of a prompt: its positions, and those of its frames that stand there."""

    pages: list[int]
    frames: list[int]


class PageTables:
    """Pages of the scheduler's requests, in `Sequence.pages` and `Sequence.frame_pages`.

    frames: pages of one frame each. There are none where the family has no page sets by frame.
    """

    def __init__(self, pages: PageAllocator, policy: Policy, frames: PageAllocator | None = None) -> None:
        self.pages, self.policy = pages, policy
        self.frames = PageAllocator(0, 1) if frames is None else frames
        self._unwritten: dict[int, int] = {}  # pages that this plan's prefills are to write: num_evals of the launch
        self._unwritten_frames: dict[int, int] = {}

    @property
    def available(self) -> int:
        """Free pages of both tables."""
        return self.pages.available + self.frames.available

    @property
    def count(self) -> int:
        """Pages of both tables."""
        return self.pages.count + self.frames.count

    def begin_plan(self) -> None:
        """Note that the pages that earlier plans published have been launched."""
        self._unwritten.clear()
        self._unwritten_frames.clear()

    def shared(self, seq: Sequence) -> Shared:
        """Pages that hold the beginning of its prompt already. Its last token is computed in any case.

        Pages that this plan's own prefills are to write count if one launch writes and reads them: every layer stores
        before it attends.
        """
        size = self.pages.page_size
        found = self.pages.find(seq.prefix[: (seq.length - 1) // size])
        pages = _in_time(found, self._unwritten, seq)
        found = self.frames.find(seq.frame_keys[: seq.frames_before(len(pages) * size)])
        frames = _in_time(found, self._unwritten_frames, seq)
        while seq.frames_before(len(pages) * size) > len(frames):  # those that are found may be fewer
            pages.pop()
        if len(pages) * size < self._least_shared(seq):
            return Shared([], [])
        return Shared(pages, frames[: seq.frames_before(len(pages) * size)])

    def _least_shared(self, seq: Sequence) -> int:
        """Tokens that it must have in common with others, so that it does not compute them."""
        if seq.continues:
            return 0
        return self.policy.min_cached(seq.has_voice)

    def tokens_to_prefill(self, seq: Sequence) -> int:
        """Tokens of its prompt and past frames that no page holds and that its prompt does not bring."""
        return seq.prefill_length - max(seq.given, self.pages.page_size * len(self.shared(seq).pages))

    def has_room(self, seq: Sequence, shared: Shared) -> bool:
        """Whether there are pages for the rest of its prompt and its past frames, beside those that were found."""
        needed = self.pages.pages_for(seq.length + seq.num_scheduled) - len(shared.pages)
        frames = self._frames(seq) - len(shared.frames)
        room = needed <= self.pages.available - self.pages.free_among(shared.pages)
        return room and frames <= self.frames.available - self.frames.free_among(shared.frames)

    def start(self, seq: Sequence, shared: Shared) -> bool:
        """Give `seq` the pages that were found for it, and new ones for the rest of its prompt and its past frames.
        False: there are too few."""
        self.pages.hold(shared.pages)
        self.frames.hold(shared.frames)
        self._give(seq, *shared)
        if not self.grow(seq):
            self.free(seq)
            return False
        seq.num_cached = len(shared.pages) * self.pages.page_size
        seq.piece = range(seq.first_computed, seq.first_computed)
        return True

    def depends(self, shared: Shared) -> bool:
        """Whether this plan's prefills are to write some of these pages."""
        frames = any(page in self._unwritten_frames for page in shared.frames)
        return frames or any(page in self._unwritten for page in shared.pages)

    def publish(self, seq: Sequence) -> None:
        """Let others find the pages of its prompt that its present piece fills, and before the first one those of what
        it brings."""
        size = self.pages.page_size
        start = seq.num_cached if seq.piece.start == seq.first_computed else seq.piece.start
        new = slice(start // size, seq.piece.stop // size)
        for page in self.pages.publish(seq.pages[new], seq.prefix[new]):
            self._unwritten[page] = seq.num_evals
        frames = slice(seq.frames_before(new.start * size), seq.frames_before(new.stop * size))
        for page in self.frames.publish(seq.frame_pages[frames], seq.frame_keys[frames]):
            self._unwritten_frames[page] = seq.num_evals

    def hand_on(self, seq: Sequence, following: Sequence) -> None:
        """Let the prompt that follows `seq` in its request find the pages of what it repeats.

        The last frame may not be there: only the step after it computes its keys and values.
        """
        full = (seq.length + seq.num_generated - 1) // self.pages.page_size
        self.pages.publish(seq.pages[:full], following.prefix[:full])

    def grow(self, seq: Sequence) -> bool:
        """Give `seq` more pages, so that it can hold its next frame: with a reserve if there are enough, else just
        those. False: there are too few."""
        tokens, frames = seq.length + seq.num_scheduled, self._frames(seq)
        reserve = max(0, min(self.policy.reserve_tokens, seq.max_frames - seq.num_scheduled))
        for more in (reserve, 0):
            pages = self.pages.allocate(self.pages.pages_for(tokens + more) - len(seq.pages))
            if pages is None:
                continue
            more_frames = self.frames.allocate((frames and frames + more) - len(seq.frame_pages))
            if more_frames is not None:
                self._give(seq, seq.pages + pages, seq.frame_pages + more_frames)
                return True
            self.pages.free(pages)
        return False

    def forget(self, seq: Sequence) -> None:
        """A launch of `seq` has failed, so nobody else may rely on what its pages hold."""
        self.pages.forget(seq.pages)
        self.frames.forget(seq.frame_pages)

    def free(self, seq: Sequence) -> None:
        self.pages.free(seq.pages)
        self.frames.free(seq.frame_pages)
        self._give(seq, [], [])

    def _frames(self, seq: Sequence) -> int:
        """Frames that need a page each: none where the family has no page sets by frame."""
        return seq.num_frames if self.frames.count else 0

    def _give(self, seq: Sequence, pages: list[int], frames: list[int]) -> None:
        seq.pages, seq.frame_pages, seq.room = pages, frames, len(pages) * self.pages.page_size - seq.length
        if self.frames.count:
            seq.room = min(seq.room, len(frames) - len(seq.frame_at) - 1)


def _in_time(found: list[int], unwritten: Mapping[int, int], seq: Sequence) -> list[int]:
    """The first of the pages found, up to one that another launch than that of `seq` is to write."""
    return list(takewhile(lambda page: unwritten.get(page, seq.num_evals) == seq.num_evals, found))

"""Which pages a request gets: those that hold the beginning of its prompt already, and new ones. No torch."""

from __future__ import annotations

from itertools import takewhile

from stentor.config import Policy
from stentor.engine.page_allocator import PageAllocator
from stentor.engine.sequence import Sequence


class PageTables:
    """Pages of the scheduler's requests, in `Sequence.pages`."""

    def __init__(self, pages: PageAllocator, policy: Policy) -> None:
        self.pages, self.policy = pages, policy
        self._unwritten: dict[int, int] = {}  # pages that this plan's prefills are to write: num_evals of the launch

    def begin_plan(self) -> None:
        """What earlier plans have published has been launched."""
        self._unwritten.clear()

    def shared(self, seq: Sequence) -> list[int]:
        """Pages that hold the beginning of its prompt already. Its last token is computed in any case.

        Pages that this plan's own prefills are to write count if one launch writes and reads them: every layer stores
        before it attends.
        """
        found = self.pages.find(seq.prefix[: (seq.length - 1) // self.pages.page_size])
        pages = list(takewhile(lambda page: self._unwritten.get(page, seq.num_evals) == seq.num_evals, found))
        return pages if len(pages) * self.pages.page_size >= self._least_shared(seq) else []

    def _least_shared(self, seq: Sequence) -> int:
        """Tokens that it must have in common with others, so that it does not compute them."""
        if seq.continues:
            return 0
        return self.policy.min_cached(seq.has_voice)

    def tokens_to_prefill(self, seq: Sequence) -> int:
        """Tokens of its prompt and past frames that no page holds."""
        return seq.prefill_length - self.pages.page_size * len(self.shared(seq))

    def has_room(self, seq: Sequence, shared: list[int]) -> bool:
        """Whether there are pages for the rest of its prompt and its past frames, beside those that were found."""
        needed = self.pages.pages_for(seq.length + seq.num_scheduled) - len(shared)
        return needed <= self.pages.available - self.pages.free_among(shared)

    def start(self, seq: Sequence, shared: list[int]) -> bool:
        """Give `seq` the pages that were found for it, and new ones for the rest of its prompt and its past frames.
        False: there are too few."""
        self.pages.hold(shared)
        self._give(seq, shared)
        if not self.grow(seq):
            self.free(seq)
            return False
        seq.num_cached = len(shared) * self.pages.page_size
        seq.piece = range(seq.num_cached, seq.num_cached)
        return True

    def depends(self, shared: list[int]) -> bool:
        """Whether this plan's prefills are to write some of these pages."""
        return any(page in self._unwritten for page in shared)

    def publish(self, seq: Sequence) -> None:
        """Let others find the pages of its prompt that its present piece fills."""
        size = self.pages.page_size
        new = slice(seq.piece.start // size, seq.piece.stop // size)
        for page in self.pages.publish(seq.pages[new], seq.prefix[new]):
            self._unwritten[page] = seq.num_evals

    def hand_on(self, seq: Sequence, following: Sequence) -> None:
        """Let the prompt that follows `seq` in its request find the pages of what it repeats.

        The last frame may not be there: only the step after it computes its keys and values.
        """
        full = (seq.length + seq.num_generated - 1) // self.pages.page_size
        self.pages.publish(seq.pages[:full], following.prefix[:full])

    def grow(self, seq: Sequence) -> bool:
        """Give `seq` more pages, so that it can hold its next frame: with a reserve if there are enough, else just
        those. False: there are too few."""
        tokens = seq.length + seq.num_scheduled
        with_reserve = min(tokens + self.policy.reserve_tokens, seq.length + seq.max_frames)
        held = len(seq.pages)
        for total in (max(with_reserve, tokens), tokens):
            allocated = self.pages.allocate(self.pages.pages_for(total) - held)
            if allocated is not None:
                self._give(seq, seq.pages + allocated)
                return True
        return False

    def forget(self, seq: Sequence) -> None:
        """A launch of `seq` has failed, so nobody else may rely on what its pages hold."""
        self.pages.forget(seq.pages)

    def free(self, seq: Sequence) -> None:
        self.pages.free(seq.pages)
        self._give(seq, [])

    def _give(self, seq: Sequence, pages: list[int]) -> None:
        seq.pages, seq.room = pages, len(pages) * self.pages.page_size - seq.length

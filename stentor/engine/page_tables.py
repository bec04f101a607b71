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
        self._new_keys: dict[bytes, int] = {}  # published by this plan's prefills: num_evals of the launch

    def begin_plan(self) -> None:
        """What earlier plans have published has been launched."""
        self._new_keys.clear()

    def shared(self, seq: Sequence) -> list[int]:
        """Pages that hold the beginning of its prompt already. Its last token is computed in any case.

        Pages that this plan's own prefills are to write count if one launch writes and reads them: every layer stores
        before it attends.
        """
        keys = seq.prefix[: (seq.length - 1) // self.pages.page_size]
        same_launch = takewhile(lambda key: self._new_keys.get(key, seq.num_evals) == seq.num_evals, keys)
        pages = self.pages.find(same_launch)
        return pages if len(pages) * self.pages.page_size >= self.policy.min_cached_tokens else []

    def depends(self, seq: Sequence) -> bool:
        """Whether it would share pages that this plan's prefills are to write."""
        return any(key in self._new_keys for key in seq.prefix[: len(self.shared(seq))])

    def tokens_to_prefill(self, seq: Sequence) -> int:
        """Tokens of its prompt and past frames that no page holds."""
        return seq.length - self.pages.page_size * len(self.shared(seq)) + seq.num_scheduled

    def start(self, seq: Sequence) -> bool:
        """Give `seq` pages for its prompt and past frames, and publish the prompt's. False: there are too few."""
        seq.pages = shared = self.shared(seq)
        self.pages.hold(shared)
        allocated = self.grow(seq)
        if allocated is None:
            self.free(seq)
            return False
        seq.pages = shared + allocated
        seq.num_cached = len(shared) * self.pages.page_size
        self._new_keys |= dict.fromkeys(seq.prefix[len(shared) :], seq.num_evals)
        self.pages.publish(seq.pages, seq.prefix)
        return True

    def grow(self, seq: Sequence) -> list[int] | None:
        """More pages, so that `seq` can hold its next frame: with a reserve if there are enough, else just those."""
        tokens = seq.length + seq.num_scheduled
        with_reserve = min(tokens + self.policy.reserve_tokens, seq.length + seq.max_frames)
        held = len(seq.pages)
        for total in (max(with_reserve, tokens), tokens):
            allocated = self.pages.allocate(self.pages.pages_for(total) - held)
            if allocated is not None:
                return allocated
        return None

    def forget(self, seq: Sequence) -> None:
        """A launch of `seq` has failed, so nobody else may rely on what its pages hold."""
        self.pages.forget(seq.pages)

    def free(self, seq: Sequence) -> None:
        self.pages.free(seq.pages)
        seq.pages = []

"""The host's free list of key-value pages. Plain Python, no tensors."""

from __future__ import annotations


class PageAllocator:
    """Pages `0 .. count - 1` of `page_size` tokens each. The page freed last is allocated first (warm in cache)."""

    def __init__(self, count: int, page_size: int) -> None:
        self.count, self.page_size = count, page_size
        self._free = list(range(count - 1, -1, -1))

    @property
    def available(self) -> int:
        return len(self._free)

    def pages_for(self, tokens: int) -> int:
        """Pages that `tokens` tokens need."""
        return -(-tokens // self.page_size)

    def allocate(self, count: int) -> list[int] | None:
        """`count` pages. None, and nothing is allocated, when there are not as many."""
        if count > len(self._free):
            return None
        first = len(self._free) - count
        taken = self._free[first:]
        del self._free[first:]
        return taken

    def free(self, pages: list[int]) -> None:
        """Return allocated pages."""
        self._free.extend(pages)
        assert len(self._free) <= self.count, "a page was returned twice"

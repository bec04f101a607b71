"""The host's free list of key-value pages. Plain Python; no tensors."""

from __future__ import annotations


class PagePool:
    """Pages `0 .. count - 1` of `size` tokens each. Freed pages are reused last in, first out (warm in cache)."""

    def __init__(self, count: int, size: int) -> None:
        self.count, self.size = count, size
        self._free = list(range(count - 1, -1, -1))

    @property
    def available(self) -> int:
        return len(self._free)

    def pages_for(self, tokens: int) -> int:
        """Pages that `tokens` tokens need."""
        return -(-tokens // self.size)

    def take(self, count: int) -> list[int] | None:
        """`count` pages, or None (and nothing taken) when there are not as many."""
        if count > len(self._free):
            return None
        taken = self._free[len(self._free) - count :]
        del self._free[len(self._free) - count :]
        return taken

    def give(self, pages: list[int]) -> None:
        """Return pages taken before."""
        self._free.extend(pages)
        assert len(self._free) <= self.count, "a page was returned twice"

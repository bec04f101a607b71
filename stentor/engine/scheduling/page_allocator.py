"""The host's account of key-value pages: free, held by one request, or shared. Plain Python, no tensors."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable


class PageAllocator:
    """Pages `0 .. count - 1` of `page_size` tokens each. Prompts that begin alike share pages (a prefix cache).

    A request publishes its prompt's full pages under keys of their content, and others find them and hold them too.
    A published page stays findable after its last holder has freed it, until it is allocated again: first the free
    pages without a key are allocated, then those that were freed longest ago. Only free pages are ever reused, so the
    prefix cache takes nothing from a running request.
    """

    def __init__(self, count: int, page_size: int) -> None:
        self.count, self.page_size = count, page_size
        self._free = list(range(count - 1, -1, -1))  # without a key. The page freed last is allocated first
        self._kept: OrderedDict[int, None] = OrderedDict()  # free, with a key, the one freed longest ago first
        self._holders: dict[int, int] = {}
        self._key_of: dict[int, bytes] = {}
        self._page_of: dict[bytes, int] = {}
        self.evictions = 0  # pages that could be found and were given to another

    @property
    def available(self) -> int:
        return len(self._free) + len(self._kept)

    @property
    def kept(self) -> int:
        """Free pages whose content can still be found."""
        return len(self._kept)

    def free_among(self, pages: Iterable[int]) -> int:
        """How many of these pages, which were found, nobody holds."""
        return sum(page in self._kept for page in pages)

    def pages_for(self, tokens: int) -> int:
        """Pages that `tokens` tokens need."""
        return -(-tokens // self.page_size)

    def allocate(self, count: int) -> list[int] | None:
        """`count` pages. None, and nothing is allocated, when there are not as many."""
        if count > self.available:
            return None
        first = max(0, len(self._free) - max(0, count))
        taken = self._free[first:]
        del self._free[first:]
        while len(taken) < count:
            page, _ = self._kept.popitem(last=False)
            self._unpublish(page)
            self.evictions += 1
            taken.append(page)
        self._holders.update(dict.fromkeys(taken, 1))
        return taken

    def find(self, keys: Iterable[bytes]) -> list[int]:
        """The pages that hold what the keys name, up to the first that no page holds."""
        pages = []
        for key in keys:
            if key not in self._page_of:
                break
            pages.append(self._page_of[key])
        return pages

    def hold(self, pages: list[int]) -> None:
        """Another request holds pages that were found."""
        for page in pages:
            self._holders[page] = self._holders.get(page, 0) + 1
            self._kept.pop(page, None)

    def publish(self, pages: list[int], keys: Iterable[bytes]) -> list[int]:
        """Say what pages hold, or will hold before anybody else's launch reads them. Known keys keep their page.

        Returns the pages that can be found now, and could not before.
        """
        new = []
        for page, key in zip(pages, keys, strict=False):
            if key not in self._page_of and page not in self._key_of:
                self._page_of[key], self._key_of[page] = page, key
                new.append(page)
        return new

    def forget(self, pages: list[int]) -> None:
        """Forget what these pages were published as."""
        for page in pages:
            self._unpublish(page)
            if page in self._kept:
                del self._kept[page]
                self._free.append(page)

    def free(self, pages: list[int]) -> None:
        """A request holds these pages no more."""
        for page in reversed(pages):  # the beginning of a prompt is of use to most others, so it is kept longest
            self._holders[page] -= 1
            if self._holders[page]:
                continue
            del self._holders[page]
            if page in self._key_of:
                self._kept[page] = None
            else:
                self._free.append(page)

    def _unpublish(self, page: int) -> None:
        key = self._key_of.pop(page, None)
        if key is not None:
            del self._page_of[key]

"""Pages of requests: who holds which, and which hold the beginning of a prompt. No torch.

`PageAllocator` counts pages of one kind. A family may have page sets that count frames, beside the
one that counts positions. All of them have one table, whose pages hold one frame. A request gets,
shares and returns pages of both tables together (`PageTables`).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping
from itertools import takewhile
from typing import NamedTuple

from stentor.config import Policy
from stentor.engine.scheduling.sequence import Sequence


class PageAllocator:
    """Pages `0 .. count - 1` of `page_size` tokens each. Prompts that begin alike share pages (a
    prefix cache).

    A request publishes its prompt's full pages under keys of their content, and others find them
    and hold them too. A published page stays findable after its last holder has freed it, until it
    is allocated again: first the free pages without a key are allocated, then those that were freed
    longest ago. Only free pages are ever reused, so the prefix cache takes nothing from a running
    request.
    """

    def __init__(self, count: int, page_size: int) -> None:
        self.count = count
        self.page_size = page_size
        # without a key. The page freed last is allocated first
        self._free = list(range(count - 1, -1, -1))
        # free, with a key, the one freed longest ago first
        self._kept: OrderedDict[int, None] = OrderedDict()
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
        without_key = min(max(0, count), len(self._free))
        first = len(self._free) - without_key
        pages = self._free[first:]
        del self._free[first:]

        while len(pages) < count:
            page, _ = self._kept.popitem(last=False)
            self._unpublish(page)
            self.evictions += 1
            pages.append(page)

        for page in pages:
            self._holders[page] = 1
        return pages

    def find(self, keys: Iterable[bytes]) -> list[int]:
        """The pages that hold what the keys name, up to the first that no page holds."""
        pages = []
        for key in keys:
            page = self._page_of.get(key)
            if page is None:
                break
            pages.append(page)
        return pages

    def hold(self, pages: list[int]) -> None:
        """Another request holds pages that were found."""
        for page in pages:
            self._holders[page] = self._holders.get(page, 0) + 1
            self._kept.pop(page, None)

    def publish(self, pages: list[int], keys: Iterable[bytes]) -> list[int]:
        """Record what pages hold, or will hold before another launch reads them. Known keys
        keep their page.

        Returns the pages that can be found now, and could not before.
        """
        new = []
        for page, key in zip(pages, keys, strict=False):
            is_published = key in self._page_of or page in self._key_of
            if is_published:
                continue
            self._page_of[key] = page
            self._key_of[page] = key
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
        # the beginning of a prompt is of use to most others, so it is kept longest
        for page in reversed(pages):
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


class Shared(NamedTuple):
    """Pages that hold the beginning of a prompt: its positions, and those of its frames that stand
    there."""

    pages: list[int]
    frames: list[int]


class PageTables:
    """Pages of the scheduler's requests, in `Sequence.pages` and `Sequence.frame_pages`.

    frames: pages of one frame each. There are none where the family has no page sets by frame.
    """

    def __init__(
        self, pages: PageAllocator, policy: Policy, frames: PageAllocator | None = None
    ) -> None:
        self.pages = pages
        self.policy = policy
        if frames is None:
            self.frames = PageAllocator(0, 1)
        else:
            self.frames = frames
        # pages that this plan's prefills are to write: num_evals of the launch
        self._unwritten: dict[int, int] = {}
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
        """Pages that hold the beginning of its prompt already. Its last token is computed in any
        case.

        Pages that this plan's own prefills are to write count if one launch writes and reads them:
        every layer stores before it attends.
        """
        size = self.pages.page_size
        full_pages = (seq.length - 1) // size
        cached = self.pages.find(seq.prefix[:full_pages])
        pages = _in_time(cached, self._unwritten, seq)

        num_frames = seq.frames_before(len(pages) * size)
        cached = self.frames.find(seq.frame_keys[:num_frames])
        frames = _in_time(cached, self._unwritten_frames, seq)
        # those that are found may be fewer
        while num_frames > len(frames):
            pages.pop()
            num_frames = seq.frames_before(len(pages) * size)

        tokens = len(pages) * size
        if not seq.continues and tokens < self.policy.min_cached(seq.has_voice):
            return Shared([], [])  # so few tokens are computed
        return Shared(pages, frames[:num_frames])

    def has_room(self, seq: Sequence, shared: Shared) -> bool:
        """Whether there are pages for the rest of its prompt and its past frames, beside those that
        were found."""
        tokens = seq.length + seq.num_scheduled
        pages = self.pages.pages_for(tokens) - len(shared.pages)
        free_pages = self.pages.available - self.pages.free_among(shared.pages)
        if pages > free_pages:
            return False

        frames = self._frames(seq) - len(shared.frames)
        free_frames = self.frames.available - self.frames.free_among(shared.frames)
        return frames <= free_frames

    def start(self, seq: Sequence, shared: Shared) -> bool:
        """Assign `seq` its shared pages, and new ones for the rest of its prompt and its past
        frames. Returns False if there are too few."""
        self.pages.hold(shared.pages)
        self.frames.hold(shared.frames)
        self._give(seq, *shared)
        if not self.grow(seq):
            self.free(seq)
            return False
        seq.num_cached = len(shared.pages) * self.pages.page_size
        return True

    def depends(self, shared: Shared) -> bool:
        """Whether this plan's prefills are to write some of these pages."""
        frames = any(page in self._unwritten_frames for page in shared.frames)
        return frames or any(page in self._unwritten for page in shared.pages)

    def publish(self, seq: Sequence) -> None:
        """Publish the pages of its prompt that its present piece fills, and before the first one
        those of the prefix that it brings."""
        size = self.pages.page_size
        if seq.piece.start == seq.first_computed:
            start = seq.num_cached
        else:
            start = seq.piece.start
        first = start // size
        stop = seq.piece.stop // size
        for page in self.pages.publish(seq.pages[first:stop], seq.prefix[first:stop]):
            self._unwritten[page] = seq.num_evals

        frames = slice(seq.frames_before(first * size), seq.frames_before(stop * size))
        for page in self.frames.publish(seq.frame_pages[frames], seq.frame_keys[frames]):
            self._unwritten_frames[page] = seq.num_evals

    def hand_on(self, seq: Sequence, following: Sequence) -> None:
        """Publish the pages that the next prompt of the request repeats.

        The last frame may not be there: only the step after it computes its keys and values.
        """
        stored = seq.length + seq.num_generated - 1
        full = stored // self.pages.page_size
        self.pages.publish(seq.pages[:full], following.prefix[:full])

    def grow(self, seq: Sequence) -> bool:
        """Allocate pages to `seq` for its next frame, with a reserve if there are enough. Returns
        False if there are too few."""
        tokens = seq.length + seq.num_scheduled
        frames = self._frames(seq)
        remaining = seq.max_frames - seq.num_scheduled
        reserve = max(0, min(self.policy.reserve_tokens, remaining))
        for more in (reserve, 0):
            total = self.pages.pages_for(tokens + more)
            pages = self.pages.allocate(total - len(seq.pages))
            if pages is None:
                continue

            total = frames and frames + more  # none where there are no page sets by frame
            frame_pages = self.frames.allocate(total - len(seq.frame_pages))
            if frame_pages is not None:
                self._give(seq, seq.pages + pages, seq.frame_pages + frame_pages)
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
        if self.frames.count:
            return seq.num_frames
        return 0

    def _give(self, seq: Sequence, pages: list[int], frames: list[int]) -> None:
        seq.pages = pages
        seq.frame_pages = frames
        seq.room = len(pages) * self.pages.page_size - seq.length
        if self.frames.count:
            prompt_frames = seq.given_frames + len(seq.frame_at)
            frame_room = len(frames) - prompt_frames - 1
            seq.room = min(seq.room, frame_room)


def _in_time(pages: list[int], unwritten: Mapping[int, int], seq: Sequence) -> list[int]:
    """The first of the pages found, up to one that another launch than that of `seq` is to
    write."""
    evals = seq.num_evals
    return list(takewhile(lambda page: unwritten.get(page, evals) == evals, pages))

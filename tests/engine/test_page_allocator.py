"""Pages: each is free, held by one request, or shared by those whose prompts begin alike."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from stentor.engine.scheduling.pages import PageAllocator
from tests.helpers.invariants import check_pages

A, B, C = b"a", b"b", b"c"


def allocated(pool: PageAllocator, count: int) -> list[int]:
    pages = pool.allocate(count)
    assert pages is not None
    return pages


def test_a_pool_hands_out_each_page_once_and_takes_it_back():
    pool = PageAllocator(5, 16)
    first, second = allocated(pool, 2), allocated(pool, 3)
    assert sorted(first + second) == [0, 1, 2, 3, 4]
    assert pool.available == 0
    pool.free(first)
    assert pool.available == 2


@pytest.mark.parametrize("count", [0, -1])
def test_no_pages_are_allocated_where_none_are_needed(count: int):
    pool = PageAllocator(3, 16)
    assert pool.allocate(count) == []
    assert pool.available == 3


def test_a_request_for_too_many_pages_takes_none():
    pool = PageAllocator(3, 16)
    assert pool.allocate(4) is None
    assert pool.available == 3


def test_pages_are_counted_in_whole_pages():
    pool = PageAllocator(3, 16)
    assert [pool.pages_for(n) for n in (0, 1, 16, 17, 48)] == [0, 1, 1, 2, 3]


def test_published_pages_are_found_up_to_the_first_that_is_not_there():
    pool = PageAllocator(4, 16)
    pages = allocated(pool, 2)
    pool.publish(pages, [A, B])
    assert pool.find([A, B, C]) == pages
    assert pool.find([C, A]) == []


def test_a_shared_page_is_free_when_its_last_holder_has_left():
    pool = PageAllocator(2, 16)
    pages = allocated(pool, 2)
    pool.publish(pages, [A])
    pool.hold(pages[:1])
    pool.free(pages)
    assert pool.available == 1
    pool.free(pages[:1])
    assert pool.available == 2
    assert pool.kept == 1


def test_freed_pages_are_reused_where_nothing_can_be_found_in_them_then_the_oldest():
    pool = PageAllocator(3, 16)
    plain, a, b = ([page] for page in allocated(pool, 3))
    pool.publish(a, [A])
    pool.publish(b, [B])
    for pages in (a, plain, b):
        pool.free(pages)
    assert allocated(pool, 1) == plain
    assert pool.evictions == 0
    assert allocated(pool, 1) == a
    assert pool.evictions == 1
    assert pool.find([A]) == []
    assert pool.find([B]) == b


def test_the_end_of_a_prompt_is_given_up_before_its_beginning():
    pool = PageAllocator(3, 16)
    pages = allocated(pool, 3)
    pool.publish(pages, [A, B, C])
    pool.free(pages)
    allocated(pool, 1)
    assert pool.find([A, B, C]) == pages[:2]


def test_what_is_forgotten_is_not_found_whether_it_is_held_or_free():
    pool = PageAllocator(2, 16)
    pages = allocated(pool, 2)
    pool.publish(pages, [A, B])
    pool.free(pages[1:])
    pool.forget(pages)
    assert pool.find([A]) == pool.find([B]) == []
    check_pages(pool, pages[:1])


class Requests(RuleBasedStateMachine):
    """Requests whose prompts are paths in a small tree, on few pages. `content` is what each page holds."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = PageAllocator(9, 16)
        self.open: list[list[int]] = []
        self.content: dict[int, bytes | None] = {}

    @rule(path=st.lists(st.sampled_from([A, B]), max_size=4), more=st.integers(0, 2))
    def start(self, path: list[bytes], more: int) -> None:
        keys = [b"".join(path[: i + 1]) for i in range(len(path))]
        shared = self.pool.find(keys)
        assert [self.content[page] for page in shared] == keys[: len(shared)]
        self.pool.hold(shared)
        new = self.pool.allocate(len(path) - len(shared) + more)
        if new is None:
            self.pool.free(shared)
            return
        assert not {page for pages in self.open for page in pages} & set(
            new
        )  # nobody's page is written
        assert not set(shared) & set(new)
        self.content.update(zip(new, [*keys[len(shared) :], *[None] * more], strict=True))
        self.pool.publish(shared + new, keys)
        self.open.append(shared + new)

    @rule(at=st.integers(0, 8), failed=st.booleans())
    def end(self, at: int, failed: bool) -> None:
        if self.open:
            pages = self.open.pop(at % len(self.open))
            if failed:
                self.pool.forget(pages)
                assert not set(self.pool.find([self.content[p] or C for p in pages])) & set(pages)
            self.pool.free(pages)

    @invariant()
    def every_page_is_accounted_for(self) -> None:
        check_pages(self.pool, [page for pages in self.open for page in pages])


TestRequests = Requests.TestCase
TestRequests.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)

from stentor.engine.page_allocator import PageAllocator


def test_a_pool_hands_out_each_page_once_and_takes_it_back():
    pool = PageAllocator(5, 16)
    first, second = pool.allocate(2), pool.allocate(3)
    assert first is not None
    assert second is not None
    assert sorted(first + second) == [0, 1, 2, 3, 4]
    assert pool.available == 0
    pool.free(first)
    assert pool.available == 2


def test_a_request_for_too_many_pages_takes_none():
    pool = PageAllocator(3, 16)
    assert pool.allocate(4) is None
    assert pool.available == 3


def test_pages_are_counted_in_whole_pages():
    pool = PageAllocator(3, 16)
    assert [pool.pages_for(n) for n in (0, 1, 16, 17, 48)] == [0, 1, 1, 2, 3]

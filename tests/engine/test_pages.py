from stentor.engine.page_allocator import PagePool


def test_a_pool_hands_out_each_page_once_and_takes_it_back():
    pool = PagePool(5, 16)
    first, second = pool.take(2), pool.take(3)
    assert first is not None
    assert second is not None
    assert sorted(first + second) == [0, 1, 2, 3, 4]
    assert pool.available == 0
    pool.give(first)
    assert pool.available == 2


def test_a_request_for_too_many_pages_takes_none():
    pool = PagePool(3, 16)
    assert pool.take(4) is None
    assert pool.available == 3


def test_pages_are_counted_in_whole_pages():
    pool = PagePool(3, 16)
    assert [pool.pages_for(n) for n in (0, 1, 16, 17, 48)] == [0, 1, 1, 2, 3]

"""The search for the highest rate that passes."""

import asyncio

import pytest

from stentor.bench.campaign import highest_passing


@pytest.mark.parametrize("limit", [0.6, 1.0, 3.7, 17.2, 63.9])
def test_the_search_finds_the_highest_rate_that_passes_to_its_tolerance(limit):
    tried = []

    async def passes(rate):
        tried.append(rate)
        return rate <= limit

    found = asyncio.run(highest_passing(passes, 0.5, 64.0, 0.05))
    assert found <= limit
    assert limit / found <= 1.05
    assert len(tried) == len(set(tried)) <= 13


def test_the_search_stops_at_its_bounds():
    async def never(rate):
        return False

    async def always(rate):
        return True

    assert asyncio.run(highest_passing(never, 0.5, 64.0, 0.05)) is None
    assert asyncio.run(highest_passing(always, 0.5, 50.0, 0.05)) == 50.0

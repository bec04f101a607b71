"""The highest rate that still passes: doubling, then bisection."""

from collections.abc import Awaitable, Callable


async def highest_passing(
    passes: Callable[[float], Awaitable[bool]], lowest: float, highest: float, tolerance: float
) -> float | None:
    """Search rates in [lowest, highest].

    Doubles from `lowest` until a rate fails, then halves the interval (geometrically) until its ends differ by less
    than `tolerance` (0.05 = 5 %). Passing is taken to be monotonic. Noise near the edge moves the answer by about
    the tolerance.

    Returns:
        The highest rate that was tried and passed, or None if even `lowest` failed.
    """
    good: float | None = None
    bad: float | None = None
    rate = lowest
    while bad is None and (good is None or good < highest):
        if await passes(rate):
            good, rate = rate, min(rate * 2, highest)
        elif good is None:
            return None
        else:
            bad = rate
    while good is not None and bad is not None and bad / good > 1 + tolerance:
        rate = (good * bad) ** 0.5
        if await passes(rate):
            good = rate
        else:
            bad = rate
    return good

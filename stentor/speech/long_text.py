"""Work on a text, kept off the event loop where the text is long."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

QUICK_CHARS = 1000
"""Longest text that is worked on in the event loop: to hand it to a thread takes as long."""


async def worked(chars: int, work: Callable[[], T]) -> T:
    """Return what `work` returns. It runs in a thread if its text has more than QUICK_CHARS
    characters, so that the event loop goes on."""
    if chars <= QUICK_CHARS:
        return work()
    return await asyncio.to_thread(work)

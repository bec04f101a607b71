"""Tasks that begin at once, so that requests that come together are handled one after another.

The event loop runs one part of each task in turn. Of 16 requests that came at once, the first would get to its engine
when all 16 have been read, and the engine would do nothing until then.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")

if sys.version_info >= (3, 12):

    def begin(work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """A task of `work` that has run up to where it first waits, or to its end."""
        return asyncio.Task(work, loop=asyncio.get_running_loop(), eager_start=True)

else:

    def begin(work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """A task of `work`. This Python has none that begin at once: it begins when the loop comes to it."""
        return asyncio.create_task(work)

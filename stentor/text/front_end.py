"""What a text front end is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

Check = Callable[[], None]
"""Called between parts of long work. It raises to stop the work, for example when its request has been given up."""


def proceed() -> None:
    """The check that never stops anything."""


class FrontEnd(Protocol):
    """Written text to what a checkpoint was trained to read."""

    def __call__(self, text: str, check: Check = proceed) -> str:
        """`check` is called at least once for every few hundred characters, and before the first."""
        ...


def plain(text: str, check: Check = proceed) -> str:
    """Text as it is."""
    check()
    return text

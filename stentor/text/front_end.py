"""Interface of a text front end."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from stentor.text.trace import Trace

Check = Callable[[], None]
"""Called between parts of long work. It raises to stop the work, for example when its request has
been given up."""


def proceed() -> None:
    """The check that never stops anything."""


class FrontEnd(Protocol):
    """Written text to what a checkpoint was trained to read."""

    def __call__(self, text: str, check: Check = proceed) -> Trace:
        """Return what is read, and the word of `text` that each character of it came from.

        `check` is called at least once for every few hundred characters, and before the first.
        """
        ...

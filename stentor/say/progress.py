"""Progress on a terminal while `stentor say` works. Elsewhere nothing is shown."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from stentor.host.repeated import repeated

if TYPE_CHECKING:
    from tqdm import tqdm

REDRAW_SECONDS = 0.5


@contextmanager
def loading(what: str) -> Iterator[None]:
    """A line with the seconds that a load has taken so far."""
    if not sys.stderr.isatty():
        yield
        return
    started = time.monotonic()

    def show() -> None:
        seconds = time.monotonic() - started
        print(f"\rloading {what}: {seconds:.0f} s ", end="", file=sys.stderr, flush=True)

    try:
        with repeated(show, REDRAW_SECONDS, "loading"):
            yield
    finally:
        print("\r" + " " * (len(what) + 24) + "\r", end="", file=sys.stderr, flush=True)


class SpeakingBar:
    """A bar over the characters of a text, with the time left. done: characters that were spoken
    before."""

    def __init__(self, characters: int, spoken: int = 0) -> None:
        self._bar: tqdm[None] | None = None
        if sys.stderr.isatty():
            self._bar = _bar(characters, spoken)

    def at(self, character: int, seconds: float) -> None:
        """Show that `character` characters are spoken, in `seconds` seconds of audio."""
        if self._bar is not None:
            self._bar.set_postfix_str(f"{seconds:.1f} s of audio", refresh=False)
            self._bar.update(character - self._bar.n)

    def close(self) -> None:
        """Show the end, which the bar's own pace may have left out, and clear the line."""
        if self._bar is not None:
            self._bar.refresh()
            self._bar.close()


def _bar(characters: int, spoken: int) -> tqdm[None]:
    """The library is imported only where there is a terminal to draw on."""
    from tqdm import tqdm

    return tqdm(
        total=characters,
        initial=spoken,
        desc="speaking",
        unit=" chars",
        file=sys.stderr,
        leave=False,
        dynamic_ncols=True,
    )

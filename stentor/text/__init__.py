"""Text front ends. They turn written text into what a checkpoint was trained to read.

A checkpoint names its front end in its config (`"stentor": {"text_frontend": "english-phonemes"}`).
Without the key the tokenizer gets the text as it is.
"""

from __future__ import annotations

from collections.abc import Callable

from stentor.host.environment import ensure_home
from stentor.text.english.scripts import UNREAD, has_english
from stentor.text.front_end import Check, FrontEnd, proceed
from stentor.text.marks import NEVER, has_words
from stentor.text.trace import Trace


def languages(name: str | None) -> tuple[str, ...]:
    """The languages that the front end of this name reads. None are named for `plain`."""
    if name == "english-phonemes":
        return ("english",)
    return ()


def unread(name: str | None) -> str:
    """Pattern of what the front end of this name leaves out of a text."""
    if name == "english-phonemes":
        return UNREAD
    return NEVER


def reads(name: str | None) -> Callable[[str], bool]:
    """Whether the front end of this name has anything to read in a text."""
    if name == "english-phonemes":
        return has_english
    return has_words


def front_end(name: str | None) -> FrontEnd:
    """The front end that a checkpoint's config names. None means `plain`. Raises ValueError for
    unknown names."""
    if name is None:
        return plain
    if name == "english-phonemes":
        ensure_home()  # a library looks for its cache there while it is imported
        from stentor.text.english.phonemes import EnglishPhonemes

        return EnglishPhonemes()
    raise ValueError(f"must be 'english-phonemes' or absent, got {name!r}")


def british_phonemes() -> FrontEnd:
    """English text in British phonemes."""
    ensure_home()
    from stentor.text.english.accents import british
    from stentor.text.english.phonemes import EnglishPhonemes

    return EnglishPhonemes(british())


def plain(text: str, check: Check = proceed) -> Trace:
    """Text as it is."""
    check()
    return Trace.of(text)

"""Numbers that ElevenLabs' SDK breaks."""

from __future__ import annotations

import re

BROKEN_NUMBERS = {
    ".": re.compile(r"\d"),
    ":": re.compile(r"\d\d(?!\d)"),
    ",": re.compile(r"\d{3}(?!\d)"),
}
"""How a number continues behind a mark and the space that the SDK puts there."""
_MARKED_DIGIT = re.compile(r"\d([.:,]) $")


class NumberJoiner:
    """Joins the numbers that ElevenLabs' SDK breaks. Its `text_chunker` puts a space behind each
    mark, so that "3", ".", "14" of a language model come as "3. " and "14 "."""

    def __init__(self) -> None:
        self._mark = ""  # at the end of what was written, whose space is held back

    def write(self, text: str) -> str:
        """Text with the numbers joined. A space behind a digit and a mark waits for what
        follows."""
        goes_on = self._mark and BROKEN_NUMBERS[self._mark].match(text)
        if self._mark and text and not goes_on:
            text = f" {text}"
        if not text:
            return text

        marked = _MARKED_DIGIT.search(text)
        if marked is None:
            self._mark = ""
            return text
        self._mark = marked[1]
        return text[:-1]

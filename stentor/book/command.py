"""`stentor book`: from flags to a book in audio."""

from __future__ import annotations

import argparse
from typing import Any

from stentor.book import reading
from stentor.book.chapters import chosen, listed
from stentor.errors import InvalidRequest


def run(args: argparse.Namespace, load: dict[str, Any]) -> int:
    """Read a book aloud, with these arguments of `TTS`. Returns the exit code."""
    book = reading.read(args.input, args.alt_text)
    parts = chosen(book, args.matter, args.chapters)
    if args.list:
        for line in listed(book, parts):
            print(line)
        return 0
    raise InvalidRequest("output", "only --list is there yet")

"""Text that a voice cannot speak, as commands report it."""

from __future__ import annotations

from collections.abc import Sequence

EXIT_CODE = 5
"""Exit code of a command that wrote its audio without a part of the text."""
MAX_PIECES = 8
MAX_CHARS = 40


def warning(pieces: Sequence[str]) -> str:
    """Return a sentence that names the first pieces."""
    return f"the voice cannot speak, and left out: {first_of(pieces)}"


def first_of(pieces: Sequence[str]) -> str:
    """Return the first pieces, each clipped, and how many more there are."""
    text = ", ".join(_clipped(piece) for piece in pieces[:MAX_PIECES])
    if len(pieces) > MAX_PIECES:
        text += f" and {len(pieces) - MAX_PIECES} more"
    return text


def _clipped(piece: str) -> str:
    if len(piece) <= MAX_CHARS:
        return piece
    return piece[: MAX_CHARS - 1] + "…"

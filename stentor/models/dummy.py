"""Token ids for models that have no files: one per word, number or mark, so prompts are about as long as real ones."""

from __future__ import annotations

import re
import zlib

_OWN = "\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af"  # characters that are tokens by themselves
_PIECES = re.compile(rf"[{_OWN}]| ?[^\W\d_{_OWN}]+|\d|[^\w\s]+|[\s_]+")
_FIRST = 1024  # below, vocabularies may have ids of their own


def pieces(text: str, vocab: int) -> list[int]:
    """Ids below `vocab`, and where it has room not below 1,024; the same for the same piece."""
    first = min(_FIRST, vocab // 2)
    return [first + zlib.crc32(piece.encode()) % (vocab - first) for piece in _PIECES.findall(text)]

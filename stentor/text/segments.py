"""Text with marks of its own (markup.py) to the segments that are spoken one after another."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from stentor.text.lexicon import Lexicon
from stentor.text.marks import NO_MARKS, TextMarks, speakers
from stentor.text.markup import Part, parts, shown
from stentor.text.sentences import Segment, Word, split

_WORD = re.compile(r"\S+")
_TAG = re.compile(r"<[^<>]*>")


@dataclass(frozen=True)
class Reading:
    """How a text is read: marks that the family wants kept together, whether it reads phonemes, the user's lexicon."""

    marks: TextMarks = NO_MARKS
    phonemes: bool = False
    lexicon: Lexicon | None = None

    def segments(self, text: str, max_chars: int, granularity: str, speaker: str = "") -> list[Segment]:
        """As `split` cuts it, and at every pause that the text asks for. Segments without text are left out.

        InvalidRequest("text") for pauses that are too long together.
        """
        found: list[Segment] = []
        before = 0.0
        for part in parts(text, self.phonemes, self.lexicon):
            if part.text.strip():
                cut = split(part.text, max_chars, granularity, self.marks, speaker)
                cut = [_placed(s, part, text) for s in cut]
                if before:
                    cut[0] = replace(cut[0], before=before)
                if part.pause is not None:
                    cut[-1] = replace(cut[-1], after=part.pause)
                found, before = found + cut, 0.0
                speaker = next(reversed(speakers(part.text, self.marks)), speaker)
            elif found and part.pause is not None:
                found[-1] = replace(found[-1], after=(found[-1].after or 0.0) + part.pause)
            else:
                before += part.pause or 0.0
        return found


def _placed(segment: Segment, part: Part, text: str) -> Segment:
    """A segment of `part` with its places in the text that was given, and those of its words."""
    if len(part.places) == 1 and part.text == text and "[" not in text:  # without marks: every place is the same
        at, places = segment.start, _WORD.finditer(segment.text)
        return replace(segment, words=tuple(Word(m[0], at + m.start(), at + m.end()) for m in places))
    words = []
    for m in _WORD.finditer(segment.text):
        start, end = part.source(segment.start + m.start(), segment.start + m.end())
        same = end - start == len(m[0])
        words.append(Word(shown(m[0] if same else _TAG.sub("", text[start:end])), start, end))
    start, end = part.origin(segment.start), part.origin(segment.end - 1) + 1
    return replace(segment, start=start, end=end, words=tuple(words))

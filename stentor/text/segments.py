"""Text with marks of its own (markup.py) to the segments that are spoken one after another."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from stentor.text.cleanup import STEPS, cleaned
from stentor.text.cleanup.draft import Draft
from stentor.text.lexicon import Lexicon
from stentor.text.marks import NEVER, NO_MARKS, TextMarks, speakers
from stentor.text.markup import Part, parts, shown
from stentor.text.sentences import Segment, Word, split
from stentor.text.trace import WORD

_TAG = re.compile(r"<[^<>]*>")


@dataclass(frozen=True)
class Reading:
    """How a text is read: marks that the family wants kept together, whether it reads phonemes, the user's lexicon, the
    steps of the clean-up, and a pattern of what the family leaves out."""

    marks: TextMarks = NO_MARKS
    phonemes: bool = False
    lexicon: Lexicon | None = None
    cleanup: tuple[str, ...] = tuple(STEPS)
    unread: str = NEVER

    def segments(self, text: str, max_chars: int, granularity: str, speaker: str = "") -> list[Segment]:
        """Cut a text as `split` does, and at every pause that it asks for. Segments without text are left out.

        InvalidRequest("text") for pauses that are too long together.
        """
        draft = cleaned(text, self.cleanup)
        found = [self._noted(s) for s in self._segments(draft.text, max_chars, granularity, speaker)]
        return found if draft.text == text else [_given(s, draft, text) for s in found]

    def _noted(self, segment: Segment) -> Segment:
        """A segment with what of it is not read."""
        left_out = tuple(m[0] for m in re.finditer(self.unread, segment.text))
        return replace(segment, unread=left_out) if left_out else segment

    def _segments(self, text: str, max_chars: int, granularity: str, speaker: str) -> list[Segment]:
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


def _given(segment: Segment, draft: Draft, text: str) -> Segment:
    """A segment of a clean text with its places in `text`, which was given, and those of its words."""
    start, end = draft.source(segment.start, segment.end)
    words = tuple(_given_word(w, draft, text) for w in segment.words)
    return replace(segment, start=start, end=end, words=words)


def _given_word(word: Word, draft: Draft, text: str) -> Word:
    """A word of a clean text as `text`, which was given, has it."""
    start, end = draft.source(word.start, word.end)
    given = text[start:end]
    if draft.text[word.start : word.end] == given:
        return Word(word.text, start, end)
    return Word(" ".join(_TAG.sub("", given).split()) or word.text, start, end)


def _placed(segment: Segment, part: Part, text: str) -> Segment:
    """A segment of `part` with its places in the text that was given, and those of its words."""
    if len(part.places) == 1 and part.text == text and "[" not in text:  # without marks: every place is the same
        at, places = segment.start, WORD.finditer(segment.text)
        return replace(segment, words=tuple(Word(m[0], at + m.start(), at + m.end()) for m in places))
    words = []
    for m in WORD.finditer(segment.text):
        here = segment.start + m.start(), segment.start + m.end()
        start, end = part.source(*here)
        words.append(Word(shown(m[0] if part.unchanged(*here) else _TAG.sub("", text[start:end])), start, end))
    start, end = part.extent(segment.start, segment.end)
    return replace(segment, start=start, end=end, words=tuple(words))

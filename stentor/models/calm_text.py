"""A text as the model was trained on it, and in chunks of few tokens, as the original prepares and
cuts it."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator
from typing import NamedTuple

from stentor.models.calm_config import TextConfig
from stentor.models.calm_tokenizer import Tokenizer

CLOSERS = "\"'”\u2019)]» "
ENDS = ".!?…"
PAUSES = ",;:-\u2013—"
FEW_WORDS = 4
"""Words of a text at most behind whose end more frames are heard."""
TAILS = 5, 3
"""Frames from the one that ends speech on, of a text of few words and of others."""
PADDED_WORDS = 5
PADDING = 8
"""Spaces in front of a text with fewer words, where the checkpoint wants them."""
_MARK_BEHIND_MARK = re.compile(r"([.!?…])\s*[,;:]")

Ids = list[int]


class Prepared(NamedTuple):
    """A text to tokenise, and the frames from the one that ends its speech on."""

    text: str
    tail: int


def prepare(text: str, c: TextConfig) -> Prepared:
    """The text as the model takes it, empty if it has no characters that are read. Words are
    counted before its end mark is set."""
    text = text.strip()
    if c.replace:
        text = " ".join("".join(c.replace.get(ch, ch) for ch in text).split())
        text = _MARK_BEHIND_MARK.sub(r"\1", text)
    if not text:
        return Prepared("", TAILS[0])
    # once: of three spaces two are left
    text = text.replace("\n", " ").replace("\r", " ").replace("  ", " ")
    if c.remove_semicolons:
        text = text.replace(";", ",")
    tail = TAILS[len(text.split()) > FEW_WORDS]
    if c.capitalize and not text[0].isupper():
        text = text[0].upper() + text[1:]
    if c.end_mark:
        text = _with_end_mark(text)
    if c.pad_short and len(text.split()) < PADDED_WORDS:
        text = " " * PADDING + text
    return Prepared(text, tail)


def _with_end_mark(text: str) -> str:
    """The text with a mark that ends a sentence. A mark of a pause in its place goes."""
    core = text.rstrip(CLOSERS)
    if not core or core[-1] in ENDS:
        return text
    if core[-1] in PAUSES:
        return core.rstrip(PAUSES + " ") + "." + text[len(core) :].strip()
    return text + "."


def chunks(text: str, c: TextConfig, tokens: Tokenizer, max_tokens: int) -> list[str]:
    """The parts that are spoken one after another, each from the voice on: whole sentences, of
    `max_tokens` tokens together.

    A longer sentence is cut at commas, semicolons and colons, and stays as it is without any. Each
    part is to be prepared again.
    """
    parts: list[tuple[int, str]] = []
    for ids in _cut(tokens.encode(prepare(text, c).text.strip()), tokens.ends, _in_number(tokens)):
        sentence = tokens.decode(ids)
        if len(ids) > max_tokens:
            finer = list(_cut(tokens.encode(sentence.strip()), tokens.pauses))
        else:
            finer = []
        parts += (
            [(len(p), tokens.decode(p)) for p in finer]
            if len(finer) > 1
            else [(len(ids), sentence)]
        )
    pieces: list[str] = []
    count = 0
    for size, sentence in parts:
        if pieces and (not pieces[-1] or count + size <= max_tokens):
            pieces[-1], count = (
                (f"{pieces[-1]} {sentence}", count + size) if pieces[-1] else (sentence, size)
            )
        else:
            pieces.append(sentence)
            count = size
    return [part.strip() for part in pieces if part]


def _cut(
    ids: Ids, marks: Collection[int], inside: Callable[[Ids, int], bool] | None = None
) -> Iterator[Ids]:
    """The ids, cut behind every run of `marks` that is not `inside` of something."""
    start = 0
    for i in range(1, len(ids)):
        if (
            ids[i - 1] in marks
            and ids[i] not in marks
            and not (inside is not None and inside(ids, i))
        ):
            yield ids[start:i]
            start = i
    yield ids[start:]


def _in_number(tokens: Tokenizer) -> Callable[[Ids, int], bool]:
    """Whether a mark before place i of ids is a decimal point."""

    def inside(ids: Ids, i: int) -> bool:
        before = tokens.decode(ids[:i])
        behind = tokens.decode(ids[i:])
        return (
            len(before) > 1 and before[-1] == "." and before[-2].isdigit() and behind[:1].isdigit()
        )

    return inside

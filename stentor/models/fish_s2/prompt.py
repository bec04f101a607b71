"""Prompts: chat turns whose speech is given as codes (specs/fish_s2 3). Host only, plain data."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from stentor.models.fish_s2.tokenizer import Tokens

SPEAKER = re.compile(r"<\|speaker:\d+\|>")
TAG = re.compile(r"\[[^\[\]]*\]")
TURNS_PER_BATCH = 5
SYSTEM = "convert the provided text to speech"
SYSTEM_CLONE = "convert the provided text to speech reference to the following:\n\nText:\n"


@dataclass(frozen=True)
class Spoken:
    """A text and its speech as codes [T, books]: a reference, or a turn that has been spoken already."""

    text: str
    codes: np.ndarray


@dataclass(frozen=True)
class Tokenised:
    """Token ids [T], and the frames [M, books] that stand at positions `frame_at` [M]."""

    token: np.ndarray
    frames: np.ndarray
    frame_at: np.ndarray


def turns(text: str) -> list[str]:
    """`text` parted before each `<|speaker:N|>`; what stands before the first one is dropped, as in the reference.

    White space around turns separates them and goes; text without such a tag is one turn, as it is.
    """
    starts = [m.start() for m in SPEAKER.finditer(text)]
    if not starts:
        return [text]
    return [text[a:b].strip() for a, b in zip(starts, [*starts[1:], len(text)], strict=True)]


def batches(text: str, chunk_bytes: int) -> list[str]:
    """What is spoken at a time: up to five turns and `chunk_bytes` UTF-8 bytes; a longer turn stands alone."""
    packed: list[list[str]] = []
    size = 0
    for turn in turns(text):
        length = len(turn.encode())
        if not packed or len(packed[-1]) == TURNS_PER_BATCH or size + length > chunk_bytes:
            packed.append([])
            size = 0
        packed[-1].append(turn)
        size += length
    return ["\n".join(batch) for batch in packed]


def spoken_words(text: str) -> str:
    """`text` without speaker tags and bracketed tags."""
    return TAG.sub(" ", SPEAKER.sub(" ", text)).strip()


def build(tokens: Tokens, books: int, text: str, references: Sequence[Spoken], history: Iterable[Spoken]) -> Tokenised:
    """The prompt after which the model speaks `text`, in the voices of `references`, going on from `history`.

    Each part is tokenised by itself, so that no merge crosses a border.
    """
    w = _Writer(tokens, books)
    w.mark(tokens.im_start).text("system\n")
    if references:
        w.text(SYSTEM_CLONE).text(reference_text(references)).text("\n\nSpeech:\n")
        for reference in references:
            w.speech(reference.codes)
    else:
        w.text(SYSTEM)
    w.mark(tokens.im_end).text("\n")
    for turn in history:
        w.user(turn.text).speech(turn.codes).mark(tokens.im_end).text("\n")
    return w.user(text).done()


def reference_text(references: Sequence[Spoken]) -> str:
    """The references' transcripts, one a line, each with a speaker tag: its own or its number."""
    tagged = (r.text if SPEAKER.search(r.text) else f"<|speaker:{i}|>{r.text}" for i, r in enumerate(references))
    return "\n".join(tagged)


class _Writer:
    """Token ids and frames in the order of writing."""

    def __init__(self, tokens: Tokens, books: int) -> None:
        self._tokens = tokens
        self._ids: list[int] = []
        self._at: list[int] = []
        self._frames = [np.zeros((0, books), np.int64)]

    def mark(self, token: int) -> _Writer:
        self._ids.append(token)
        return self

    def text(self, text: str) -> _Writer:
        self._ids += self._tokens.encode(text)
        return self

    def speech(self, codes: np.ndarray) -> _Writer:
        self._at += range(len(self._ids), len(self._ids) + len(codes))
        self._ids += [self._tokens.semantic + int(c) for c in codes[:, 0]]
        self._frames.append(codes)
        return self

    def user(self, text: str) -> _Writer:
        """A whole user turn and the opening of the answer."""
        t = self._tokens
        self.mark(t.im_start).text("user\n").text(text).mark(t.im_end).text("\n")
        return self.mark(t.im_start).text("assistant\n").mark(t.voice)

    def done(self) -> Tokenised:
        frames = np.concatenate(self._frames).astype(np.int64)
        return Tokenised(np.array(self._ids, np.int64), frames, np.array(self._at, np.int64))

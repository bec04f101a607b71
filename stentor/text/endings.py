"""Where sentences and clauses end: marks of many scripts, abbreviations and ordinals by language
(`endings.toml`).

Text may still be growing. A place then counts as an end only if no text that follows can change
that.
"""

from __future__ import annotations

import re
import tomllib
import unicodedata
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from stentor.text.english.tables import ALL, BEFORE_NUMBER, MAY_END, STARTERS
from stentor.text.marks import PLACEHOLDERS, TURN
from stentor.text.patterns import lazy
from stentor.text.punctuation import CLAUSE, CLOSERS, END_MARKS, WIDE

NEAR = 60
"""Characters on either side that decide whether a mark ends a sentence."""
_STAY_BEHIND = "\u200d\ufe0fーっゃゅょァィゥェォッャュョ々、。，！？：；」』）"  # begin no part
_STAY_BEFORE = "\u200dเแโใไເແໂໃໄ「『（"  # end no part
_IN_NUMBERS = ".,:：，．/"
_LATIN_END = "\u0250"
_ENOUGH = 30  # characters behind a stop by which the language is known, no more: text that arrives
# and the whole text are read alike
_UNSPACED = "\u0e01-\u0e5b\u0e81-\u0edf"  # Thai and Lao: a space ends a phrase or a sentence
_LEAST_PHRASES = 60  # characters of phrases of those that are a sentence

CLAUSE_END = lazy(
    rf"[{CLAUSE}](?=\s)|(?<!\d)[，：]|[，：](?!\d)|[、；､၊፣፤፥᠂]"
    rf"|(?<=[{WIDE}])[,;:](?=[{WIDE}])|(?<=[{_UNSPACED}])[ ](?=[{_UNSPACED}])"
)
GROWING_CLAUSE_END = lazy(
    rf"[{CLAUSE}](?=\s\S)|(?:(?<!\d)[，：]|[，：](?!\d)|[、；､၊፣፤፥᠂])(?=.)"
    rf"|(?<=[{WIDE}])[,;:](?=[{WIDE}])|(?<=[{_UNSPACED}])[ ](?=[{_UNSPACED}])",
    re.DOTALL,
)
"""Where a clause ends whatever follows."""
_OPENERS = "“‘«‹"  # close a quotation in German and Danish
_SPACES = " \u00a0\u202f"  # in front of a French quotation mark
_TERMINATOR = lazy(
    rf"(?:[.!?．…{END_MARKS}]+|(?<=[\u0370-\u03ff\u1f00-\u1fff])[;\u037e])"
    rf"[{re.escape(CLOSERS)}]*(?:[{_SPACES}]»(?=\s|\Z)|[{_OPENERS}](?=\s))?"
)
_QUOTE_GOES_ON = lazy(
    "と(?!ても|ころ|にかく|もに)|っ(?:て|\\Z)|な(?:んて|ん?\\Z)|이?라(?:고|며|는|\\Z)|[ ]?하(?:고|며|\\Z)|이\\Z"
)
"""Behind a quotation that is part of its sentence, in Japanese and Korean."""
_BEHIND_DASH = lazy(r"[—–][ \u00a0\u202f]?(\w|\Z)")  # "«Иди!» — сказал он"
_PARAGRAPH = lazy(r"\n[ \t\r\f\v]*\n\s*")
_TURN = lazy(rf"(?<!{TURN}){TURN}")
_PHRASE_END = lazy(rf"(?<=[{_UNSPACED}])[ ]+(?=[{_UNSPACED}])")

_WIDE_BEFORE = lazy(rf"[{WIDE}」』】）”’》〉]$")
_WIDE_AFTER = lazy(rf"[{WIDE}「『【（“‘《〈]")
_BEGINNINGS = ("P.S", "P.P.S", "N.B")  # of a remark, which their stop does not end
_NAMES = ("Yahoo", "Jeopardy", "Kahoot")  # end in an exclamation mark themselves
_LATIN_BEFORE = lazy(r"[A-Za-z\d]$")
_UNSPACED_BEFORE = lazy(rf"[{_UNSPACED}]$")
_MARKS = "\u0300-\u036f\u0900-\u0903\u093a-\u094f\u0981-\u0983\u09bc-\u09cd"
_LETTER = rf"(?:[^\W\d_]|[{_MARKS}])"
_INNER = "[.'’-]"
_WORD_BEFORE = lazy(
    rf"(?<![^\W\d_])(?<![{_MARKS}])(?<![^\W\d_]{_INNER})(?<![{_MARKS}]{_INNER})"
    rf"([^\W\d_](?:{_LETTER}|{_INNER}(?=[^\W\d_]))*)$"
)
_SPACED_BEFORE = lazy(rf"(?<![\w.])((?:{_LETTER}{{1,4}}\.\s?){{1,4}}{_LETTER}{{1,4}})$")
_ENGLISH_BEFORE = lazy(r"(?<![^\W\d_])(?<![^\W\d_]\.)([^\W\d_](?:[^\W\d_]|\.(?=[^\W\d_]))*)$")
_NUMBER_BEFORE = lazy(r"(?<![\w.,:/-])(?:\d{1,3}|\d{1,2}\.\d{1,2}|[IVXLC]{1,6})$")
_COUNTED_BEFORE = lazy(r"(?<![^\W\d_])([^\W\d_]+)\.?\s\d{1,3}$")
_MEASURE_BEFORE = lazy(r"\d[.,]\d{1,4}\s?[^\W\d_]{1,3}$")  # "6.8 s" is no abbreviation
_ITEM = lazy(r"\A[ \t]*+\n\s*+(?:\d{1,3}[.)]|[-•*–])\s")
_CAPITAL = lazy(r"[\"'“„«‚‘(]?[^\W\d_]")
_INITIALS = lazy(r"[A-Z](?:\.[A-Z]){0,5}")
_INITIAL = lazy(r"[^\W\d_]\.")
_PAIR = lazy(r"([^\W\d_])\1")  # of initials of a plural: "EE. UU."
_NUMERAL_LINE = lazy(r"(?:^|[.!?:;\n][ \t]*\n)[ \t]*[IVXL]{1,6}$")
_NUMBER = lazy(r"[\d#]|(?:[IVXLCDM]{2,}|[VX]|[ivxl]{2,6})\b")
_FIRST_WORD = lazy(r"\w+")
_COMPLETE_WORD = lazy(r"(?<!\w)\w*+\W")
_WORDS = lazy(r"[^\W\d_]+")
_CUT_WORD = lazy(r"\w\w")
_PARTICLES = frozenset("de del della di da van von le la du des el al bin den der ten ter".split())


@dataclass(frozen=True)
class Language:
    """Written forms of one language, in small letters. See `endings.toml`."""

    words: frozenset[str]
    ordinals: bool
    never: frozenset[str]
    numbered: frozenset[str]
    may_end: frozenset[str]
    suffixes: tuple[str, ...] = ()


def _language(code: str, facts: dict[str, str | bool]) -> Language:
    def names(field: str) -> frozenset[str]:
        return frozenset(str(facts.get(field, "")).split())

    may_end = names("may_end")
    return Language(
        names("words") | (STARTERS if code == "en" else frozenset()),
        bool(facts.get("ordinals")),
        (names("never") | names("shared")) - may_end,
        names("numbered"),
        may_end,
        tuple(names("suffixes")),
    )


_FACTS = tomllib.loads(Path(__file__).with_name("endings.toml").read_text(encoding="utf-8"))
LANGUAGES = {code: _language(code, facts) for code, facts in _FACTS.items()}
_SHARED = frozenset(
    name for facts in _FACTS.values() for name in str(facts.get("shared", "")).split()
)
_ABBREVIATIONS = frozenset(
    name
    for language in LANGUAGES.values()
    for name in (*language.never, *language.numbered, *language.may_end)
)
_SUFFIXES = tuple(suffix for language in LANGUAGES.values() for suffix in language.suffixes)
_WRITTEN_BY = {
    letter: [code for code, facts in _FACTS.items() if letter in str(facts.get("letters", ""))]
    for facts in _FACTS.values()
    for letter in str(facts.get("letters", ""))
}
"""Codes of the languages that have a letter."""
_SPOKEN_BY = {
    word: [code for code, language in LANGUAGES.items() if word in language.words]
    for word in frozenset().union(*(language.words for language in LANGUAGES.values()))
    if not (len(word) == 1 and word.isascii() and word != "w")
}
"""Codes of the languages that have a word. Hardly any single letter is of one language."""
ENGLISH = LANGUAGES["en"]
_UNKNOWN = Language(frozenset(), False, frozenset(), frozenset(), frozenset())


def is_joined(text: str, at: int) -> bool:
    """Whether text[at - 1] and text[at] are of one number, Latin word or sign with its marks."""
    before = text[at - 1]
    after = text[at]
    if unicodedata.category(after)[0] == "M" or after in _STAY_BEHIND or before in _STAY_BEFORE:
        return True
    if before.isdigit():
        return after.isdigit() or (after in _IN_NUMBERS and text[at + 1 : at + 2].isdigit())
    if after.isdigit():
        return before in _IN_NUMBERS and at > 1 and text[at - 2].isdigit()
    return before.isalpha() and after.isalpha() and max(before, after) < _LATIN_END


class Around(NamedTuple):
    """Text on both sides of the one that is cut, up to NEAR characters: it decides about ends of
    sentences too."""

    before: str = ""
    behind: str = ""


NOTHING = Around()


def cuts(text: str, growing: bool = False, around: Around = NOTHING) -> Iterator[tuple[int, int]]:
    """Positions [characters] after which a sentence has ended, each with the number of line breaks
    behind it if a paragraph has ended there, else 0.

    growing: more text will follow. Positions behind the first mark whose meaning that text may
    change are left out. around: the text before and after.
    """
    stops, certain = _stops(text, growing, around)
    breaks = [(m.start(), m[0].count("\n")) for m in _PARAGRAPH.finditer(text)]
    turns = [(m.start(), 0) for m in _TURN.finditer(text)]
    phrases = [(m.start(), 0) for m in _PHRASE_END.finditer(text)]
    ends = sorted([*breaks, *turns, *((stop, 0) for stop in stops)])
    if phrases:
        ends = list(_with_long_phrases(phrases, ends))
    yield from (end for end in ends if end[0] <= certain)


def _stops(text: str, growing: bool, around: Around) -> tuple[list[int], int]:
    """Positions in a text behind marks that end a sentence, and where the text begins that may
    still change."""
    extended = f"{around.before}{text}{around.behind}"
    start = len(around.before)
    stops: list[int] = []
    for mark in _TERMINATOR.finditer(extended, start):
        if mark.end() > start + len(text):
            break
        ends = _ends(extended, mark, growing)
        if ends is None:
            return stops, mark.start() - start
        if ends:
            stops.append(mark.end() - start)
    return stops, len(text)


def _with_long_phrases(
    phrases: list[tuple[int, int]], ends: list[tuple[int, int]]
) -> Iterator[tuple[int, int]]:
    """Ends of sentences, and of phrases that are as long as sentences, counted from the end
    before."""
    last = 0
    places = sorted([(*end, False) for end in ends] + [(*phrase, True) for phrase in phrases])
    for at, gap, is_phrase in places:
        if is_phrase and at - last < _LEAST_PHRASES:
            continue
        yield at, gap
        last = at


def _ends(text: str, mark: re.Match[str], growing: bool) -> bool | None:
    """Whether a mark ends a sentence. None: text that follows decides."""
    run = mark.group().rstrip(CLOSERS + _OPENERS + _SPACES)
    before = text[max(0, mark.start() - NEAR) : mark.start()]
    before = before.rpartition("\n\n")[2]  # another paragraph may have another language
    after = text[mark.end() : mark.end() + NEAR]
    if not after:
        return None if growing else True
    if len(run) < len(mark.group()) and _QUOTE_GOES_ON.match(after):
        return False
    if run[-1] in END_MARKS or (run[-1] != "…" and any(c in END_MARKS for c in run)):
        return not (run == "។" and after.startswith("ល។"))  # "and so on", in Khmer
    if not after[0].isspace():
        return _ends_unspaced(run[-1], before, after)
    return _ends_spaced(run, before, after, growing)


def _ends_spaced(run: str, before: str, after: str, growing: bool) -> bool | None:
    """Whether marks that white space follows end a sentence. None: text that follows decides."""
    following = after.lstrip()
    if "\n\n" in after[:4] and (not following or _is_small(following[0])):
        return True
    if not following:
        return None if growing else True
    first = _first_sign(after, following)
    if growing and not first:
        return None
    if _is_small(first):
        return False

    is_word_complete = _COMPLETE_WORD.match(following) is not None or len(following) >= NEAR
    open_word = growing and not is_word_complete
    if run == "!" and before.endswith(_NAMES):
        return None if open_word else _first_word(following) in STARTERS
    is_item = _ITEM.match(after) is not None and not before[-1:].isdigit()
    if run not in (".", "．") or is_item:
        return True
    if open_word and _needs_next_word(before):
        return None
    return _stop_ends(before, following, growing and len(following) <= _ENOUGH)


def _first_sign(after: str, following: str) -> str:
    """The sign that follows a mark and white space: behind a dash on the same line, if there is
    one. Nothing where a dash is all that follows."""
    behind_dash = _BEHIND_DASH.match(following)
    if behind_dash is None or "\n" in after[:2]:
        return following[0]
    return behind_dash[1]


def _needs_next_word(before: str) -> bool:
    """Whether the word behind a full stop may decide if that ends a sentence: after numbers,
    initials and abbreviations. Behind any other word live text need not wait for it."""
    if _NUMBER_BEFORE.search(before):
        return True
    names = _abbreviation_before(before)
    if names is None:
        return False
    name, joined = names
    if len(name) <= 2 or name in _ABBREVIATIONS or joined != name:
        return True
    english = _ENGLISH_BEFORE.search(before)
    if english is None:
        return False
    name = english[1].lower()
    is_initials = _INITIALS.fullmatch(english[1]) is not None
    return is_initials or name in ALL or name in MAY_END or name in BEFORE_NUMBER


def _is_small(sign: str) -> bool:
    """Whether a letter is small in a script that begins sentences with capitals: Georgian does
    not."""
    return sign.islower() and not "\u10d0" <= sign <= "\u10ff"


def _ends_unspaced(mark: str, before: str, after: str) -> bool:
    """Whether a mark ends a sentence that the next one follows without a space."""
    if _WIDE_AFTER.match(after):
        return _WIDE_BEFORE.search(before) is not None and mark != "…"
    return mark in "!?" and not after[0].isascii()


def _stop_ends(before: str, following: str, uncertain: bool) -> bool | None:
    """Whether a single full stop between `before` and `following` ends a sentence. uncertain: too
    little follows to know the language. None: it depends on the language, and that is not known."""
    if _UNSPACED_BEFORE.search(before):
        return False  # Thai and Lao have it only in abbreviations
    if _NUMERAL_LINE.search(before):
        return False  # "II. The Journey Home"
    line = before.rsplit("\n", 1)[-1].strip()
    if line.isdigit() and len(line) <= 3:
        return False  # "1. First item"
    if _MEASURE_BEFORE.search(before) and following[0].isupper():
        return True

    if _NUMBER_BEFORE.search(before) and _CAPITAL.match(following):
        if uncertain:
            return None
        language = _language_near(before, following)
        if language.ordinals and not _is_numbered(before, language):
            return _starts(following, language)
    return _abbreviation_ends(before, following, uncertain)


def _is_numbered(before: str, language: Language) -> bool:
    """Whether a number counts something: "Kap. 2"."""
    counted = _COUNTED_BEFORE.search(before)
    return counted is not None and counted[1].lower() in language.numbered


def _abbreviation_before(before: str) -> tuple[str, str] | None:
    """The word before a full stop in small letters, and that word with the parts of an abbreviation
    before it: ("b", "z.b") of "z. B". None: no word is there."""
    word = _WORD_BEFORE.search(before)
    if word is None:
        return None
    name = re.split("['’]", word[1].lower())[-1]
    spaced = _SPACED_BEFORE.search(before)
    if spaced is None:
        return name, name
    return name, "".join(spaced[1].split()).lower()


def _abbreviation_ends(before: str, following: str, uncertain: bool) -> bool | None:
    names = _abbreviation_before(before)
    if names is None:
        return True
    name, joined = names
    is_listed = name in _ABBREVIATIONS or joined in _ABBREVIATIONS or name.endswith(_SUFFIXES)
    if is_listed or len(name) <= 2:
        if uncertain and (is_listed or len(name) == 1):
            return _decision_of_all(name, joined, before, following)
        language = _language_near(before, following)
        decision = _foreign_stop_ends(name, joined, following, language)
        if decision is not None:
            return decision
    return _english_stop_ends(before, following)


def _decision_of_all(name: str, joined: str, before: str, following: str) -> bool | None:
    """Whether the stop of an abbreviation ends a sentence, where all languages agree on that. None:
    they do not."""
    english = _english_stop_ends(before, following)
    decisions = set()
    for language in (*LANGUAGES.values(), _UNKNOWN):
        decision = _foreign_stop_ends(name, joined, following, language)
        decisions.add(english if decision is None else decision)
    if len(decisions) > 1:
        return None
    return decisions.pop()


def _foreign_stop_ends(name: str, joined: str, following: str, language: Language) -> bool | None:
    """Whether the stop of an abbreviation ends a sentence of a language. None: no language has the
    abbreviation."""
    starter = _starts(following, language)
    numbered = _NUMBER.match(following) is not None
    if numbered and name.endswith(language.suffixes):
        return False
    for written in (joined, name):
        if written in language.may_end:
            return starter
        if written in language.numbered and numbered:
            return False
        if written in language.never or written in _SHARED:
            return False
    if len(name) == 1 and name != "я" and language is not ENGLISH:
        return starter and _first_word(following) not in _PARTICLES
    if _PAIR.fullmatch(name) and re.match(r"([^\W\d_])\1\.", following):
        return False
    return None


def _english_stop_ends(before: str, following: str) -> bool:
    word = _ENGLISH_BEFORE.search(before)
    if word is None:
        return True
    name = word[1]
    starter = _first_word(following) in STARTERS and not _INITIAL.match(following)
    if name in _BEGINNINGS:
        return False
    if _INITIALS.fullmatch(name) and name != "I":
        return starter  # "J. Smith", "J.R.R. Tolkien", "the U.S. economy"
    if name.lower() in BEFORE_NUMBER:
        return not _NUMBER.match(following)
    if name.lower() in MAY_END:
        return starter
    return name.lower() not in ALL


def _starts(following: str, language: Language) -> bool:
    """Whether a word that begins sentences follows, and no initial."""
    word = _first_word(following)
    return (word in language.words or word in STARTERS) and not _INITIAL.match(following)


def _first_word(text: str) -> str:
    """The word that a text begins with, in small letters. Nothing where it is written so: it begins
    no sentence."""
    word = _FIRST_WORD.match(text.lstrip(PLACEHOLDERS + "\"'“‘«„¿¡(「"))
    if word is None or _is_small(word[0][0]):
        return ""
    return word[0].lower()


def _language_near(before: str, following: str) -> Language:
    near = following[:_ENOUGH]
    if _CUT_WORD.match(following, _ENOUGH - 1):
        near = near[: near.rfind(" ") + 1]
    return language_of(f"{before} {near}")


@lru_cache(4096)
def language_of(text: str) -> Language:
    """The language that has most of the words of a short text, English where others have no
    more."""
    words = frozenset(map(str.lower, _WORDS.findall(text)))
    counts = Counter(code for word in words for code in _codes_of(word))
    if counts:
        code = max(LANGUAGES, key=lambda code: (counts[code], code == "en"))
        return LANGUAGES[code]
    if all(word.isascii() for word in words):
        return ENGLISH
    return _UNKNOWN


def _codes_of(word: str) -> frozenset[str]:
    """Codes of the languages that have a word or one of its letters."""
    if word in _SPOKEN_BY:
        return frozenset(_SPOKEN_BY[word])
    return frozenset(code for letter in word for code in _WRITTEN_BY.get(letter, ()))

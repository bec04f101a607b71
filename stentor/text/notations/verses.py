"""Chapter and verse of the Bible and the Quran."""

from __future__ import annotations

import re

from stentor.text.notations.rule import any_of, rules
from stentor.text.numbers import say

_BOOKS = (
    "Genesis Exodus Leviticus Numbers Deuteronomy Joshua Judges Ruth Samuel Kings Chronicles Ezra Nehemiah Esther "
    "Job Psalm Psalms Proverbs Ecclesiastes Isaiah Jeremiah Lamentations Ezekiel Daniel Hosea Joel Amos Obadiah "
    "Jonah Micah Nahum Habakkuk Zephaniah Haggai Zechariah Malachi Matthew Mark Luke John Acts Romans Corinthians "
    "Galatians Ephesians Philippians Colossians Thessalonians Timothy Titus Philemon Hebrews James Peter Jude "
    "Revelation Surah Quran"
).split()
_SHORT = {
    "Gen": "Genesis",
    "Ex": "Exodus",
    "Deut": "Deuteronomy",
    "Ps": "Psalm",
    "Prov": "Proverbs",
    "Isa": "Isaiah",
    "Jer": "Jeremiah",
    "Matt": "Matthew",
    "Rom": "Romans",
    "Cor": "Corinthians",
    "Gal": "Galatians",
    "Eph": "Ephesians",
    "Phil": "Philippians",
    "Col": "Colossians",
    "Thess": "Thessalonians",
    "Tim": "Timothy",
    "Heb": "Hebrews",
    "Pet": "Peter",
    "Rev": "Revelation",
}
_OF_SEVERAL = "Samuel|Kings|Chronicles|Corinthians|Cor|Thessalonians|Thess|Timothy|Tim|Peter|Pet|John"
_COUNTED = {"1": "First", "2": "Second", "3": "Third"}


def _verse(m: re.Match[str]) -> str:
    """ "Matt. 5:3-12" -> "Matthew five three to twelve"."""
    place = m[2].replace(":", " ").replace("-", " to ")
    return f"{_SHORT.get(m[1], m[1])} {re.sub('[0-9]+', lambda number: say(number[0]), place)}"


RULES = rules(  # before those for times of day
    (rf"(?<![\w.,:-])([123]) (?=(?:{_OF_SEVERAL})\.? \d)", lambda m: f"{_COUNTED[m[1]]} ", "0"),
    (
        rf"\b({any_of([*_BOOKS, *_SHORT])})\.? (\d+:\d+(?:-\d+(?::\d+)?)?)(?![:\d]|\s?[AaPp]\.?[Mm])",
        _verse,
        ": 0",
        [*_BOOKS, *_SHORT],
    ),
)

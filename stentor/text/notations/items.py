"""Markers of items: "a)", "(1)" and "ii)"."""

from __future__ import annotations

import re

from stentor.text.notations.rule import rules
from stentor.text.numbers import roman

_MARKER = r"(?<!\S)(?P<open>\(?)(?P<sign>[a-hA-H]|\d{1,2}|[ivx]{1,4})\)(?=\s)"
_BEHIND_WORD = r"(?P<word>(?<=\w)(?<!\bor)(?<!\band)\s)?"


def _item(m: re.Match[str]) -> str:
    """ "a) one b) two" -> "A) one, B) two", "ii)" -> "2)". What ends a parenthesis stays."""
    sign, before = m["sign"], m.string[: m.start("open")]
    if not m["open"] and before.count("(") > before.count(")"):
        return m[0]
    if re.fullmatch("[ivx]+", sign) and "ii)" in m.string:
        sign = str(roman(sign.upper()))
    pause = "," if m["word"] and re.search(_MARKER, before) else ""
    return f"{pause}{m['word'] or ''}{m['open']}{sign.upper()})"


RULES = rules((_BEHIND_WORD + _MARKER, _item, ")"), (r"(?<=\()a(?=\))", "A", ") ("))
"""Before a rule takes their numbers for something else."""

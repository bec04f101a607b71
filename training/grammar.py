"""Sentences from grammars: lists of alternatives with slots, in `training/grammars/*.txt`.

Slots: `{name}` an alternative of the list `name`, `{^name}` the same with a capital, `{5-90}` a number of that range,
`{,5-9000}` with commas, `{ord31}` an ordinal up to 31st, `{spell}` a spelled name, `{word}` a word of the dictionary,
`{base}` and `{Base}` a sentence of the base without its full stop, `{%##-@9}` a pattern (# a digit, 9 a digit but zero,
@ a capital letter). Digits of patterns repeat more often than chance has it: a voice fails at repeats first.
"""

from __future__ import annotations

import random
import re
import string
from collections.abc import Sequence
from pathlib import Path

FOLDER = Path(__file__).with_name("grammars")
_SLOT = re.compile(r"\{(\^?)([^{}]+)\}")
_RANGE = re.compile(r"(,?)(\d+)-(\d+)")
_ARTICLE = re.compile(r"\ba (?=[aeiou](?!ne\b|ni[^nm]|s[ae]|ur)|(?:[AEFHILMNORSX][A-Z]))")
_NOT_AN = re.compile(r"\ban (?=(?![AEFHILMNORSX])[A-Z]{2})")
_SPELLED = ("-", "-", " ", " ", ". ")
LONGEST_SPELLED = 8


def read_lists(folder: Path = FOLDER) -> dict[str, list[str]]:
    """All lists of a folder by name. An underscore that begins an item is a space. `5*` counts it five times."""
    lists: dict[str, list[str]] = {}
    current: list[str] = []
    for path in sorted(folder.glob("*.txt")):
        for line in path.read_text(encoding="utf-8").splitlines():
            if line.startswith("[") and line.endswith("]"):
                current = lists.setdefault(line[1:-1], [])
            elif line and not line.startswith("#"):
                for item in line.split(" | "):
                    weight, text = re.fullmatch(r"(?:(\d+)\*)?(.*)", item.strip()).groups()  # type: ignore[union-attr]
                    current += [re.sub("^_", " ", text)] * int(weight or 1)
    return lists


class Grammar:
    """Draws sentences. The same random generator gives the same sentences.

    Args:
        lists: Alternatives by name, as `read_lists` gives them.
        words: Words for the slot `word`.
        base: Sentences for the slot `base`, without their full stops.
    """

    def __init__(
        self,
        lists: dict[str, list[str]],
        words: Sequence[str],
        base: Sequence[str],
        rng: random.Random,
    ) -> None:
        self._lists, self._words, self._base, self._rng = lists, words, base, rng

    def sentence(self, name: str) -> str:
        """A filled alternative of the list `name`, with a capital at its beginning and after full stops."""
        text = self._fill(self._rng.choice(self._lists[name]))
        text = (
            _NOT_AN.sub("a ", _ARTICLE.sub("an ", text))
            .replace("..", ".")
            .replace("?.", "?")
            .replace("!.", "!")
        )
        return re.sub(r"^(\"?)([a-z])", lambda m: m[1] + m[2].upper(), text.strip())

    def _fill(self, template: str) -> str:
        return _SLOT.sub(lambda m: self._slot(m[2], bool(m[1])), template)

    def _slot(self, name: str, capital: bool) -> str:
        text = self._value(name)
        return text[:1].upper() + text[1:] if capital else text

    def _value(self, name: str) -> str:
        rng = self._rng
        if name in self._lists:
            return self._fill(rng.choice(self._lists[name]))
        if name.startswith("%"):
            return self._pattern(name[1:])
        if name.startswith("ord"):
            return ordinal(rng.randint(1, int(name[3:])))
        if name in ("spell", "word", "base", "Base"):
            return self._drawn(name)
        found = _RANGE.fullmatch(name)
        if not found:
            raise ValueError(f"no list, pattern or range has the name {name!r}")
        number = rng.randint(int(found[2]), int(found[3]))
        return f"{number:,}" if found[1] else str(number)

    def _drawn(self, name: str) -> str:
        if name == "spell":
            return self._spelled()
        if name == "word":
            return self._rng.choice(self._words)
        text = self._rng.choice(self._base)
        return text if name == "Base" or re.match(r"I\b", text) else text[0].lower() + text[1:]

    def _spelled(self) -> str:
        rng = self._rng
        source = rng.choice([self._lists["first"], self._lists["last"], self._words])
        word = next(
            w
            for w in iter(lambda: rng.choice(source), None)
            if w.isalpha() and len(w) <= LONGEST_SPELLED
        )
        return rng.choice(_SPELLED).join(word.upper())

    def _pattern(self, pattern: str) -> str:
        """A pattern filled. Half of them have each digit by chance, the others repeat or hold two digits only."""
        rng = self._rng
        kind = rng.random()
        repeat = 0.0 if kind < 0.5 else 0.5
        pool = (
            string.digits
            if kind < 0.85
            else rng.choice(string.digits) * 2 + rng.choice(string.digits)
        )
        last = {"#": "", "9": "", "@": ""}
        out = []
        for c in pattern:
            if c not in last:
                out.append(c)
                continue
            choices = string.ascii_uppercase if c == "@" else pool
            drawn = (
                last[c]
                if last[c] and rng.random() < repeat * (0.4 if c == "@" else 1.0)
                else rng.choice(choices)
            )
            if c == "9" and drawn == "0":
                drawn = rng.choice("123456789")
            if c != "@":
                last["#"] = last["9"] = drawn
            last[c] = drawn
            out.append(drawn)
        return "".join(out)


def ordinal(number: int) -> str:
    """21 -> "21st"."""
    ending = (
        "th" if number % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    )
    return f"{number}{ending}"

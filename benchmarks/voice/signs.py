"""CPU time of a run of one sign, for every class of signs: the clean-up, cutting, and the English front end.

    python benchmarks/voice/signs.py --worst 20

A class is a category of Unicode and a script; Latin and general punctuation count sign by sign. Each text
is one sign, or a sign with a space, again and again. The worst are printed, of the built-in voice and of Fish
S2 Pro, whose texts have most marks.
"""

from __future__ import annotations

import argparse
import time
import unicodedata
from collections.abc import Callable

from stentor.models.fish_s2.prompt import PHONEMES, SPEAKER, TAG, UNFINISHED
from stentor.text import front_end, unread
from stentor.text.marks import TextMarks
from stentor.text.segments import Reading

LENGTHS = 10_000, 20_000
VOICE = "english-phonemes"
FISH = TextMarks(SPEAKER.pattern, f"{TAG.pattern}|{PHONEMES.pattern}", UNFINISHED)


def classes() -> list[str]:
    """One sign of each class."""
    signs: dict[object, str] = {"line": "\n", "tab": "\t"}
    for code in range(0x20, 0x2FFFF):
        sign = chr(code)
        category = unicodedata.category(sign)
        if category in ("Cn", "Co", "Cs"):
            continue
        is_common = code < 0x180 or 0x2000 <= code < 0x2070
        name: object = code if is_common else (category, unicodedata.name(sign, "?").split()[0])
        signs.setdefault(name, sign)
    return list(dict.fromkeys(signs.values()))


def of_voice() -> Callable[[str], None]:
    """The text path of the built-in voice."""
    reading = Reading(phonemes=True, unread=unread(VOICE))
    read = front_end(VOICE)

    def speak(text: str) -> None:
        for segment in reading.segments(text, 400, "auto"):
            read(segment.spoken)

    return speak


def of_fish() -> Callable[[str], None]:
    """The text path of Fish S2 Pro, without its tokenizer."""
    reading = Reading(FISH)

    def speak(text: str) -> None:
        reading.segments(text, 400, "auto")

    return speak


def seconds(work: Callable[[str], None], unit: str, length: int) -> float:
    """CPU time of a text of one unit."""
    text = (unit * length)[:length]
    start = time.process_time()
    work(text)
    return time.process_time() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--worst", type=int, default=20)
    args = parser.parse_args()
    rows = []
    for name, work in (("built-in voice", of_voice()), ("Fish S2 Pro", of_fish())):
        work("The birch canoe slid on 5 planks.")
        for sign in classes():
            for unit in (sign, sign + " "):
                short, long = (seconds(work, unit, length) for length in LENGTHS)
                rows.append((long, long / max(short, 1e-3), name, unit))
    rows.sort(reverse=True)
    for long, ratio, name, unit in rows[: args.worst]:
        sign = unicodedata.name(unit[0], repr(unit))
        print(f"{long:.3f} s, {ratio:.1f} times that of half: {name}, {unit!r} {sign}")
    print(f"{len(rows)} runs, {sum(row[0] > 0.1 for row in rows)} over 0.1 s")


if __name__ == "__main__":
    main()

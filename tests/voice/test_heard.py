"""How digits and letters are compared, utterances share a clip, and lists for evaluation are read."""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import pytest

from stentor.bench.metrics.score import AnswerAudio
from stentor.text.english import spoken
from training.evaluate import Case, cases, doubtful, judged, read_list
from training.heard import GAP, by_time, clips, faults, sign_faults, signs

FOLDER = Path(__file__).parents[2] / "training" / "evaluation"


@pytest.mark.parametrize(
    ("heard", "found"),
    [
        ("Call 555-0132.", "5550132"),
        ("five five five, oh one three two", "5550132"),
        ("5 5 5 0 1 3 2", "5550132"),
        ("double five five", "555"),
        ("triple 0 seven", "0007"),
        ("two thousand seven", "2007"),
        ("nineteen oh five", "1905"),
        ("four hundred twenty", "420"),
        ("one thousand two hundred thirty-four", "1234"),
        ("eight hundred, one", "801"),
        ("for to ate won", "4281"),
        ("$1,250", "1250"),
        ("the 3rd", "3"),
        ("the FBI's file", "FBI"),
        ("F-B-I", "FBI"),
        ("F. B. I.", "FBI"),
        ("eff bee eye", "FBI"),
        ("double u, double you", "WW"),
        ("CDs", "CD"),
        ("7XKB-221", "7XKB221"),
        ("B12 and O2", "B1202"),
        ("That's it, Smith.", ""),
    ],
)
def test_signs_are_the_same_however_they_are_written(heard, found):
    assert signs(heard) == found


@pytest.mark.parametrize(
    ("expected", "heard", "counts"),
    [
        ("5550132", "5550132", (0, 0, 0, 0)),
        ("5550132", "55550132", (1, 0, 0, 0)),
        ("5550132", "550132", (0, 0, 1, 0)),
        ("5550132", "5950132", (0, 0, 0, 1)),
        ("12", "172", (0, 1, 0, 0)),
        ("12", "", (0, 0, 2, 0)),
        ("", "", (0, 0, 0, 0)),
        ("BPB", "PPB", (0, 0, 0, 1)),
    ],
)
def test_repeats_additions_losses_and_swaps_are_told_apart(expected, heard, counts):
    found = faults(expected, heard)
    assert (found.repeats, found.additions, found.losses, found.swaps) == counts
    assert found.wrong == any(counts[:3])


def test_a_stutter_of_two_letters_is_wrong():
    assert faults("FBI", "FBFBI").wrong


def test_a_list_of_digits_is_judged_by_utterances_with_a_repeat_or_a_loss():
    result = sign_faults(["123", "FBI", "70", "44"], ["one two three", "the F B B I", "17", "4"])
    assert (result["wrong"], result["with_repeats"], result["with_losses"]) == (0.5, 1, 1)
    assert result["with_swaps"] == 1
    assert [(row["sentence"], row["wrong"]) for row in result["edited"]] == [(1, True), (2, False), (3, True)]


def test_the_front_end_reads_every_utterance_of_digits_as_its_signs():
    measure, texts, expected = read_list(FOLDER / "digits.txt", None)
    assert measure == "digits"
    assert [signs(spoken(text)) for text in texts] == list(expected)


def test_clips_hold_what_fits_and_a_long_utterance_stands_alone():
    assert clips([10, 10, 10, 30, 5, 5], 28) == [[0, 1], [2], [3], [4, 5]]
    assert clips([1.0] * 4, 2 * (1 + GAP)) == [[0, 1], [2, 3]]
    assert clips([]) == []


def test_words_of_a_clip_go_to_the_utterance_in_which_they_end():
    ends = [1.0, 2.8]
    assert by_time([(0.5, " Stop"), (1.1, " now."), (2.0, " Why?"), (3.9, " Oh.")], ends) == ["Stop now.", "Why? Oh."]
    assert by_time([(2.0, " Why?")], ends) == ["", "Why?"]


def test_what_a_clip_lost_is_heard_again_alone():
    spoken = [AnswerAudio(i, text, np.zeros(1, np.float32), 16_000) for i, text in enumerate(["One.", "Two.", "Six."])]
    case = Case("digits", "digits", ("One.", "Two.", "Six."), ("1", "2", "6"), None, 1)
    asked = []

    def single(items):
        asked.extend(item.text for item in items)
        return ["two" for _ in items]

    result = judged(case, spoken, lambda items: ["one", "", "6 6"], single, mos=False)
    assert asked == ["Two.", "Six."]
    assert [row["sentence"] for row in result["edited"]] == [2]
    assert judged(case, spoken, single, single, mos=False)["with_swaps"] == 2


@pytest.mark.parametrize(("heard", "again"), [("", True), ("Six of", True), ("Six old boats", False)])
def test_sentences_that_lost_half_their_text_are_heard_again(heard, again):
    assert doubtful(Case("sentences", "x", ("Six old boats.",), ("",), None, 1), 0, heard) is again


def test_lists_voices_and_seeds_make_cases_with_names_of_their_own(tmp_path):
    (tmp_path / "a.txt").write_text("# note\nOne 1/2.\tOne and a half.\n\nTwo.\nThree.\nFour.\n", encoding="utf-8")
    (tmp_path / "words.txt").write_text("Yes.\n", encoding="utf-8")
    paths = [tmp_path / "a.txt", tmp_path / "words.txt"]
    found = cases(argparse.Namespace(sentences=paths, voice=["x", "y"], seeds=[1], most=2))
    assert [case.label for case in found] == [f"{name}, voice {v}, seed 1" for name in ("a", "words") for v in "xy"]
    assert found[0].texts == ("One 1/2.", "Three.")
    assert found[0].beside == ("One and a half.", "")
    assert [case.measure for case in found] == ["sentences", "sentences", "words", "words"]


def test_a_line_of_digits_without_its_signs_is_refused(tmp_path):
    (tmp_path / "digits.txt").write_text("12\t12\n13\n", encoding="utf-8")
    with pytest.raises(SystemExit, match="each line must be a text, a tab"):
        read_list(tmp_path / "digits.txt", None)

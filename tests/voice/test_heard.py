"""How digits and letters are compared, utterances share a clip, and lists for evaluation are read."""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import pytest
import soundfile

from stentor.score.measures import AnswerAudio
from stentor.text.english.notations import spoken
from training.evaluate import Case, Results, cases, doubt, judged, read_list, recorded
from training.halves import HALVES
from training.heard import (
    GAP,
    around,
    by_time,
    clips,
    faults,
    first_word_lost,
    heard_faults,
    sign_faults,
    signs,
)

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


def test_a_list_of_digits_tells_repeats_and_losses_from_swaps():
    texts = ["Ring 123.", "The FBI.", "Bin 70.", "Bin 44."]
    heard = ["Ring one two three", "the F B B I", "Bin 17", "Bin 4"]
    result = sign_faults(texts, ["123", "FBI", "70", "44"], heard)
    assert (result["wrong"], result["swapped"]) == (0.5, 0.25)
    assert (result["with_repeats"], result["with_additions"], result["with_losses"]) == (1, 0, 1)
    assert [(row["sentence"], row["wrong"]) for row in result["edited"]] == [
        (1, True),
        (2, False),
        (3, True),
    ]


@pytest.mark.parametrize(
    ("text", "expected", "heard", "counts"),
    [
        ("Our branch: (733) 549.", "733549", "R Branch 733-549", (0, 0, 0, 0)),
        ("Chess move D66.", "D66", "CAST MOVE D66", (0, 0, 0, 0)),
        ("Scores: 5, 6.", "56", "4 5 6", (0, 0, 0, 0)),
        ("Scores: 5, 6.", "56", "Scores 5 5 6", (1, 0, 0, 0)),
        ("Scores: 5, 6.", "56", "Scores 6", (0, 0, 1, 0)),
        ("Scores: 5, 6.", "56", "6", (0, 0, 1, 0)),
        ("Fax 88 before noon.", "88", "Fax 88 B 4 noon", (0, 1, 0, 0)),
        ("Fax 88 before noon.", "88", "Fax 88 for noon", (0, 0, 0, 0)),
        ("Fax 88.", "88", "", (0, 0, 2, 0)),
    ],
)
def test_words_around_the_signs_may_be_heard_as_anything(text, expected, heard, counts):
    found = heard_faults(text, expected, heard)
    assert (found.repeats, found.additions, found.losses, found.swaps) == counts


def test_words_around_the_signs_are_counted():
    assert around("Our branch: (733) 549-1666, please.") == (2, 1)
    assert around("HTML and XML.") == (0, 0)
    with pytest.raises(ValueError, match="neither a digit nor a letter"):
        around("Nothing.")


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
    assert by_time([(0.5, " Stop"), (1.1, " now."), (2.0, " Why?"), (3.9, " Oh.")], ends) == [
        "Stop now.",
        "Why? Oh.",
    ]
    assert by_time([(2.0, " Why?")], ends) == ["", "Why?"]


def test_what_a_clip_lost_is_heard_again_alone_and_the_hearing_with_fewest_faults_counts():
    texts = ("One.", "Two.", "Six.")
    spoken = [AnswerAudio(i, text, np.zeros(1, np.float32), 16_000) for i, text in enumerate(texts)]
    case = Case("digits", "digits", texts, ("1", "2", "6"), None, 1)
    asked = []

    def single(says):
        def listen(items):
            asked.append([item.text for item in items])
            return [says for _ in items]

        return listen

    result = judged(
        case, spoken, lambda items: ["one", "", "6 6"], [single("two"), single("6 6 6")], mos=False
    )
    assert asked == [["Two.", "Six."]], "the second listener is not asked where no fault is left"
    assert [(row["sentence"], row["wrong"]) for row in result["edited"]] == [(2, False)]
    asked.clear()
    result = judged(
        case, spoken, lambda items: ["one", "", "6 6"], [single("2 2"), single("6")], mos=False
    )
    assert asked == [["Two.", "Six."], ["Two.", "Six."]]
    assert result["edited"][0]["heard"] == "6"
    assert result["wrong"] == 0


@pytest.mark.parametrize(
    ("heard", "again"), [("", True), ("Six of", True), ("Six old boats", False)]
)
def test_sentences_that_lost_half_their_text_are_heard_again(heard, again):
    assert (
        doubt(Case("sentences", "x", ("Six old boats.",), ("",), None, 1), 0, heard) > 0
    ) is again


def test_lists_voices_and_seeds_make_cases_with_names_of_their_own(tmp_path):
    (tmp_path / "a.txt").write_text(
        "# note\nOne 1/2.\tOne and a half.\n\nTwo.\nThree.\nFour.\n", encoding="utf-8"
    )
    (tmp_path / "words.txt").write_text("Yes.\n", encoding="utf-8")
    paths = [tmp_path / "a.txt", tmp_path / "words.txt"]
    found = cases(
        argparse.Namespace(
            sentences=paths, voice=["x", "y"], seeds=[1], most=2, options=["cfg=2"], half=None
        )
    )
    assert [case.label for case in found] == [
        f"{name}, voice {v}, seed 1, cfg=2" for name in ("a", "words") for v in "xy"
    ]
    assert found[0].texts == ("One 1/2.", "Three.")
    assert found[0].beside == ("One and a half.", "")
    assert [case.measure for case in found] == ["sentences", "sentences", "words", "words"]


def test_each_kind_of_a_half_is_a_case(tmp_path):
    (tmp_path / "k.txt").write_text(
        "# note\n## one\nA b.\tA bee.\nC d.\n\n## two\nE f.\nG h.\n", encoding="utf-8"
    )
    (tmp_path / "plain.txt").write_text("A b.\n", encoding="utf-8")
    given = {"voice": [None], "seeds": [1], "most": None, "options": []}
    both = [
        cases(argparse.Namespace(sentences=[tmp_path / "k.txt"], half=name, **given))
        for name in HALVES
    ]
    assert [case.label for case in both[0]] == [
        "k, one, choosing, seed 1",
        "k, two, choosing, seed 1",
    ]
    assert sorted(text for half in both for case in half for text in case.texts) == [
        "A b.",
        "C d.",
        "E f.",
        "G h.",
    ]
    with pytest.raises(SystemExit, match="has no kinds to halve"):
        cases(argparse.Namespace(sentences=[tmp_path / "plain.txt"], half="release", **given))


def test_a_line_of_digits_without_its_signs_is_refused(tmp_path):
    (tmp_path / "digits.txt").write_text("12\t12\n13\n", encoding="utf-8")
    with pytest.raises(SystemExit, match="each line must be a text, a tab"):
        read_list(tmp_path / "digits.txt", None)


def test_results_are_written_after_each_case_and_kept_by_the_next_run(tmp_path):
    path = tmp_path / "out.json"
    Results(path).add("hard, seed 1", {"wer": 0.02})
    again = Results(path)
    assert again.found == {"hard, seed 1": {"wer": 0.02}}
    again.add("words, seed 1", {"wer": 0.1})
    assert list(Results(path).found) == ["hard, seed 1", "words, seed 1"]


def test_recordings_of_a_folder_go_to_the_lines_of_a_list(tmp_path):
    for i, value in enumerate((0.25, 0.5)):
        soundfile.write(tmp_path / f"{i:03d}.wav", np.full(4, value, np.float32), 24_000)
    found = recorded(tmp_path, ["One.", "Two."])
    assert [(item.index, item.text, item.rate) for item in found] == [
        (0, "One.", 24_000),
        (1, "Two.", 24_000),
    ]
    assert [float(item.samples[0]) for item in found] == [0.25, 0.5]


@pytest.mark.parametrize(
    ("heard", "lost"),
    [
        ("the stray cat slept", False),
        ("stray cat slept", True),
        ("astray cat slept", True),  # ran into the next
        ("a stray cat slept", False),  # taken for another word
        ("oh the stray cat slept", False),
        ("the dog ran", False),
        ("straycap", True),
        ("", True),
    ],
)
def test_a_first_word_is_lost_where_fewer_are_heard_before_the_first_right_one(
    heard: str, lost: bool
) -> None:
    assert first_word_lost("the stray cat slept", heard) == lost
    assert not first_word_lost("", heard)

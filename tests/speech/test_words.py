"""The times of words from where frames look: one way forwards through the text, and what becomes of marks and cuts."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from stentor.models.info import ATTENDED_WIDTH, REACH
from stentor.speech.speaking import JoinedAudio
from stentor.speech.words import UNLIKELY, Span, _likeliest, timed, word_spans
from stentor.text.lexicon import Lexicon
from stentor.text.segments import Reading
from stentor.text.sentences import Word

HOP = 0.1  # seconds of a frame


def looks(*places: float) -> np.ndarray:
    """Frames that look at these positions, at two of them where one is between."""
    out = np.zeros((len(places), ATTENDED_WIDTH), np.float32)
    for row, place in zip(out, places, strict=True):
        low, part = divmod(place, 1.0)
        row[0] = low
        row[1 + REACH : 3 + REACH] = 1 - part, part
    return out


def spans(frames: np.ndarray, *words: range, lag: float = 0.0) -> list:
    return [s and (round(s.start, 3), round(s.end, 3)) for s in word_spans(frames, words, HOP, lag)]


def test_a_word_lasts_while_its_positions_are_passed():
    frames = looks(0, 1, 2, 3, 4, 5)
    assert spans(frames, range(2), range(3, 5)) == [(0.05, 0.2), (0.3, 0.5)]
    assert spans(frames, range(2), range(3, 5), lag=0.05) == [(0.0, 0.15), (0.25, 0.45)]


def test_borders_lie_inside_frames_where_attention_is_between_positions():
    assert spans(looks(0, 0.75, 2), range(1), range(1, 3)) == [(0.05, 0.117), (0.117, 0.3)]


@pytest.mark.parametrize("astray", [40, 0, 7])
def test_a_frame_that_looks_elsewhere_moves_no_word(astray: float):
    frames = looks(0, 1, 2, astray, 4, 5, 6)
    assert spans(frames, range(2), range(2, 5)) == [(0.05, 0.2), (0.2, 0.5)]


def test_what_is_said_twice_counts_once_and_later_words_are_found():
    frames = looks(0, 2, 4, 6, 2, 4, 6, 8, 10, 12)
    first, second = spans(frames, range(7), range(8, 13))
    assert first[0] == 0.05
    assert first[1] <= second[0] == 0.725


def test_what_was_not_reached_ends_with_the_audio_and_what_is_not_spoken_has_no_time():
    assert spans(looks(0, 1), range(1), range(0), range(5, 7)) == [(0.05, 0.1), None, (0.2, 0.2)]
    assert word_spans(looks(), [range(2)], HOP, 0.0) == [None]
    assert word_spans(looks(1), [range(0)], HOP, 0.0) == [None]


def words(text: str) -> tuple[Word, ...]:
    return Reading().segments(text, 400, "none")[0].words


@pytest.mark.parametrize("seed", range(40))
def test_no_way_forwards_is_likelier(seed: int):
    """Also where a frame looks at nothing, or before the frame in front of it."""
    random = np.random.default_rng(seed)
    frames, length = int(random.integers(1, 6)), 6
    peaks = random.integers(0, length, frames)
    around = (np.sort(peaks) if seed % 2 else peaks)[:, None] + np.arange(-1, 2)
    weights = np.where((around >= 0) & (around < length), random.random(around.shape), 0.0)
    weights[random.random(frames) < 0.1] = 0.0
    scores = np.full((frames, length), np.log(UNLIKELY))
    for i, k in zip(*np.nonzero(weights), strict=True):
        scores[i, around[i, k]] = np.log(weights[i, k] + UNLIKELY)

    path = _likeliest(around, weights, length)
    ways = itertools.combinations_with_replacement(range(length), frames)  # none of them goes back
    assert (np.diff(path) >= 0).all()
    assert scores[range(frames), path].sum() == pytest.approx(
        max(scores[range(frames), way].sum() for way in ways)
    )


def test_a_mark_belongs_to_the_word_before_it_or_to_the_first():
    text = "— well — yes ..."
    found = timed(words(text), [None, Span(0.0, 0.5), None, Span(0.6, 1.0)], 2.0, 3.0, 1.0)
    assert [(w.text, text[w.start_char : w.end_char]) for w in found] == [
        ("— well —",) * 2,
        ("yes ...",) * 2,
    ]
    assert [(w.start, w.end) for w in found] == [(2.0, 2.5), (2.6, 3.0)]


def test_what_was_cut_off_has_no_time():
    found = timed(
        words("one two three"), [Span(0, 0.5), Span(0.6, 1.0), Span(1.2, 1.5)], 0.0, 0.8, 1.0
    )
    assert [(w.text, w.end) for w in found] == [("one", 0.5), ("two", 0.8)]


def test_words_that_stand_for_one_of_the_text_are_one():
    text = 'the <sub alias="world wide web">WWW</sub> is'
    given = Reading(phonemes=True).segments(text, 400, "none")[0].words
    found = timed(given, [Span(i, i + 1) for i in range(5)], 0.0, 9.0, 1.0)
    assert [(w.text, w.start, w.end) for w in found] == [("the", 0, 1), ("WWW", 1, 4), ("is", 4, 5)]
    assert text[found[1].start_char : found[1].end_char] == "WWW"


def test_words_count_from_the_beginning_of_the_whole_audio_and_follow_its_speed():
    joined = JoinedAudio(1000, speed=2.0)
    for text in ("One two.", "Three."):
        segment = Reading().segments(text, 400, "none")[0]
        joined.begin(segment)
        joined.feed(np.zeros(1000, np.float32))
        joined.note_end(
            segment, 1000, "stop", [Span(0.1, 0.3), Span(0.4, 0.9)][: len(segment.words)]
        )
        joined.close(segment, last=False)
    first, second = joined.timings
    assert [(w.start, w.end) for w in first.words] == [(0.05, 0.15), (0.2, 0.45)]
    assert second.words[0].start == pytest.approx(second.start + 0.05)


def test_a_lexicons_word_is_named_as_it_is_written():
    text = "Siobhan, use SQL."
    lexicon = Lexicon({"SQL": "sequel", "Siobhan": "/ʃəvˈɔn/"})
    given = Reading(phonemes=True, lexicon=lexicon).segments(text, 400, "none")[0].words
    assert [(w.text, text[w.start : w.end]) for w in given] == [(w, w) for w in text.split()]

"""Pages as people paste them are understood, with no mark read aloud: a chapter of an EPUB, a chat's answer, a scan, news.

Each page in `pages/` has its words as people speak them beside it, with names as whisper spells them. Needs what tests/voice/test_quality_gate.py needs.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import stentor
from stentor.score.measures import AnswerAudio, Transcriber, at_16k, errors_of
from stentor.text.segments import Reading
from tests.helpers.english import PHONEMES
from tests.voice.test_quality_gate import transcribe, voice  # noqa: F401

PAGES = ["chapter.xhtml", "chat.md", "scan.txt", "news.html"]
LARGEST_WER = 0.03  # of all pages
LARGEST_WER_OF_A_PAGE = 0.045
SEEDS = (1, 2, 3)
CLIP_SECONDS = 25.0


def page(name: str) -> tuple[str, str]:
    """A page, and its words."""
    path = Path(__file__).parent / "pages" / name
    return path.read_text(encoding="utf-8"), path.with_suffix(".words").read_text(encoding="utf-8")


def clips(speech: stentor.Speech) -> Iterator[np.ndarray]:
    """The audio in parts that a recogniser takes, cut between segments."""
    start = 0.0
    for here, following in zip(speech.segments, [*speech.segments[1:], None], strict=True):
        if following is None or following.end - start > CLIP_SECONDS:
            end = speech.duration if following is None else (here.end + following.start) / 2
            yield speech.samples[
                round(start * speech.sample_rate) : round(end * speech.sample_rate)
            ]
            start = end


@pytest.mark.parametrize("name", PAGES)
def test_the_voice_gets_the_words_of_a_page(name: str) -> None:
    given, words = page(name)

    def sounds(text: str) -> str:
        pieces = Reading(phonemes=True, dashes=True).segments(text, 400, "sentence")
        return " ".join(
            re.sub(r"[.,;:!?ˈˌ]", " ", " ".join(PHONEMES(p.spoken) for p in pieces)).split()
        )

    assert sounds(given) == sounds(words)


@pytest.mark.slow
def test_pages_are_understood_and_times_stay_inside_them(
    voice: stentor.TTS,  # noqa: F811
    transcribe: Transcriber,  # noqa: F811
) -> None:
    """One word more or less of a page is half a percent, and a piece's company in a batch may decide it.

    The median of the seeds counts: whisper-base leaves out a sentence of a page now and then that was spoken.
    """
    rates, counts = {}, {}
    for name in PAGES:
        given, words = page(name)
        found = [errors(voice, transcribe, given, words, seed) for seed in SEEDS]
        rates[name], counts[name] = float(np.median(found)), len(words.split())
        print(f"{name}: WER {', '.join(f'{rate:.1%}' for rate in found)} of {counts[name]} words")
    assert np.average(list(rates.values()), weights=list(counts.values())) <= LARGEST_WER
    assert max(rates.values()) <= LARGEST_WER_OF_A_PAGE


def errors(voice: stentor.TTS, transcribe: Transcriber, given: str, words: str, seed: int) -> float:  # noqa: F811
    """The share of words that are not understood. Times of words are checked beside it."""
    speech = voice.generate(given, seed=seed, word_timestamps=True)
    heard = " ".join(
        transcribe(at_16k(AnswerAudio(0, "", c, speech.sample_rate)), "en") for c in clips(speech)
    )
    print(heard)
    assert speech.ignored == ()
    starts = [w.start_char for w in speech.words]
    assert starts == sorted(starts)
    assert all(
        0 <= w.start_char < w.end_char <= len(given) and 0 <= w.start <= w.end <= speech.duration
        for w in speech.words
    )
    return errors_of(
        [AnswerAudio(0, words, speech.samples, speech.sample_rate)], [heard]
    ).error_rate

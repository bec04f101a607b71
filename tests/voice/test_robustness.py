"""A hundred sentences of 1 to 40 words, with all that people type: the built-in voice says each from start to end.

Every third is said here, and all of them with FULL_SIZE=1.

The expected length is what the teacher's speech takes: 0.344 patches of 160 ms for a sign of the phonemes, and 1.25
patches for the silence around them (median over the training sentences).
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

import stentor
from stentor.text import front_end

SENTENCES = (Path(__file__).parent / "robustness.txt").read_text(encoding="utf-8").splitlines()
SAID = SENTENCES if os.environ.get("FULL_SIZE") == "1" else SENTENCES[::3]
PATCHES_PER_SIGN, PATCHES_AROUND, PATCH_SECONDS = 0.344, 1.25, 0.16
SHORTEST, LONGEST = 0.5, 2.0
END_SECONDS, LOUDEST_END = 0.02, 0.1  # of the peak
START_SECONDS, LOUDEST_START = (
    0.001,
    0.25,
)  # of the peak: no click, though many utterances begin within 10 ms
PEAK, LEVEL = (0.15, 1.0), (0.02, 0.25)


@pytest.fixture(scope="module")
def speech() -> list[stentor.Speech]:
    """Each sentence once, without the tries that a run-on would be given."""
    with stentor.TTS(device="cpu", max_num_seqs=12) as tts:
        return tts.generate(SAID, seed=1, retries=1)


def problems(speech: stentor.Speech, phonemes: str) -> list[str]:
    """Faults of an utterance, with numbers."""
    samples, found = speech.samples, []
    if speech.finish_reason != "stop":
        found.append(f"ended by {speech.finish_reason}")
    if not np.isfinite(samples).all():
        return [*found, "not finite"]
    share = speech.duration / ((PATCHES_PER_SIGN * len(phonemes) + PATCHES_AROUND) * PATCH_SECONDS)
    if not SHORTEST <= share <= LONGEST:
        found.append(f"{share:.2f} x the expected length")
    peak, level = np.abs(samples).max(), np.sqrt(np.mean(samples**2))
    start = np.abs(samples[: int(START_SECONDS * speech.sample_rate)]).max()
    if start > LOUDEST_START * peak:
        found.append(f"begins at {start / peak:.0%} of its peak")
    end = np.abs(samples[-int(END_SECONDS * speech.sample_rate) :]).max()
    if end > LOUDEST_END * peak:
        found.append(f"ends at {end / peak:.0%} of its peak")
    if not (PEAK[0] <= peak <= PEAK[1] and LEVEL[0] <= level <= LEVEL[1]):
        found.append(f"peak {peak:.2f}, level {level:.3f}")
    return found


@pytest.mark.slow
def test_every_sentence_is_said_from_start_to_end(speech: list[stentor.Speech]) -> None:
    phonemes = front_end("english-phonemes")
    found = [(text, problems(s, phonemes(text).text)) for text, s in zip(SAID, speech, strict=True)]
    assert [(text, wrong) for text, wrong in found if wrong] == []


def test_the_sentences_are_a_hundred_of_1_to_40_words() -> None:
    words = [len(text.split()) for text in SENTENCES]
    assert (len(set(SENTENCES)), min(words), max(words)) == (100, 1, 40)


def _said(samples: np.ndarray, finish: str = "stop") -> stentor.Speech:
    return stentor.Speech(samples.astype(np.float32), 24_000, np.zeros((0, 1)), finish, 0)


def test_a_flaw_is_found() -> None:
    sound = 0.3 * np.sin(np.arange(24_000) / 10)
    phonemes = "x" * 15  # about a second
    good = np.concatenate([np.zeros(100), sound, np.zeros(2000)])
    assert problems(_said(good), phonemes) == []
    assert [p[:6] for p in problems(_said(sound), phonemes)] == ["begins", "ends a"]
    assert problems(_said(good), 8 * phonemes) == ["0.16 x the expected length"]
    assert problems(_said(np.tile(good, 3)), phonemes) == ["3.18 x the expected length"]
    assert problems(_said(0.1 * good), phonemes) == ["peak 0.03, level 0.020"]
    assert problems(_said(good, "length"), phonemes) == ["ended by length"]
    assert problems(_said(good * np.nan), phonemes) == ["not finite"]

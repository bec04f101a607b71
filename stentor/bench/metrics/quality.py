"""Whether the audio can be speech at all: finite, audible, as long as its text requires. Needs no
model.

Speed bought by broken audio is the oldest trick of a benchmark, so these figures come from the
measured requests themselves. Recognition (WER) and predicted opinion (MOS) are in score.py.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from stentor.audio.silence import ANSWER_DBFS
from stentor.bench.metrics.decode import DecodedAudio
from stentor.bench.metrics.measure import RequestResult

LONG_PAUSE_S = 2.0
RUN_ON = 2.0
CUT_SHORT = 0.5
LEAST_OFF_S = 1.0
_IDEOGRAPH = re.compile(r"[\u3400-\u9fff\uac00-\ud7af\u3040-\u30ff]")
_LETTERS_PER_IDEOGRAPH = 3


def speech_units(text: str) -> int:
    """Length of a text in letters, an ideograph (a syllable) counting as three so that languages
    compare."""
    wide = len(_IDEOGRAPH.findall(text))
    narrow = sum(char.isalnum() for char in text) - wide
    return max(1, narrow + wide * _LETTERS_PER_IDEOGRAPH)


def assess(audio: DecodedAudio, text: str) -> dict[str, Any]:
    """Figures of one answer: level, non-finite and clipped samples, longest pause, seconds per unit
    of text."""
    samples = audio.samples
    if not samples.size:
        return {}
    finite = np.isfinite(samples)
    clean = np.where(finite, samples, 0.0)
    rms = float(np.sqrt(np.mean(np.square(clean, dtype=np.float64))))
    level = 20 * np.log10(max(rms, 1e-10))
    return {
        "level_dbfs": round(float(level), 2),
        "silent": bool(level < ANSWER_DBFS),
        "nonfinite_samples": int(samples.size - np.count_nonzero(finite)),
        "clipped_fraction": round(float(np.mean(np.abs(clean) >= 0.999)), 6),
        "longest_pause_s": round(_longest_pause(clean, audio.rate), 3),
        "seconds_per_unit": round(samples.size / audio.rate / speech_units(text), 5),
    }


def _longest_pause(samples: np.ndarray[Any, np.dtype[np.float32]], rate: int) -> float:
    """Longest run of 10 ms cells below -60 dBFS that lies between louder ones."""
    cell = max(1, rate // 100)
    cells = samples[: samples.size // cell * cell].reshape(-1, cell)
    power = np.mean(np.square(cells, dtype=np.float64), axis=1)
    loud = np.flatnonzero(power >= 10 ** (ANSWER_DBFS / 10))
    return float((np.diff(loud) - 1).max(initial=0)) * cell / rate


@dataclass(frozen=True)
class Quality:
    """Over a run. Counts are requests."""

    checked: int
    silent: int
    nonfinite: int
    clipped: int
    long_pause: int
    run_on: tuple[int, ...]
    """Indices of requests far longer than their text asks for."""
    cut_short: tuple[int, ...]
    seconds_per_unit: float
    """Median over the run."""
    hashes: dict[str, int]
    """How many different audio hashes each text that was spoken more than once got."""


def summarise(results: Iterable[RequestResult]) -> Quality:
    """Collect the run's quality and mark the outliers in duration (also in each result's
    `quality`)."""
    rows = [result for result in results if result.completed and result.quality]
    pace = np.array([row.quality["seconds_per_unit"] for row in rows])
    if rows:
        median = float(np.median(pace))
    else:
        median = 0.0
    run_on = []
    cut_short = []
    for row in rows:
        expected = median * speech_units(row.text)
        duration = row.samples / row.sample_rate
        # Short texts vary by more than a factor without anything being wrong, hence the absolute
        # term.
        if duration > RUN_ON * expected and duration - expected > LEAST_OFF_S:
            run_on.append(row.index)
        if duration < CUT_SHORT * expected and expected - duration > LEAST_OFF_S:
            cut_short.append(row.index)
    return Quality(
        checked=len(rows),
        silent=sum(row.quality["silent"] for row in rows),
        nonfinite=sum(row.quality["nonfinite_samples"] > 0 for row in rows),
        clipped=sum(row.quality["clipped_fraction"] > 0.001 for row in rows),
        long_pause=sum(row.quality["longest_pause_s"] > LONG_PAUSE_S for row in rows),
        run_on=tuple(run_on),
        cut_short=tuple(cut_short),
        seconds_per_unit=median,
        hashes=_hashes(rows),
    )


def _hashes(rows: Sequence[RequestResult]) -> dict[str, int]:
    texts: dict[str, list[str]] = defaultdict(list)
    for row in rows:
        texts[row.text].append(row.audio_sha256)
    return {text: len(set(hashes)) for text, hashes in texts.items() if len(hashes) > 1}

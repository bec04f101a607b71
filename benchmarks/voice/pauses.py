"""Seconds of silence that the built-in voice makes at a mark inside a sentence.

Run: python benchmarks/voice/pauses.py --json pauses.json
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np

import stentor

HALVES = (
    ("He opened the door", "nobody was there to see it"),
    ("She wanted to tell him", "all the words would go away"),
    ("There was only one answer", "they had to leave tonight"),
    ("I thought about it all day", "Anna went home in the evening"),
)
MARKS = (", ", " — ", "... ")
FRAME = 0.01
QUIET = 42.0
"""dB below the loudest frame."""


def silence(samples: np.ndarray, rate: int, word: float) -> float:
    """The longest silence around the beginning of a word, in seconds. samples: float32 [n]. word: in seconds."""
    size = int(rate * FRAME)
    frames = samples[: len(samples) // size * size].reshape(-1, size)
    loudness = 20 * np.log10(np.sqrt((frames**2).mean(1)) + 1e-9)
    first = max(0, int((word - 0.6) / FRAME))
    last = int((word + 0.25) / FRAME)
    longest = run = 0
    for quiet in loudness[first:last] < loudness.max() - QUIET:
        run = run + 1 if quiet else 0
        longest = max(longest, run)
    return longest * FRAME


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--voices", nargs="+", default=["heart", "eric", "emma"])
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    silences: dict[str, list[float]] = {mark: [] for mark in MARKS}
    with stentor.TTS(threads=1) as tts:
        for mark in MARKS:
            for voice in args.voices:
                for before, behind in HALVES:
                    for seed in args.seeds:
                        speech = tts.generate(
                            f"{before}{mark}{behind}.", seed=seed, voice=voice, word_timestamps=True
                        )
                        first = behind.split()[0]
                        word = next(w for w in speech.words if first in w.text)
                        samples = np.asarray(speech.samples)
                        silences[mark].append(silence(samples, speech.sample_rate, word.start))
    result = {
        mark: {"median": float(np.median(s)), "shortest": min(s), "longest": max(s), "n": len(s)}
        for mark, s in silences.items()
    }
    print(json.dumps(result, indent=1, ensure_ascii=False))
    if args.json:
        args.json.write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()

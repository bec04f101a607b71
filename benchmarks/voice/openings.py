"""How many utterances of the built-in voice begin too soon, and in how many the first word lacks a phoneme.

    python benchmarks/voice/openings.py --model stentor/assets/voice --seeds 11 12 13 14 15 --json FILE

The sentences of the choosing half (`training.halves`) that begin with an article or a pronoun are spoken for a second.
Recordings of the teacher begin 120 ms before their first sound. The network of the aligner (stentor/align) says which
phonemes are heard, so no recogniser is needed.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

import jiwer
import numpy as np
import soxr
from safetensors.numpy import load_file

import stentor
from stentor.align.english import word_classes
from stentor.align.network import RATE, LogMelStream, Network
from stentor.align.path import GAP
from training.halves import half, kinds

ROOT = Path(__file__).parents[2]
LIST, ALIGNER = (
    ROOT / "training/evaluation/kinds.txt",
    ROOT / "stentor/assets/aligner/english.safetensors",
)
WEAK = {"a", "an", "the", "i", "it", "he", "she", "we", "they", "his", "her", "my"}
PATCHES = 7
SOON, QUIET = 80, 42.0  # milliseconds, and dB below the loudest 10 ms


def begins_weakly(text: str) -> bool:
    return text.split(maxsplit=1)[0].lower().strip('",.') in WEAK


def onset(samples: np.ndarray, rate: int) -> int:
    """Milliseconds before the first 10 ms that are not quiet."""
    window = rate // 100
    power = (
        samples[: len(samples) // window * window].reshape(-1, window).astype(float) ** 2
    ).mean(1)
    level = 10 * np.log10(power + 1e-12)
    return 10 * int(np.flatnonzero(level > level.max() - QUIET)[0])


def heard(samples: np.ndarray, rate: int) -> list[int]:
    """Classes of the phonemes that the aligner's network finds likeliest, each run of frames once."""
    network = Network(
        {name: value.astype(np.float32) for name, value in load_file(ALIGNER).items()}
    )
    mel = LogMelStream()
    frames = mel.feed(soxr.resample(samples, rate, RATE).astype(np.float32))
    scores = np.concatenate((network.feed(frames), network.finish(mel.finish())))
    best = scores.argmax(1)
    return [int(c) for c in best[np.append(True, best[1:] != best[:-1])] if c != GAP]


def faults(words: Sequence[Sequence[int]], found: Sequence[int]) -> str:
    """Edits of the first word's phonemes, "d" for each one lost and "s" for one taken for another.

    The text goes on where the audio ends, so the beginning of it that fits best is compared.
    """
    text = [c for word in words for c in word]
    guess = " ".join(map(str, found))
    ways = (
        jiwer.process_words(" ".join(map(str, text[:n])), guess)
        for n in range(len(words[0]), min(len(text), len(found) + 4) + 1)
    )
    way = min(ways, key=lambda w: w.substitutions + w.deletions + w.insertions)
    marks = {"delete": "d", "substitute": "s"}
    return "".join(
        marks[part.type] * (min(part.ref_end_idx, len(words[0])) - part.ref_start_idx)
        for part in way.alignments[0]
        if part.type in marks and part.ref_start_idx < len(words[0])
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--model", default=None, help="folder of the voice; the packaged one is the default"
    )
    parser.add_argument("--voice", default="heart")
    parser.add_argument("--seeds", type=int, nargs="+", default=[11, 12, 13, 14, 15])
    parser.add_argument("--json", type=Path, required=True)
    args = parser.parse_args()
    texts = [
        t for lines in kinds(LIST).values() for t in half(lines, "choosing") if begins_weakly(t)
    ]
    words = [[w for w in word_classes(text.split()) if w] for text in texts]
    found = {}
    with stentor.TTS(args.model, device="cpu", max_num_seqs=12) as tts:
        for seed in args.seeds:
            made = tts.generate(texts, seed=seed, voice=args.voice, max_frames=PATCHES)
            starts = [onset(s.samples, s.sample_rate) for s in made]
            edits = [
                faults(w, heard(s.samples, s.sample_rate)) for w, s in zip(words, made, strict=True)
            ]
            found[f"seed {seed}"] = {
                "utterances": len(texts),
                "soon": sum(start < SOON for start in starts),
                "at_once": sum(start <= 20 for start in starts),
                "first_word_lacks": sum("d" in e for e in edits),
                "first_word_wrong": sum(bool(e) for e in edits),
                "onsets_ms": starts,
            }
            print(
                seed,
                {k: v for k, v in found[f"seed {seed}"].items() if k != "onsets_ms"},
                flush=True,
            )
            args.json.write_text(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()

"""Speech by packages of Kokoro for `training.evaluate --spoken`, from the graph that stentor runs.

    python -m benchmarks.kokoro.packages FOLDER --peer PYTHON --reader espeak --out FILE.npz

FOLDER: model.onnx and voices/*.bin. PYTHON: an interpreter that has kokoro-onnx 0.6.1. Readers of
the text: `espeak`, that of kokoro-onnx itself, and `misaki`, that of the package kokoro 0.9.4, for
which PYTHON also has misaki[en] 0.9.4 and spaCy's en_core_web_sm. Both read American and British
voices as such. Score FILE and stentor's speech of the same lines with

    python -m training.evaluate --model FOLDER --voice VOICES --sentences LIST --most 60 --seeds 1
        --whisper MODEL --json FILE.json [--spoken FILE.npz]
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

VOICES = ("af_heart", "af_bella", "am_michael", "bf_emma", "bm_george")
LIST = Path("training/evaluation/kinds.txt")
COUNT = 60
Speak = Callable[[str, str], tuple[np.ndarray, int]]
"""Samples and their rate, of a text and a voice."""


def is_british(voice: str) -> bool:
    return voice.startswith("b")


def by_espeak(kokoro: Any) -> Speak:
    def speak(text: str, voice: str) -> tuple[np.ndarray, int]:
        language = "en-gb" if is_british(voice) else "en-us"
        spoken: tuple[np.ndarray, int] = kokoro.create(text, voice, lang=language)
        return spoken

    return speak


def by_misaki(kokoro: Any) -> Speak:
    from misaki import en, espeak

    readers = {
        british: en.G2P(british=british, fallback=espeak.EspeakFallback(british=british), unk="")
        for british in (False, True)
    }

    def speak(text: str, voice: str) -> tuple[np.ndarray, int]:
        phonemes, _ = readers[is_british(voice)](text)
        spoken: tuple[np.ndarray, int] = kokoro.create(phonemes, voice, is_phonemes=True)
        return spoken

    return speak


READERS = {"espeak": by_espeak, "misaki": by_misaki}


def speak_all(folder: Path, reader: str, out: Path, work: dict[str, Any]) -> None:
    """Write the speech of every voice. work: `texts`, and the `labels` of voices."""
    from benchmarks.kokoro.turns import peer

    speak = READERS[reader](peer(folder))
    arrays: dict[str, np.ndarray] = {}
    for voice, label in work["labels"].items():
        for index, text in enumerate(work["texts"]):
            samples, rate = speak(text, voice)
            arrays[f"{label}/rate"] = np.array(rate)
            arrays[f"{label}/{index}"] = (np.clip(samples, -1, 1) * 32767).astype(np.int16)
    np.savez_compressed(out, **arrays)  # type: ignore[arg-type]


def lines() -> dict[str, Any]:
    """The lines and their labels, as `training.evaluate` has them."""
    from training.evaluate import Case, read_list

    measure, texts, beside = read_list(LIST, COUNT)
    cases = {voice: Case(measure, LIST.stem, texts, beside, voice, 1) for voice in VOICES}
    return {"texts": texts, "labels": {voice: case.label for voice, case in cases.items()}}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--peer", help="interpreter that has kokoro-onnx 0.6.1")
    parser.add_argument("--reader", choices=READERS, default="espeak")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    if args.peer is None:
        speak_all(args.folder, args.reader, args.out, json.load(sys.stdin))
        return
    command = [args.peer, "-m", "benchmarks.kokoro.packages", str(args.folder)]
    command += ["--reader", args.reader, "--out", str(args.out)]
    subprocess.run(command, input=json.dumps(lines()), text=True, check=True)


if __name__ == "__main__":
    main()

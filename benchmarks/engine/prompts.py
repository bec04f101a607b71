"""Measure the host time of making a prompt, in a short voice or none, and in a long one that was used before, on a CPU.

Run: python benchmarks/engine/prompts.py [--seconds 28] [--repeats 400] [--cold] [--out FILE] [FAMILY ...]
Needs: nothing but stentor. No GPU. The families' tiny checkpoints are used, whose tokenizers know few words: a
transcript has as many letters as it would have tokens.

CPU microseconds of the caller's thread per request: from `TTS.request` to the prompt, without the keys of its pages and
with them. The least of five rounds, as other work on the machine adds to each. `--cold` writes over the caches of the
core before each request, as a server's other work does in part. Each text comes once. Qwen3-TTS Base always has a
voice: without one that is long it has one of a second.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # this tree, also where none is installed
from benchmarks.cloned_voices import numbered_text, recording, words_of
from stentor import TTS, Reference
from stentor.engine.known_prefixes import KnownPrefixes
from stentor.models.base import Prompt, ReferenceAudio
from tests.helpers.tiny import FAMILIES, reference_checkpoint

ROUNDS, RATE, SHORT = 5, 24_000, 1.0
TOKENS_PER_SECOND = 3.4  # of a transcript
CACHE_BYTES = 8 << 20  # more than a core has for itself


def made(tts: TTS, voice: ReferenceAudio | None) -> Prompt:
    return tts.prompt(tts.request(numbered_text(), reference=voice, seed=1))


def measure(family: str, seconds: float, repeats: int, cold: bool) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        checkpoint = str(reference_checkpoint(family, Path(folder)))
        with TTS(checkpoint, device="cpu", max_num_seqs=2, memory_gb=0.1) as tts:
            return {label: of(tts, voice, repeats, cold) for label, voice in voices(tts, family, seconds).items()}


def voices(tts: TTS, family: str, seconds: float) -> dict[str, ReferenceAudio | None]:
    def voice(length: float) -> ReferenceAudio:
        said = words_of(family, length)
        said = None if said is None else said[: round(TOKENS_PER_SECOND * length)]
        return tts.load_reference(Reference((recording(length, RATE, 1), RATE), said))

    return {"plain": voice(SHORT) if family == "qwen3_tts" else None, "known voice": voice(seconds)}


def of(tts: TTS, voice: ReferenceAudio | None, repeats: int, cold: bool) -> dict[str, float]:
    """Microseconds of prompts in this voice, and their tokens."""
    known, other = KnownPrefixes(tts.engine.sizes.page_size), np.zeros(CACHE_BYTES if cold else 0, np.uint8)
    known.keys(made(tts, voice))
    prompt_s, keys_s = [], []
    for _ in range(ROUNDS):
        prompt_s.append(0.0)
        keys_s.append(0.0)
        for _ in range(repeats):
            other += 1
            started = time.thread_time()
            prompt = made(tts, voice)
            between = time.thread_time()
            known.keys(prompt)
            prompt_s[-1] += between - started
            keys_s[-1] += time.thread_time() - between
    us = 1e6 / repeats
    return {"prompt": round(min(prompt_s) * us, 1), "keys": round(min(keys_s) * us, 1), "tokens": prompt.length}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("families", nargs="*", default=FAMILIES, metavar="FAMILY", help=", ".join(FAMILIES))
    parser.add_argument("--seconds", type=float, default=28.0, help="of the long voice")
    parser.add_argument("--repeats", type=int, default=400)
    parser.add_argument("--cold", action="store_true", help="write over the caches of the core before each request")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(1)
    found = {family: measure(family, args.seconds, args.repeats, args.cold) for family in args.families}
    print(f"{'CPU us per request':24} {'prompt':>8} {'keys':>8} {'tokens':>8}")
    for family, rows in found.items():
        for label, row in rows.items():
            print(f"{family + ', ' + label:24} {row['prompt']:8} {row['keys']:8} {row['tokens']:8}")
    if args.out:
        args.out.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()

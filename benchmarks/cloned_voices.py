"""Texts, recordings, options and the loop that measurements of cloned voices share, in process and over HTTP."""

from __future__ import annotations

import argparse
import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

MODELS = ("dummy:fish-s2-pro", "dummy:qwen3-tts-1.7b-base", "dummy:voxcpm2")
TEXT = "The quick brown fox jumps over the lazy dog, and then it sleeps in the warm afternoon sun."
WORDS = "These are the words of the recording, which nobody checks. "
NUMBER = itertools.count(
    1000
)  # of the requests, so that none finds another's text in the prefix cache


def numbered_text() -> str:
    """A text that no request had before."""
    return f"Number {next(NUMBER)}. {TEXT}"


def recording(seconds: float, rate: int, seed: int) -> np.ndarray:
    """Noise float32 [seconds * rate] that stands for a voice."""
    return np.random.default_rng(seed).standard_normal(int(seconds * rate)).astype(np.float32) * 0.1


def words_of(model: str, seconds: float) -> str | None:
    """Transcript of a recording. None for VoxCPM2, which puts a reference with its text behind the text that it speaks,
    and one without before it."""
    return None if "voxcpm2" in model else WORDS * max(1, round(seconds / 4))


def parser(description: str | None) -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    made.add_argument("models", nargs="*", default=list(MODELS))
    made.add_argument("--device", default="cuda")
    made.add_argument("--seconds", type=float, default=28.0, help="of reference audio")
    made.add_argument("--out", type=Path)
    return made


def run(
    args: argparse.Namespace, measure: Callable[[str], dict[str, Any]], result: dict[str, Any]
) -> None:
    """Measure each model. `result` gets its figures, and is printed and written as it grows."""
    for model in args.models:
        result[model] = measure(model)
        print(model, json.dumps(result[model], indent=1), flush=True)
        if args.out:
            args.out.write_text(json.dumps(result, indent=1))

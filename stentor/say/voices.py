"""`stentor voices`: what a model can sound like, and what it takes."""

from __future__ import annotations

import argparse

from stentor.api import TTS
from stentor.models.base import ModelSpec
from stentor.say.progress import loading


def run(args: argparse.Namespace) -> int:
    """Load the model and print what its spec says."""
    with loading(args.model or "the embedded voice"):
        tts = TTS(args.model, device=args.device, dtype=args.dtype, quantization=args.quantization, max_num_seqs=1)
    with tts:
        for name, value in facts(tts.spec).items():
            print(f"{name:<16}{value}")
    return 0


def facts(spec: ModelSpec) -> dict[str, str]:
    """What a request may say about the voice, in words."""
    shortest, longest = spec.reference_seconds
    return {
        "voices": ", ".join(spec.voices) or "one, which needs no name",
        "languages": ", ".join(spec.languages) or "chosen from the text",
        "--reference": f"{shortest:g} to {longest:g} s of speech to clone" if spec.takes_reference else "not taken",
        "--prompt": "speech to continue" if spec.takes_prompt else "not taken",
        "--instructions": "how to speak, or which voice to design" if spec.takes_instructions else "not taken",
        "--srt": "times of sentences, and of words with --words" if spec.alignment else "times of sentences",
        "sample rate": f"{spec.sample_rate} Hz",
    }

"""`stentor voices`: what a model can sound like, and what it takes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from stentor.api import TTS
from stentor.errors import InvalidRequest, StentorError
from stentor.models.info import ModelInfo
from stentor.say.progress import loading

SENTENCE = "Hello. This is how I sound, whether the news is good or bad."


def run(load: dict[str, Any], samples: Path | None = None) -> int:
    """Load the model with these arguments of `TTS` and print its spec.

    samples: a folder for a file of each voice.
    """
    if samples is not None and samples.exists() and not samples.is_dir():
        raise InvalidRequest("sample", f"{str(samples)!r} is no folder")
    with loading(load.get("model", "the built-in voice")):
        tts = TTS(**load, max_num_seqs=1)
    with tts:
        for name, value in facts(tts.spec).items():
            print(f"{name:<16}{value}")
        if samples is not None:
            for file in _speak_samples(tts, samples):
                print(file)
    return 0


def _speak_samples(tts: TTS, folder: Path) -> Iterator[Path]:
    """Speak a sentence in each voice, and return its file."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for voice in tts.voices or (None,):
            file = folder / f"{_file_name(voice or 'voice')}.wav"
            tts.generate(SENTENCE, voice=voice, seed=1).save(file)
            yield file
    except OSError as e:
        raise StentorError(f"cannot write to {str(folder)!r}: {e.strerror or e}") from e


def _file_name(voice: str) -> str:
    """A voice's name without what a path could read in it."""
    return re.sub(r"[^\w. -]", "_", voice).lstrip(".") or "voice"


def facts(spec: ModelInfo) -> dict[str, str]:
    """Describe a request's fields about the voice."""
    shortest, longest = spec.reference_seconds
    descriptions = {
        name: f" ({description})" for name, description in spec.voice_descriptions.items()
    }
    return {
        "voices": ", ".join(name + descriptions.get(name, "") for name in spec.voices)
        or "one, which needs no name",
        "languages": ", ".join(spec.languages) or "chosen from the text",
        "--reference": f"{shortest:g} to {longest:g} s of speech to clone"
        if spec.takes_reference
        else "not supported",
        "--prompt": "speech to continue" if spec.takes_prompt else "not supported",
        "--instructions": "how to speak, or which voice to design"
        if spec.takes_instructions
        else "not supported",
        "word timestamps": "in every language of the model" if spec.alignment else "English",
        "sample rate": f"{spec.sample_rate} Hz",
    }

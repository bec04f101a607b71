"""`stentor voices`: what a model can sound like, and what it takes."""

from __future__ import annotations

from typing import Any

from stentor.api import TTS
from stentor.models.info import ModelInfo
from stentor.say.progress import loading


def run(load: dict[str, Any]) -> int:
    """Load the model with these arguments of `TTS` and print what its spec says."""
    with loading(load.get("model", "the built-in voice")):
        tts = TTS(**load, max_num_seqs=1)
    with tts:
        for name, value in facts(tts.spec).items():
            print(f"{name:<16}{value}")
    return 0


def facts(spec: ModelInfo) -> dict[str, str]:
    """Describe what a request may say about the voice."""
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

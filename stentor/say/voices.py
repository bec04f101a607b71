"""`stentor voices`: what a model can sound like, and what it takes."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

from stentor.api import TTS
from stentor.errors import InvalidRequest, StentorError
from stentor.models.info import ModelInfo
from stentor.say.progress import loading
from stentor.say.speakers import ServerSpeaker, fetch, joined, request_body
from stentor.speech.result import Speech

SENTENCE = "Hello. This is how I sound, whether the news is good or bad."
SEED = 1
Speak = Callable[[str | None], Speech]
"""Speak the sentence in a voice."""


def run(load: dict[str, Any], samples: Path | None = None) -> int:
    """Load the model with these arguments of `TTS` and print its spec.

    samples: a folder for a file of each voice.
    """
    _check_folder(samples)
    with loading(load.get("model", "the built-in voice")):
        tts = TTS(**load, max_num_seqs=1)

    def speak(voice: str | None) -> Speech:
        return tts.generate(SENTENCE, voice=voice, seed=SEED)

    with tts:
        descriptions = tts.spec.voice_descriptions
        voices = {name: descriptions.get(name, "") for name in tts.voices}
        word_times = "English"
        if tts.spec.alignment is not None:
            word_times = "in every language of the model"
        _print_facts(facts(_described(tts.spec), voices, word_times))
        if samples is not None:
            _print_samples(samples, list(voices) or [None], speak)
    return 0


def run_on_server(url: str, model: str | None, samples: Path | None = None) -> int:
    """Print the voices, languages and inputs of a running server's models, or of one.

    samples: a folder for a file of each voice, and with several models a folder in it for each.
    """
    _check_folder(samples)
    if model is None:
        listed = fetch(url, "/v1/models")["data"]
        # aliases have another root, adapters a parent
        models = [entry for entry in listed if entry["root"] == entry["id"]]
    else:
        models = [fetch(url, f"/v1/models/{quote(model)}")]

    for number, entry in enumerate(models):
        if number:
            print()
        _print_facts({"model": entry["id"]})
        if "takes" not in entry:
            _print_facts({"phase": entry["phase"]})
            continue
        voices = _server_voices(url, entry)
        word_times = "depend on the language"
        if not entry["word_timestamps"]:
            word_times = "not supported"
        _print_facts(facts(entry, voices, word_times))
        if samples is not None:
            folder = samples
            if len(models) > 1:
                folder = samples / _file_name(entry["id"])
            _print_samples(folder, list(voices) or [None], _server_speak(url, entry["id"]))
    return 0


def _server_voices(url: str, model: Mapping[str, Any]) -> dict[str, str]:
    """Names of the voices that a model of a server can speak with, each with its description."""
    query = urlencode({"model": model["id"]})
    descriptions: dict[str, str] = {}
    for voice in fetch(url, f"/v1/audio/voices?{query}")["voices"]:
        name = voice["name"]
        match voice["type"]:
            case "default":
                continue
            case "built_in":
                descriptions[name] = model["voice_descriptions"].get(name, "")
            case "alias":
                descriptions[name] = f"alias of {voice['voice']}"
            case _ if model["takes"]["reference"]:
                descriptions[name] = "uploaded"
    return descriptions


def _server_speak(url: str, model: str) -> Speak:
    def speak(voice: str | None) -> Speech:
        options: dict[str, Any] = {"seed": SEED}
        if voice is not None:
            options["voice"] = voice
        body = request_body(SENTENCE, model, options, None, False)
        return joined(ServerSpeaker(url, body).speech())

    return speak


def _check_folder(samples: Path | None) -> None:
    if samples is not None and samples.exists() and not samples.is_dir():
        raise InvalidRequest("sample", f"{str(samples)!r} is no folder")


def _print_facts(values: Mapping[str, str]) -> None:
    for name, value in values.items():
        print(f"{name:<16}{value}")


def _print_samples(folder: Path, voices: Iterable[str | None], speak: Speak) -> None:
    for file in _write_samples(folder, voices, speak):
        print(file)


def _write_samples(folder: Path, voices: Iterable[str | None], speak: Speak) -> Iterator[Path]:
    """Speak a sentence in each voice, and return its file."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for voice in voices:
            file = folder / f"{_file_name(voice or 'voice')}.wav"
            speak(voice).save(file)
            yield file
    except OSError as e:
        raise StentorError(f"cannot write to {str(folder)!r}: {e.strerror or e}") from e


def _file_name(voice: str) -> str:
    """A voice's name without what a path could read in it."""
    return re.sub(r"[^\w. -]", "_", voice).lstrip(".") or "voice"


def _described(spec: ModelInfo) -> dict[str, Any]:
    """A model as a server describes it in its list of models."""
    return {
        "languages": spec.languages,
        "takes": {
            "instructions": spec.takes_instructions,
            "reference": spec.takes_reference,
            "prompt": spec.takes_prompt,
        },
        "reference_seconds": spec.reference_seconds,
        "sample_rate": spec.sample_rate,
    }


def facts(model: Mapping[str, Any], voices: Mapping[str, str], word_times: str) -> dict[str, str]:
    """Describe a request's fields about the voice. voices: descriptions by name. word_times: which
    words are timed."""
    shortest, longest = model["reference_seconds"]
    takes = model["takes"]
    described = [name + (f" ({text})" if text else "") for name, text in voices.items()]
    return {
        "voices": ", ".join(described) or "one, which needs no name",
        "languages": ", ".join(model["languages"]) or "chosen from the text",
        "--reference": f"{shortest:g} to {longest:g} s of speech to clone"
        if takes["reference"]
        else "not supported",
        "--prompt": "speech to continue" if takes["prompt"] else "not supported",
        "--instructions": "how to speak, or which voice to design"
        if takes["instructions"]
        else "not supported",
        "word timestamps": word_times,
        "sample rate": f"{model['sample_rate']} Hz",
    }

"""The flags of `stentor say` and `stentor voices`. Nothing heavy is imported."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from stentor.config import audio_path, path_of
from stentor.errors import InvalidRequest
from stentor.text.cleanup import ALL, HELP
from stentor.text.sentences import GRANULARITIES

OPTIONS = ("temperature", "top_k", "top_p", "cfg", "flow_steps", "min_frames", "max_frames")
FORMATS = ("wav", "raw", "mp3", "flac", "opus", "ogg", "m4a", "aac", "ulaw", "alaw")
MODEL = "directory, Hub id (owner/name) or dummy:NAME (default: the built-in voice)"

Run = Callable[[argparse.Namespace], int]


def add_say(commands: Any, run: Run) -> None:
    """Add `say` to a program's commands."""
    usage = "stentor say [TEXT] [--flag VALUE ...]"
    say = commands.add_parser("say", help="speak a text into a file, a pipe or the loudspeaker", usage=usage)
    say.add_argument("-v", "--verbose", action="store_true", help="say how fast it was, and the seed")
    text = say.add_argument_group("text")
    text.add_argument("text", nargs="?", help="text to speak; - or none in a pipe: standard input")
    text.add_argument("--file", type=path, metavar="TEXT_FILE", help="speak this text file (UTF-8)")
    add_cleanup(text)
    text.add_argument("--split", choices=GRANULARITIES, default="auto", help="where long text is cut (default auto)")
    text.add_argument("--lexicon", type=path, help="YAML file of words and how they are said")
    _add_output(say.add_argument_group("audio"))
    add_marks(say.add_argument_group("marks of a machine"))
    add_request(say.add_argument_group("voice"))
    model = say.add_argument_group("model")
    add_model(model)
    model.add_argument("--threads", type=int, help="CPU threads")
    model.add_argument("--lora", type=path, help="LoRA weights to merge at load")
    say.set_defaults(func=run)


def add_voices(commands: Any, run: Run) -> None:
    """Add `voices` to a program's commands."""
    voices = commands.add_parser("voices", help="list a model's voices and languages, and what it takes")
    add_model(voices)
    voices.set_defaults(func=run)


def _add_output(say: argparse._ArgumentGroup) -> None:
    say.add_argument(
        "-o",
        "--output",
        help="audio file to write (.wav .flac .mp3 .opus .ogg .m4a .aac .raw .ulaw .alaw), or - for standard "
        "output; default out.wav, or none with --play",
    )
    say.add_argument("--format", choices=FORMATS, help="format of the audio (default: by the suffix, wav for -o -)")
    say.add_argument("--play", action="store_true", help="play it while it is made (needs stentor[play])")
    say.add_argument("--speed", type=float, default=1.0, help="0.25 to 4; pitch is kept (default 1)")
    say.add_argument("--srt", type=path, metavar="FILE", help="write the times of sentences (.srt or .vtt)")
    say.add_argument("--words", action="store_true", help="with --srt: the times of words, if the model knows them")


def add_marks(parser: argparse.ArgumentParser | argparse._ArgumentGroup) -> None:
    """Add the flags by which programs know that audio is made by a machine."""
    parser.add_argument("--provenance", action="store_true", help="say in the file that a machine has made the audio")
    parser.add_argument(
        "--watermark", metavar="PACKAGE:FUNCTION", help="mark the samples with this function of an installed package"
    )


def add_model(parser: argparse.ArgumentParser | argparse._ArgumentGroup) -> None:
    """Add the flags that say which model speaks, and where."""
    parser.add_argument("--model", help=MODEL)
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:N")
    parser.add_argument("--dtype", default="auto", help="auto, float32, bfloat16 or float16")
    parser.add_argument("--quantization", default="auto", help="weights of the language model: auto, int8 or fp8")


def add_request(
    parser: argparse.ArgumentParser | argparse._ArgumentGroup, seed: str = "the same seed gives the same audio"
) -> None:
    """Add the flags that say how a text is spoken. seed: what a seed means here."""
    parser.add_argument("--voice", help="a named voice of the model (`stentor voices` lists them)")
    parser.add_argument("--language", default="auto", help="language of the text (default auto)")
    parser.add_argument("--instructions", help="how to speak, or what voice to design")
    parser.add_argument("--reference", type=path, help="audio of the voice to clone")
    parser.add_argument("--reference-text", help="transcript of the reference, which is then continued")
    parser.add_argument("--prompt", type=path, help="audio to continue, in addition to --reference")
    parser.add_argument("--prompt-text", help="transcript of the prompt")
    parser.add_argument("--seed", type=int, help=seed)
    for name in OPTIONS:
        parser.add_argument("--" + name.replace("_", "-"), type=number, metavar="N", help="option of the model")


def add_cleanup(parser: argparse.ArgumentParser | argparse._ArgumentGroup) -> None:
    """Add the flag that says how pasted text is cleaned."""
    parser.add_argument("--cleanup", default=ALL, help=HELP + f" (default {ALL})")


def check_speed(speed: float) -> None:
    """InvalidRequest unless speech can be made so much faster."""
    if not 0.25 <= speed <= 4:
        raise InvalidRequest("speed", f"must be from 0.25 to 4, got {speed:g}")


def check_files(args: argparse.Namespace) -> None:
    """InvalidRequest for a reference, prompt or adapter that cannot be read, and for a transcript without its audio."""
    for audio, text in (("reference", args.reference_text), ("prompt", args.prompt_text)):
        file = getattr(args, audio)
        if file is not None:
            audio_path(audio, file)
        elif text is not None:
            raise InvalidRequest(f"{audio}_text", f"needs --{audio}")
    if args.lora is not None and not os.path.exists(args.lora):  # not an error where a name is too long
        raise InvalidRequest("lora", f"file {str(args.lora)!r} does not exist")


def path(text: str) -> Path:
    """A path, with `~` where the shell has left it, as in --file=~/text.txt. An error of argparse has this name."""
    return path_of("path", text)


def number(text: str) -> float | int:
    """A number of a flag, as it is written."""
    try:
        return int(text)
    except ValueError:
        return float(text)

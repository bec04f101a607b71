"""Flags that several commands share, each declared once, and what the flags of a command become:
arguments of `TTS` and of requests. Nothing heavy is imported."""

from __future__ import annotations

import argparse
import inspect
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

from stentor.align.aligner import Aligners
from stentor.arguments import as_audio_file, as_path
from stentor.config import (
    RUNTIMES,
    EngineConfig,
    check_device,
    check_dtype,
    check_quantization,
)
from stentor.errors import InvalidRequest
from stentor.models import model_names
from stentor.text.cleanup import ALL, HELP
from stentor.text.sentences import GRANULARITIES

Parser = argparse.ArgumentParser | argparse._ArgumentGroup
Made = TypeVar("Made")
Flag = dict[str, Any]
"""Arguments of `add_argument`. also: further names."""

AUTO = "auto"
OFF = "off"
LUFS_RANGE = (-40, -5)
OPTIONS = ("temperature", "top_k", "top_p", "cfg", "flow_steps", "min_frames", "max_frames")
FORMATS = ("wav", "raw", "mp3", "flac", "opus", "ogg", "m4a", "aac", "ulaw", "alaw")


def flag(help: str, type: Any = None, default: Any = None, **more: Any) -> Flag:
    """A flag with a value. more: other arguments of `add_argument`, and `also`: further names."""
    return {"help": help, "type": type, "default": default, **more}


def switch(help: str) -> Flag:
    """A flag without a value."""
    return {"help": help, "action": "store_true"}


def add(parser: Parser, flags: Mapping[str, Flag]) -> None:
    """Add flags by their names, as attributes of what is parsed."""
    for name, how in flags.items():
        also = how.get("also", ())
        options = {
            key: value
            for key, value in how.items()
            if key != "also" and (key, value) != ("type", None)
        }
        parser.add_argument("--" + name.replace("_", "-"), *also, dest=name, **options)


def taken(kind: type[Made], args: argparse.Namespace, **own: Any) -> Made:
    """An options object, whose fields are flags of the same name, or `own`."""
    values = {
        name: vars(args)[name] for name in inspect.signature(kind).parameters if name in vars(args)
    }
    return kind(**{**values, **own})


def path(text: str) -> Path:
    """A path, with `~` where the shell has left it, as in --file=~/text.txt."""
    try:
        return as_path(text)
    except ValueError as e:
        raise argparse.ArgumentTypeError(str(e)) from None


def number(text: str) -> float | int:
    """A number of a flag, as it is written."""
    try:
        return int(text)
    except ValueError:
        return float(text)


def server_address(text: str) -> str:
    """The address of a server, without a path and with a scheme."""
    url = text if "://" in text else f"http://{text}"
    try:
        parts = urlsplit(url)
        valid = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        valid = False
    if not valid:
        raise argparse.ArgumentTypeError(
            f"must be an address such as http://localhost:8000, got {text!r}"
        )
    return url.rstrip("/").removesuffix("/v1")


def loudness(text: str) -> float | str:
    """The loudness that a flag names, in LUFS, or OFF."""
    if text in (AUTO, OFF):
        return text
    low, high = LUFS_RANGE
    value = float(text)
    if not low <= value <= high:
        raise argparse.ArgumentTypeError(f"must be from {low:g} to {high:g} or {OFF}, got {text}")
    return value


def _server(use: str) -> Flag:
    return flag(
        f"{use} this running server (API key: STENTOR_API_KEY)", server_address, metavar="URL"
    )


SERVER = {"server": _server("speak through")}
SERVER_LISTED = {"server": _server("list the models of")}
MODEL = {
    "model": flag("folder, Hub id (owner/name) or dummy:NAME (default: the built-in voice)"),
    "device": flag("auto, cpu, cuda or cuda:N", default="auto"),
    "dtype": flag("auto, float32, bfloat16 or float16", default="auto"),
    "quantization": flag("weights of the language models: auto, int8 or fp8", default="auto"),
    "runtime": flag(
        "auto, onnxruntime (the built-in voice on a CPU) or torch", default="auto", choices=RUNTIMES
    ),
}
"""The model, and where it runs."""
THREADS = {"threads": flag("CPU threads of the engine", int)}
LORA = {"lora": flag("LoRA weights to merge at load", path)}
LEXICON = {
    "lexicon": flag("YAML file of pronunciations: a word, then /phonemes/ or other words", path)
}
ALIGNER = {
    "aligner": flag(
        "function of an installed package that times words in languages other than English",
        metavar="PACKAGE:FUNCTION",
    )
}
MARKS = {
    "provenance": switch("mark the file's metadata as machine-made"),
    "watermark": flag(
        "watermark the samples with this function of an installed package",
        metavar="PACKAGE:FUNCTION",
    ),
}
CLEANUP = {"cleanup": flag(HELP + f" (default {ALL})", default=ALL)}
SPLIT = {
    "split": flag("where to split long text (default auto)", default="auto", choices=GRANULARITIES)
}
REQUEST = {
    "voice": flag("name of a voice (`stentor voices` lists them)"),
    "language": flag("language of the text (default auto)", default="auto"),
    "instructions": flag("speaking style, or a description of the voice to design"),
    "reference": flag("recording of the voice to clone", path),
    "reference_text": flag("transcript of --reference; the speech then continues the recording"),
    "prompt": flag("recording to continue, in addition to --reference", path),
    "prompt_text": flag("transcript of --prompt"),
    "seed": flag("random seed; the same seed gives the same audio", int),
    **{name: flag("sampling option of the model", number, metavar="N") for name in OPTIONS},
}
"""The voice of a text, and how it is spoken."""

SAMPLES = {
    "sample": flag("write a sentence spoken by each voice to this folder", path, metavar="FOLDER")
}

LOADING = (*MODEL, *THREADS, *LORA, *LEXICON, *ALIGNER, "max_num_seqs", "deterministic")
_SPOKEN = ("voice", "language", "instructions", *CLEANUP, *OPTIONS)
_USUAL = {"language": "auto", "cleanup": ALL, "split_granularity": "auto"}


def load_options(args: argparse.Namespace) -> dict[str, Any]:
    """The arguments of `TTS` from flags, checked before torch is imported. InvalidRequest or
    ModelNotFound for what is wrong on every machine."""
    values = {
        name: value for name, value in vars(args).items() if name in LOADING and value is not None
    }
    model_names.check(args.model)
    check_device(args.device)
    check_dtype(args.dtype)
    check_quantization(args.quantization)
    Aligners(values.get("aligner"))
    EngineConfig(
        **{
            name: value
            for name, value in values.items()
            if name in EngineConfig.__dataclass_fields__
        }
    )
    return values


def request_options(args: argparse.Namespace) -> dict[str, Any]:
    """A request's arguments from flags, apart from its audio and seed, without defaults."""
    values = {name: vars(args)[name] for name in _SPOKEN} | {"split_granularity": args.split}
    return {
        name: value
        for name, value in values.items()
        if value is not None and value != _USUAL.get(name)
    }


def check_no_load_options(args: argparse.Namespace) -> None:
    """InvalidRequest for a flag that belongs to the process that loads the model, with --server."""
    for name, how in {**MODEL, **THREADS, **LORA, **LEXICON, **ALIGNER}.items():
        if name != "model" and name in args and vars(args)[name] != how["default"]:
            raise InvalidRequest(name, "has no effect with --server: give it to `stentor serve`")


def run_options(args: argparse.Namespace) -> dict[str, Any]:
    """The arguments of `TTS` for a run that may go through a server, which has its own."""
    if args.server is None:
        return load_options(args)
    check_no_load_options(args)
    if args.max_num_seqs is not None:
        raise InvalidRequest(
            "max_num_seqs", "has no effect with --server: give it to `stentor serve`"
        )
    values = {name: vars(args)[name] for name in MODEL}
    return {**values, "deterministic": args.deterministic}


def check_speed(speed: float) -> None:
    """InvalidRequest unless speech can be made so much faster."""
    if not 0.25 <= speed <= 4:
        raise InvalidRequest("speed", f"must be from 0.25 to 4, got {speed:g}")


def check_files(args: argparse.Namespace) -> None:
    """InvalidRequest for a reference, prompt or adapter that cannot be read, and for a transcript
    without its audio."""
    for audio, text in (("reference", args.reference_text), ("prompt", args.prompt_text)):
        file = vars(args)[audio]
        if file is not None:
            try:
                as_audio_file(file)
            except ValueError as e:
                raise InvalidRequest(audio, str(e)) from None
        elif text is not None:
            raise InvalidRequest(f"{audio}_text", f"needs --{audio}")
    # not an error where a name is too long
    if args.lora is not None and not os.path.exists(args.lora):
        raise InvalidRequest("lora", f"file {str(args.lora)!r} does not exist")


def add_say(say: argparse.ArgumentParser) -> None:
    """Add the flags of `say`."""
    say.add_argument("-v", "--verbose", action="store_true", help="print the seed and the speed")
    text = say.add_argument_group("text")
    text.add_argument(
        "text",
        nargs="*",
        help="text to speak, joined by spaces; - reads standard input, as does a pipe",
    )
    add(
        text,
        {
            "file": flag("text file to speak (UTF-8 or UTF-16)", path, metavar="TEXT_FILE"),
            **CLEANUP,
            **SPLIT,
            **LEXICON,
        },
    )
    audio = say.add_argument_group("audio")
    audio.add_argument("-o", "--output", help=_OUTPUT)
    add(audio, _AUDIO)
    add(say.add_argument_group("provenance"), MARKS)
    add(say.add_argument_group("voice"), REQUEST)
    add(say.add_argument_group("model"), {**SERVER, **MODEL, **THREADS, **LORA, **ALIGNER})


_OUTPUT = (
    "audio file to write (.wav .flac .mp3 .opus .ogg .m4a .aac .raw .ulaw .alaw), or - for standard output "
    "(default: out.wav, or no file with --play)"
)
_AUDIO = {
    "format": flag("audio format (default: the suffix of --output, or wav for -)", choices=FORMATS),
    "play": switch("play the audio as it is generated (needs stentor[play])"),
    "speed": flag("speed, 0.25 to 4, at the same pitch (default 1)", float, 1.0),
    "loudness": flag(
        "target loudness in LUFS, or off (default: -16 for files; off for pipes, --play and telephone formats)",
        loudness,
        AUTO,
        metavar="LUFS",
    ),
    "subtitles": flag(
        "write subtitles to FILE (.srt, .vtt or .ass)", path, metavar="FILE", also=["--srt"]
    ),
    "words": switch("with --subtitles: time each word (.srt: one cue per word)"),
}

MEASURES = ("wer", "similarity", "mos")
VERIFY = {
    "verify": flag(
        f"measure each item after speaking it: {', '.join(MEASURES)}, comma-separated",
        metavar="MEASURES",
    ),
    "retry_above": flag("speak an item again if its WER is above this, such as 0.1", float),
    "recogniser": flag(
        "faster-whisper model for the WER: a size or a folder (default base)", default="base"
    ),
}
RETRY_ABOVE = 0.1
"""WER above which a piece of a book is spoken again."""
SHARD_ITEMS = 1000
INPUT_FORMATS = ("jsonl", "csv", "txt")
BATCH_EPILOG = """\
exit codes: 0 all items spoken, 3 some cut off by max_frames, 4 some failed (see the manifest), 5 some text left
out because the voice cannot speak it, 2 wrong usage or input, 1 run stopped, 130 interrupted. After 1 or 130,
continue with --resume."""


def add_batch(batch: argparse.ArgumentParser) -> None:
    """Add the flags of `batch`."""
    lines = "JSON Lines, CSV or plain text, one item per line; - reads standard input"
    batch.add_argument("input", type=path, metavar="INPUT", help=lines)
    batch.add_argument(
        "output", type=path, metavar="OUTPUT", help="folder for the audio and its manifest"
    )
    add(batch.add_argument_group("items"), _ITEMS)
    add(batch.add_argument_group("audio"), _KEPT)
    add(
        batch.add_argument_group("model"),
        {**SERVER, **MODEL, **THREADS, **_MANY, **LORA, **_LORAS, **LEXICON, **ALIGNER},
    )
    add(batch.add_argument_group("verification"), VERIFY)
    add(batch.add_argument_group("provenance"), MARKS)
    seed = flag(
        "seed of the run; each item derives its own seed from this and its id (default 0)", int
    )
    speed = flag("speed, 0.25 to 4, at the same pitch (default 1)", float)
    add(
        batch.add_argument_group("defaults of lines"),
        {**REQUEST, "seed": seed, "speed": speed, **CLEANUP, **SPLIT},
    )


_ITEMS = {
    "resume": switch("continue an earlier run"),
    "retry_failed": switch("with --resume: speak failed items again"),
    "strict": switch("speak nothing if any line is invalid"),
    "input_format": flag(
        "input format (default: csv for .csv, txt for .txt, else jsonl)", choices=INPUT_FORMATS
    ),
}
_KEPT = {
    "format": flag("audio format (default wav)", default="wav", choices=FORMATS),
    "shards": flag(
        "write tar files of N items (WebDataset) instead of one file per item", int, metavar="N"
    ),
    "parquet": switch(f"write Parquet shards ({SHARD_ITEMS} items by default)"),
    "words": switch("add word timestamps to the manifest"),
}
_MANY = {
    "max_num_seqs": flag("maximum number of texts spoken at once", int, metavar="N"),
    "replicas": flag(
        "run N processes, each on its own GPU if there are any (needs stentor[ray])",
        int,
        metavar="N",
    ),
    "deterministic": switch("on CUDA, produce the same bytes in every run; slower"),
}
_LORAS = {
    "loras": flag(
        "LoRA adapter that lines can select by name; repeatable",
        default=[],
        metavar="NAME=PATH",
        action="append",
    )
}

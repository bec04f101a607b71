"""The command line: `stentor say | serve | bench | doctor | completion`. Flags become calls of the public API."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import stentor
from stentor import model_names
from stentor.config import EngineConfig, check_device, check_dtype
from stentor.errors import InvalidRequest, ModelNotFound, StentorError

if TYPE_CHECKING:
    from stentor.api import TTS, Speech
    from stentor.engine.stream import Chunk

OPTIONS = ("temperature", "top_k", "top_p", "cfg", "flow_steps", "min_frames", "max_frames")


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command. Returns 0 if it is done, 1 with a message if it failed, 2 for wrong usage (also a model that does
    not exist), 130 if interrupted."""
    args = parser().parse_args(argv)
    try:
        code: int = args.func(args)
    except StentorError as e:
        print(f"stentor: {e}", file=sys.stderr)
        return 2 if isinstance(e, InvalidRequest | ModelNotFound) else 1
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        sys.stderr.close()  # the reader has gone, and Python would report it once more at exit
        return 1
    return code


def parser() -> argparse.ArgumentParser:
    from stentor.bench.cli import add_parser as add_bench
    from stentor.server.cli import add_parser as add_serve

    top = argparse.ArgumentParser(prog="stentor", description=stentor.__doc__)
    top.add_argument("--version", action="version", version=f"stentor {stentor.__version__}")
    commands = top.add_subparsers(required=True, metavar="COMMAND")
    _add_say(commands)
    add_serve(commands)
    add_bench(commands)
    doctor = commands.add_parser("doctor", help="show what runs on this machine and how fast")
    doctor.add_argument("--model", help="model to test: directory, Hub id or dummy:NAME (default: the embedded voice)")
    doctor.set_defaults(func=_doctor)
    completion = commands.add_parser("completion", help="print a script that completes commands and flags in a shell")
    completion.add_argument("shell", choices=("bash", "zsh", "tcsh"), help='bash: eval "$(stentor completion bash)"')
    completion.set_defaults(func=_completion)
    return top


def _add_say(commands: Any) -> None:
    say = commands.add_parser("say", help="speak a text into a file")
    say.add_argument("text", help="text to speak, or - to read it from standard input")
    say.add_argument("-o", "--output", default="out.wav", type=Path, help="audio file to write (wav, flac, ogg, mp3)")
    say.add_argument("--model", help="directory, Hub id (owner/name) or dummy:NAME (default: the embedded voice)")
    say.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:N")
    say.add_argument("--dtype", default="auto", help="auto, float32, bfloat16 or float16")
    say.add_argument("--threads", type=int, help="CPU threads")
    say.add_argument("--lora", type=Path, help="LoRA weights to merge at load")
    say.add_argument("--voice", help="a named voice of the model")
    say.add_argument("--language", default="auto", help="language of the text (default auto)")
    say.add_argument("--instructions", help="how to speak, or what voice to design")
    say.add_argument("--reference", type=Path, help="audio of the voice to clone")
    say.add_argument("--reference-text", help="transcript of the reference, which is then continued")
    say.add_argument("--prompt", type=Path, help="audio to continue, in addition to --reference")
    say.add_argument("--prompt-text", help="transcript of the prompt")
    say.add_argument("--seed", type=int, help="the same seed gives the same audio")
    for name in OPTIONS:
        say.add_argument("--" + name.replace("_", "-"), type=_number, metavar="N", help="option of the model")
    say.set_defaults(func=_say)


def _number(text: str) -> float | int:
    try:
        return int(text)
    except ValueError:
        return float(text)


def _check_model(args: argparse.Namespace) -> None:
    """InvalidRequest or ModelNotFound for flags that are wrong on every machine, before torch is imported."""
    model_names.check(args.model)
    check_device(args.device)
    check_dtype(args.dtype)
    EngineConfig(threads=args.threads)


def _say(args: argparse.Namespace) -> int:
    _check_model(args)
    from stentor.api import TTS, Speech

    text = sys.stdin.read() if args.text == "-" else args.text
    if not args.output.parent.is_dir():
        raise InvalidRequest("output", f"folder {str(args.output.parent)!r} does not exist")
    Speech.check_path(args.output)
    started = time.perf_counter()
    engine = {} if args.threads is None else {"threads": args.threads}
    with TTS(args.model, device=args.device, dtype=args.dtype, lora=args.lora, max_num_seqs=1, **engine) as tts:
        loaded = time.perf_counter()
        speech, first = _speak(tts, text, _request_options(args), loaded)
        took = time.perf_counter() - loaded
    speech.save(args.output)
    print(
        f"{args.output}: {speech.duration:.2f} s of audio ({speech.finish_reason}, seed {speech.seed}); "
        f"load {loaded - started:.2f} s, first audio {first:.2f} s, RTF {took / max(speech.duration, 1e-9):.2f}"
    )
    return 0


def _request_options(args: argparse.Namespace) -> dict[str, Any]:
    for audio, text in (("reference", args.reference_text), ("prompt", args.prompt_text)):
        if text is not None and getattr(args, audio) is None:
            raise InvalidRequest(f"{audio}_text", f"needs --{audio}")
    given = {
        "voice": args.voice,
        "language": args.language,
        "instructions": args.instructions,
        "seed": args.seed,
        **{name: getattr(args, name) for name in OPTIONS},
    }
    if args.reference is not None:
        given["reference"] = stentor.Reference(args.reference, args.reference_text)
    if args.prompt is not None:
        given["prompt"] = stentor.Reference(args.prompt, args.prompt_text)
    return {k: v for k, v in given.items() if v is not None}


def _speak(tts: TTS, text: str, options: dict[str, Any], started: float) -> tuple[Speech, float]:
    """The speech, and the seconds until its first chunk. On a terminal a line shows the progress."""
    chunks: list[Chunk] = []
    first = 0.0
    live = sys.stderr.isatty()
    stream = tts.submit(tts.request(text, **options))
    for chunk in stream:
        chunks.append(chunk)
        elapsed = time.perf_counter() - started
        first = first or elapsed
        if live:
            seconds = sum(len(c.samples) for c in chunks) / tts.sample_rate
            print(f"\r{seconds:6.2f} s of audio in {elapsed:6.2f} s", end="", file=sys.stderr, flush=True)
    if live:
        print("\r" + " " * 40 + "\r", end="", file=sys.stderr)
    return tts.speech(chunks, stream.seed), first


def _doctor(args: argparse.Namespace) -> int:
    from stentor import doctor

    return doctor.run(args.model)


def _completion(args: argparse.Namespace) -> int:
    from stentor import completion

    print(completion.script(parser(), args.shell))
    return 0


if __name__ == "__main__":
    sys.exit(main())

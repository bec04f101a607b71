"""The `bench` command line: `serve`, `offline`, `compare`. Flags have vLLM's names where vLLM has
the flag.

Imports nothing heavy until a command runs.
"""

import argparse
import json
import math
import sys
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from stentor.flags import MODEL, add, flag, load_options, switch
from stentor.host.installed import pip_install

BACKENDS = (
    "stentor",
    "openai-audio-speech",
    "openai-audio-speech-sse",
    "websocket",
    "nanovllm",
    "fish",
)
METRIC_NAMES = ("e2el", "audio_ttfp", "audio_rtf", "audio_duration", "audio_underrun")
_Number = TypeVar("_Number", int, float)


def define(bench: argparse.ArgumentParser) -> None:
    """Add the sub-commands of `bench`. Each sets `func`, which takes the namespace and returns the
    exit code."""
    commands = bench.add_subparsers(
        dest="bench_command", required=True, metavar="{serve,offline,compare}"
    )
    serve = commands.add_parser("serve", help="load on a running server (stentor or another one)")
    add(serve.add_argument_group("server"), _SERVER)
    serve.set_defaults(func=_exit_code(_serve))
    offline = commands.add_parser("offline", help="load on the engine in this process")
    add(offline.add_argument_group("engine"), {**MODEL, **_ENGINE})
    offline.set_defaults(func=_exit_code(_offline))
    for parser in (serve, offline):
        for title, flags in (
            ("load", _LOAD),
            ("texts", _TEXTS),
            ("output", _OUTPUT),
            ("quality", _QUALITY),
        ):
            add(parser.add_argument_group(title), flags)
    compare = commands.add_parser("compare", help="what changed between two result files")
    compare.add_argument("first", type=Path, metavar="A.json")
    compare.add_argument("second", type=Path, metavar="B.json")
    add(compare, _COMPARE)
    compare.set_defaults(func=_exit_code(_compare))


def _exit_code(command: Any) -> Any:
    """Turn wrong input into one line and exit code 2, and an interrupt into 130."""

    def guarded(args: argparse.Namespace) -> int:
        try:
            return int(command(args))
        except ValueError as error:
            print(f"error: {error}", file=sys.stderr)
            return 2
        except KeyboardInterrupt:
            print("interrupted; nothing was saved", file=sys.stderr)
            return 130

    return guarded


def _serve(args: argparse.Namespace) -> int:
    try:
        from stentor.bench.serve import serve
    except ModuleNotFoundError as error:
        install = f"install it with: {pip_install('bench')}"
        raise ValueError(f"`stentor bench serve` needs {error.name}; {install}") from None
    from stentor.bench import command

    target = command.server_target(args)
    job = partial(command.job, args, framing=target.backend.framing)
    return serve(target, job, args.ready_check_timeout_sec)


def _offline(args: argparse.Namespace) -> int:
    load = load_options(args)
    from stentor.bench import command

    return command.offline(args, load)


def _compare(args: argparse.Namespace) -> int:
    from stentor.bench.compare import compare

    outcome = compare(args.first, args.second, args.threshold)
    print(outcome.text)
    if outcome.regressions:
        print("\nWorse: " + "; ".join(outcome.regressions))
    if args.fail_on_regression and outcome.regressions:
        return 1
    return 0


# ---- values


def above(low: float) -> Any:
    """An argparse type: a number greater than `low`."""
    return _number(float, lambda value: value > low, f"a number above {low:g}")


def finite_above(low: float) -> Any:
    """An argparse type: a finite number greater than `low`."""
    return _number(float, lambda value: low < value < math.inf, f"a finite number above {low:g}")


def at_least(low: _Number) -> Any:
    """An argparse type: a number of at least `low`, an integer if `low` is one."""
    if isinstance(low, int):
        kind = "an integer"
    else:
        kind = "a number"
    return _number(type(low), lambda value: value >= low, f"{kind} of at least {low:g}")


def _number(kind: Any, valid: Any, expected: str) -> Any:
    def parse(text: str) -> Any:
        try:
            value = kind(text)
        except ValueError:
            value = math.nan
        if math.isnan(value) or not valid(value):
            raise argparse.ArgumentTypeError(f"expected {expected}, got {text!r}")
        return value

    return parse


def _percentile(text: str) -> float:
    value = float(at_least(0.0)(text))
    if value > 100:
        raise argparse.ArgumentTypeError(f"expected a percentile from 0 to 100, got {text!r}")
    return value


def _list_of(parse: Any) -> Any:
    return lambda text: [parse(part.strip()) for part in text.split(",")]


def _json_object(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"expected a JSON object: {error}") from None
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError(f"expected a JSON object, got {text!r}")
    return value


# ---- flags

_SERVER = {
    "backend": flag("what kind of server (default stentor)", default="stentor", choices=BACKENDS),
    "base_url": flag("such as http://127.0.0.1:8000 (overrides --host and --port)"),
    "host": flag("host of the server (default 127.0.0.1)", default="127.0.0.1"),
    "port": flag("port of the server (default 8000)", int, 8000),
    "endpoint": flag("path of the endpoint (default: the backend's own)"),
    "model": flag("model name (default: the first that /v1/models lists)"),
    "header": flag("extra header (repeatable)", default=[], action="append", metavar="KEY=VALUE"),
    "insecure": switch("do not verify the TLS certificate"),
    "extra_body": flag("fields to add to every body", _json_object, {}, metavar="JSON"),
    "response_format": flag(
        "audio format to ask for (default pcm)", default="pcm", choices=("pcm", "wav")
    ),
    "sample_rate": flag(
        "used only if the answer does not state it (default 24000)", at_least(1), 24000
    ),
    "request_timeout_s": flag(
        "seconds until a request counts as timed out (default 900)",
        above(0.0),
        900.0,
        also=("--omni-request-timeout-s",),
    ),
    "ready_check_timeout_sec": flag(
        "seconds to wait until one request succeeds before the load (default 60, 0: do not send it)",
        at_least(0.0),
        60.0,
    ),
    "text_rate": flag(
        "send text at so many characters per second (websocket only)", above(0.0), metavar="CHARS"
    ),
}
_ENGINE = {
    "mode": flag(
        "method to call (default stream)", default="stream", choices=("stream", "generate")
    ),
    "engine_options": flag(
        'more arguments of TTS(), such as {"max_num_seqs": 16}', _json_object, {}, metavar="JSON"
    ),
    "max_frames": flag("frames that a request may have at most", at_least(1)),
    "ignore_eos": switch("generate --max-frames frames even if the model ends earlier"),
    "extra_body": flag(
        "more arguments of stream() or generate()", _json_object, {}, metavar="JSON"
    ),
}
_LOAD = {
    "num_prompts": flag("requests of a run (default 100)", at_least(1), 100),
    "max_concurrency": flag("limit of requests at once", at_least(1)),
    "request_rate": flag("requests per second (default inf)", above(0.0), math.inf),
    "burstiness": flag(
        "shape of the gaps: 1 is Poisson, less is burstier (default 1)", finite_above(0.0), 1.0
    ),
    "ramp_up_strategy": flag("raise the rate during the run", choices=("linear", "exponential")),
    "ramp_up_start_rps": flag("rate at the start of the ramp", finite_above(0.0)),
    "ramp_up_end_rps": flag("rate at the end of the ramp", finite_above(0.0)),
    "max_in_flight": flag(
        "open loop: drop requests beyond this number (default 4096)", at_least(1), 4096
    ),
    "num_warmups": flag("requests before the load, one at a time", at_least(0), 0),
    "warmup_seconds": flag(
        "with --duration: seconds of load before the window", at_least(0.0), 0.0
    ),
    "duration": flag("measure a steady window of so many seconds", finite_above(0.0)),
    "repeats": flag("repeat the run and report the spread", at_least(1), 1),
    "sweep_concurrency": flag("one run per concurrency", _list_of(at_least(1)), metavar="1,2,4"),
    "sweep_rps": flag("one run per rate", _list_of(above(0.0)), metavar="1,2,4"),
    "find_capacity": switch("search for the highest rate that keeps real time"),
    "slo_ttfa_ms": flag("with --find-capacity: p95 audible TTFA to keep", above(0.0)),
    "silence_is_audio": switch(
        "count every sample as audible: models with random weights may be silent"
    ),
    "capacity_min_rps": flag("lowest rate to try (default 0.5)", finite_above(0.0), 0.5),
    "capacity_max_rps": flag("highest rate to try (default 64)", above(0.0), 64.0),
    "capacity_tolerance": flag("precision of the search (default 0.05)", above(0.0), 0.05),
    "seed": flag("seed of the arrivals and of the order of texts", at_least(0), 0),
    "disable_tqdm": switch("no progress line"),
}
_TEXTS = {
    "dataset_name": flag(
        "short, medium, long, questions, seed-tts, seed-tts-text or custom", default="medium"
    ),
    "dataset_path": flag("folder of seed-tts, or JSONL file of custom", Path),
    "dataset_language": {
        "also": ("--seed-tts-locale",),
        "choices": ("en", "zh", "mixed"),
        "default": "en",
    },
    "seed_tts_file_ref_audio": switch("send references as file:// paths"),
    "voice": flag("voice sent with every request"),
    "language": flag("language sent with every request"),
    "instructions": flag("instructions sent with every request"),
    "request_seed": flag("seed sent with every request", int),
}
_OUTPUT = {
    "verbose": switch("print every metric, in vLLM's table, in place of a short report"),
    "percentile_metrics": flag("blocks of the first table", default=",".join(METRIC_NAMES)),
    "metric_percentiles": flag(
        "percentiles to print", _list_of(_percentile), [50.0, 90.0, 95.0, 99.0]
    ),
    "goodput": flag("such as audio_ttfp:200 (ms)", default=[], nargs="+", metavar="METRIC:LIMIT"),
    "save_result": switch("write JSON, JSONL, Markdown and an HTML plot"),
    "save_detailed": switch("per-request rows in the JSON too"),
    "append_result": switch("add one line to the JSON file"),
    "result_dir": flag("folder of the result files", Path, Path()),
    "result_filename": flag("name of the JSON file"),
    "label": flag("first part of the default file name"),
    "metadata": flag("entries to add to the JSON", default=[], nargs="+", metavar="KEY=VALUE"),
    "require_real_time": switch("exit 1 unless real time was maintained"),
}
_QUALITY = {
    "save_audio": flag("write every answer as WAV", Path, metavar="DIR"),
    "determinism_check": flag(
        "repeat N requests alone and compare the audio", at_least(0), 0, metavar="N"
    ),
    "wer": flag("word error rate with this faster-whisper model or directory", metavar="MODEL"),
    "mos": switch("predicted opinion score (DistillMOS)"),
    "score_limit": flag("answers to score", at_least(1), 50),
}
_COMPARE = {
    "threshold": flag("smallest change to mark (default 0.03)", at_least(0.0), 0.03),
    "fail_on_regression": switch("exit 1 if anything got worse"),
}

"""The flags of `stentor bench` and the checks of their values. Flags have vLLM's names where vLLM has the flag."""

import argparse
import json
import math
from pathlib import Path
from typing import Any, TypeVar

BACKENDS = ("stentor", "openai-audio-speech", "openai-audio-speech-sse", "websocket", "nanovllm", "fish")
METRIC_NAMES = ("e2el", "audio_ttfp", "audio_rtf", "audio_duration", "audio_underrun")
_Number = TypeVar("_Number", int, float)


def add_target(parser: argparse.ArgumentParser) -> None:
    """Flags for the server under test and the requests to it."""
    group = parser.add_argument_group("server")
    group.add_argument("--backend", choices=BACKENDS, default="stentor", help="what kind of server (default stentor)")
    group.add_argument("--base-url", help="such as http://127.0.0.1:8000 (overrides --host and --port)")
    group.add_argument("--host", default="127.0.0.1", help="host of the server (default 127.0.0.1)")
    group.add_argument("--port", type=int, default=8000, help="port of the server (default 8000)")
    group.add_argument("--endpoint", help="path of the endpoint (default: the backend's own)")
    group.add_argument("--model", help="model name (default: the first that /v1/models lists)")
    group.add_argument("--header", action="append", default=[], metavar="KEY=VALUE", help="extra header (repeatable)")
    group.add_argument("--insecure", action="store_true", help="do not verify the TLS certificate")
    group.add_argument(
        "--extra-body", type=_json_object, default={}, metavar="JSON", help="fields to add to every body"
    )
    group.add_argument(
        "--response-format", choices=("pcm", "wav"), default="pcm", help="audio format to ask for (default pcm)"
    )
    group.add_argument(
        "--sample-rate",
        type=at_least(1),
        default=24000,
        help="used only if the answer does not state it (default 24000)",
    )
    group.add_argument(
        "--request-timeout-s",
        "--omni-request-timeout-s",
        type=above(0.0),
        default=900.0,
        dest="request_timeout_s",
        help="seconds until a request counts as timed out (default 900)",
    )
    group.add_argument(
        "--ready-check-timeout-sec",
        type=at_least(0.0),
        default=60.0,
        help="seconds to wait until one request succeeds before the load (default 60, 0: do not send it)",
    )
    group.add_argument(
        "--text-rate",
        type=above(0.0),
        metavar="CHARS",
        help="send text at so many characters per second (websocket only)",
    )


def add_engine(parser: argparse.ArgumentParser) -> None:
    """Flags for the model that runs in this process."""
    group = parser.add_argument_group("engine")
    group.add_argument("--model", help="directory, Hub id or dummy:NAME (default: the built-in voice)")
    group.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:N")
    group.add_argument("--dtype", default="auto", help="auto, float32, bfloat16 or float16")
    group.add_argument("--quantization", default="auto", help="weights of the language model: auto, int8 or fp8")
    group.add_argument(
        "--mode", choices=("stream", "generate"), default="stream", help="method to call (default stream)"
    )
    group.add_argument(
        "--engine-options",
        type=_json_object,
        default={},
        metavar="JSON",
        help='more arguments of TTS(), such as {"max_num_seqs": 16}',
    )
    group.add_argument("--max-frames", type=at_least(1), help="frames that a request may have at most")
    group.add_argument(
        "--ignore-eos", action="store_true", help="generate --max-frames frames even if the model ends earlier"
    )
    group.add_argument(
        "--extra-body", type=_json_object, default={}, metavar="JSON", help="more arguments of stream() or generate()"
    )


def add_common(parser: argparse.ArgumentParser) -> None:
    """Flags for load, texts, output and quality. A server and the engine in process share them."""
    _add_load(parser.add_argument_group("load"))
    _add_data(parser.add_argument_group("texts"))
    _add_output(parser.add_argument_group("output"))
    _add_quality(parser.add_argument_group("quality"))


def _add_load(group: "argparse._ArgumentGroup") -> None:
    group.add_argument("--num-prompts", type=at_least(1), default=100, help="requests of a run (default 100)")
    group.add_argument("--max-concurrency", type=at_least(1), help="limit of requests at once")
    group.add_argument("--request-rate", type=above(0.0), default=math.inf, help="requests per second (default inf)")
    group.add_argument(
        "--burstiness",
        type=finite_above(0.0),
        default=1.0,
        help="shape of the gaps: 1 is Poisson, less is burstier (default 1)",
    )
    group.add_argument("--ramp-up-strategy", choices=("linear", "exponential"), help="raise the rate during the run")
    group.add_argument("--ramp-up-start-rps", type=finite_above(0.0), help="rate at the start of the ramp")
    group.add_argument("--ramp-up-end-rps", type=finite_above(0.0), help="rate at the end of the ramp")
    group.add_argument(
        "--max-in-flight",
        type=at_least(1),
        default=4096,
        help="open loop: drop requests beyond this number (default 4096)",
    )
    group.add_argument("--num-warmups", type=at_least(0), default=0, help="requests before the load, one at a time")
    group.add_argument(
        "--warmup-seconds", type=at_least(0.0), default=0.0, help="with --duration: seconds of load before the window"
    )
    group.add_argument("--duration", type=finite_above(0.0), help="measure a steady window of so many seconds")
    group.add_argument("--repeats", type=at_least(1), default=1, help="repeat the run and report the spread")
    group.add_argument(
        "--sweep-concurrency", type=_list_of(at_least(1)), metavar="1,2,4", help="one run per concurrency"
    )
    group.add_argument("--sweep-rps", type=_list_of(above(0.0)), metavar="1,2,4", help="one run per rate")
    group.add_argument("--find-capacity", action="store_true", help="search for the highest rate that keeps real time")
    group.add_argument("--slo-ttfa-ms", type=above(0.0), help="with --find-capacity: p95 audible TTFA to keep")
    group.add_argument(
        "--capacity-min-rps", type=finite_above(0.0), default=0.5, help="lowest rate to try (default 0.5)"
    )
    group.add_argument("--capacity-max-rps", type=above(0.0), default=64.0, help="highest rate to try (default 64)")
    group.add_argument(
        "--capacity-tolerance", type=above(0.0), default=0.05, help="precision of the search (default 0.05)"
    )
    group.add_argument("--seed", type=at_least(0), default=0, help="seed of the arrivals and of the order of texts")
    group.add_argument("--disable-tqdm", action="store_true", help="no progress line")


def _add_data(group: "argparse._ArgumentGroup") -> None:
    group.add_argument(
        "--dataset-name", default="medium", help="short, medium, long, questions, seed-tts, seed-tts-text or custom"
    )
    group.add_argument("--dataset-path", type=Path, help="folder of seed-tts, or JSONL file of custom")
    group.add_argument("--dataset-language", "--seed-tts-locale", choices=("en", "zh", "mixed"), default="en")
    group.add_argument("--seed-tts-file-ref-audio", action="store_true", help="send references as file:// paths")
    group.add_argument("--voice", help="voice sent with every request")
    group.add_argument("--language", help="language sent with every request")
    group.add_argument("--instructions", help="instructions sent with every request")
    group.add_argument("--request-seed", type=int, help="seed sent with every request")


def _add_output(group: "argparse._ArgumentGroup") -> None:
    group.add_argument("--percentile-metrics", default=",".join(METRIC_NAMES), help="blocks of the first table")
    group.add_argument(
        "--metric-percentiles",
        type=_list_of(_percentile),
        default=[50.0, 90.0, 95.0, 99.0],
        help="percentiles to print",
    )
    group.add_argument("--goodput", nargs="+", default=[], metavar="METRIC:LIMIT", help="such as audio_ttfp:200 (ms)")
    group.add_argument("--save-result", action="store_true", help="write JSON, JSONL, Markdown and an HTML plot")
    group.add_argument("--save-detailed", action="store_true", help="per-request rows in the JSON too")
    group.add_argument("--append-result", action="store_true", help="add one line to the JSON file")
    group.add_argument("--result-dir", type=Path, default=Path(), help="folder of the result files")
    group.add_argument("--result-filename", help="name of the JSON file")
    group.add_argument("--label", help="first part of the default file name")
    group.add_argument("--metadata", nargs="+", default=[], metavar="KEY=VALUE", help="entries to add to the JSON")
    group.add_argument("--require-real-time", action="store_true", help="exit 1 unless real time was maintained")


def _add_quality(group: "argparse._ArgumentGroup") -> None:
    group.add_argument("--save-audio", type=Path, metavar="DIR", help="write every answer as WAV")
    group.add_argument(
        "--determinism-check",
        type=at_least(0),
        default=0,
        metavar="N",
        help="repeat N requests alone and compare the audio",
    )
    group.add_argument("--wer", metavar="MODEL", help="word error rate with this faster-whisper model or directory")
    group.add_argument("--mos", action="store_true", help="predicted opinion score (DistillMOS)")
    group.add_argument("--score-limit", type=at_least(1), default=50, help="answers to score")


def above(low: float) -> Any:
    """An argparse type: a number greater than `low`."""
    return _number(float, lambda value: value > low, f"a number above {low:g}")


def finite_above(low: float) -> Any:
    """An argparse type: a finite number greater than `low`."""
    return _number(float, lambda value: low < value < math.inf, f"a finite number above {low:g}")


def at_least(low: _Number) -> Any:
    """An argparse type: a number of at least `low`, an integer if `low` is one."""
    return _number(
        type(low),
        lambda value: value >= low,
        f"{'an integer' if isinstance(low, int) else 'a number'} of at least {low:g}",
    )


def _number(kind: Any, valid: Any, wanted: str) -> Any:
    def parse(text: str) -> Any:
        try:
            value = kind(text)
        except ValueError:
            value = math.nan
        if math.isnan(value) or not valid(value):
            raise argparse.ArgumentTypeError(f"expected {wanted}, got {text!r}")
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

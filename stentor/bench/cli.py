"""The `bench` command line: `serve`, `offline`, `compare`. Flags are vLLM's where vLLM has one.

Imports nothing heavy until a command runs.
"""

import argparse
import math
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stentor import model_names
from stentor.bench import flags
from stentor.bench.flags import METRIC_NAMES
from stentor.config import check_device, check_dtype, check_quantization

if TYPE_CHECKING:
    from stentor.bench.campaign import BenchJob, Capacity
    from stentor.bench.load.backends import RequestDefaults
    from stentor.bench.load.client import ServerTarget
    from stentor.bench.session import Level

TEXT_METRICS = ("ttft", "tpot", "itl")


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add `bench` and its sub-commands. Each sets `func`, which takes the namespace and returns the exit code."""
    bench = subparsers.add_parser("bench", help="measure a speech server or the engine in process")
    commands = bench.add_subparsers(dest="bench_command", required=True, metavar="{serve,offline,compare}")
    serve = commands.add_parser("serve", help="load on a running server (stentor or another one)")
    flags.add_target(serve)
    flags.add_common(serve)
    serve.set_defaults(func=_exit_code(_serve))
    offline = commands.add_parser("offline", help="load on the engine in this process")
    flags.add_engine(offline)
    flags.add_common(offline)
    offline.set_defaults(func=_exit_code(_offline))
    compare = commands.add_parser("compare", help="what changed between two result files")
    compare.add_argument("first", type=Path, metavar="A.json")
    compare.add_argument("second", type=Path, metavar="B.json")
    compare.add_argument(
        "--threshold", type=flags.at_least(0.0), default=0.03, help="smallest change to mark (default 0.03)"
    )
    compare.add_argument("--fail-on-regression", action="store_true", help="exit 1 if anything got worse")
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


def _pairs(flag: str, values: list[str]) -> dict[str, str]:
    for value in values:
        if "=" not in value:
            raise ValueError(f"{flag}: expected KEY=VALUE, got {value!r}")
    return dict(value.split("=", 1) for value in values)


def _serve(args: argparse.Namespace) -> int:
    try:
        from stentor.bench.serve import serve
    except ModuleNotFoundError as error:
        raise ValueError(
            f"`stentor bench serve` needs {error.name}; install it with: pip install 'stentor[bench]'"
        ) from None
    target = _target(args)
    return serve(target, lambda model: _job(args, model, target.backend.framing), args.ready_check_timeout_sec)


def _target(args: argparse.Namespace) -> "ServerTarget":
    from stentor.bench.load.backends import BACKENDS as KNOWN
    from stentor.bench.load.client import ServerTarget

    url = args.base_url or f"http://{args.host}:{args.port}"
    if not url.startswith(("http://", "https://")):
        raise ValueError(f"--base-url: expected http:// or https://, got {url!r}")
    if args.text_rate and args.backend != "websocket":
        raise ValueError("--text-rate: only --backend websocket sends text in pieces")
    headers = _pairs("--header", args.header)
    if key := os.environ.get("OPENAI_API_KEY"):
        headers = {"Authorization": f"Bearer {key}"} | headers
    return ServerTarget(
        base_url=url,
        backend=KNOWN[args.backend],
        defaults=_request_defaults(args),
        endpoint=args.endpoint,
        headers=headers,
        timeout_s=args.request_timeout_s,
        insecure=args.insecure,
        text_rate=args.text_rate,
    )


def _request_defaults(args: argparse.Namespace) -> "RequestDefaults":
    from stentor.bench.load.backends import RequestDefaults

    return RequestDefaults(
        model=args.model,
        voice=args.voice,
        language=args.language,
        instructions=args.instructions,
        response_format=args.response_format,
        seed=args.request_seed,
        file_references=args.seed_tts_file_ref_audio,
        extra_body=args.extra_body,
    )


def _offline(args: argparse.Namespace) -> int:
    model_names.check(args.model)
    check_device(args.device)
    check_dtype(args.dtype)
    check_quantization(args.quantization)
    import stentor
    from stentor.bench.offline import CallOptions, offline

    shared = {
        "voice": args.voice,
        "language": args.language,
        "instructions": args.instructions,
        "seed": args.request_seed,
        "max_frames": args.max_frames,
        "ignore_eos": args.ignore_eos or None,
    }
    shared = {name: value for name, value in shared.items() if value is not None} | args.extra_body
    options = CallOptions(args.mode, shared, stentor.Reference)
    job = _job(args, args.model or "embedded", "float32")
    # Open loop: the threads limit how many requests run at once. Waiting for one shows as client queue.
    threads = max(level.max_concurrency or min(args.max_in_flight, 512) for level in job.levels)
    where = {"device": args.device, "dtype": args.dtype, "quantization": args.quantization}
    given = {**where, **args.engine_options}
    with stentor.TTS(args.model, **given) as engine:
        return offline(engine, options, job, threads)


def _compare(args: argparse.Namespace) -> int:
    from stentor.bench.compare import compare

    outcome = compare(args.first, args.second, args.threshold)
    print(outcome.text)
    if outcome.regressions:
        print("\nWorse: " + "; ".join(outcome.regressions))
    return 1 if args.fail_on_regression and outcome.regressions else 0


# ---- the job


def _job(args: argparse.Namespace, model: str, framing: Any) -> "BenchJob":
    from stentor.bench.campaign import BenchJob, Scoring
    from stentor.bench.load import prompts
    from stentor.bench.metrics import score
    from stentor.bench.report.output import Files, default_stem
    from stentor.bench.report.table import TableOptions

    score.require(bool(args.wer), args.mos)
    levels = _levels(args)
    label = args.label or args.bench_command
    stem = default_stem(label, levels[0].rate, levels[0].max_concurrency, model)
    if args.result_filename:
        stem = args.result_filename.removesuffix(".json")
    saved = args.save_result or args.save_detailed or args.append_result
    target = args.result_dir / stem
    if saved:
        _make_folder("--result-filename" if args.result_filename else "--result-dir", target.parent)
    if args.save_audio:
        _make_folder("--save-audio", args.save_audio)
    return BenchJob(
        texts=prompts.load(args.dataset_name, args.dataset_language, args.dataset_path),
        settings=_settings(args, framing),
        levels=levels,
        shown=TableOptions(_metric_names(args.percentile_metrics), args.metric_percentiles),
        describe=_describe(args, model),
        repeats=args.repeats,
        capacity=_capacity(args),
        scoring=Scoring(args.wer, args.mos, args.score_limit),
        files=Files(target.parent, target.name) if saved else None,
        append=args.append_result,
        save_detailed=args.save_detailed,
        require_real_time=args.require_real_time,
    )


def _make_folder(flag: str, folder: Path) -> None:
    """Before a long load whose files will go there. ValueError names the flag if that cannot be."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(f"{flag}: cannot make the folder {folder}: {error.strerror}") from None
    if not os.access(folder, os.W_OK):
        raise ValueError(f"{flag}: the folder {folder} cannot be written to")


def _settings(args: argparse.Namespace, framing: Any) -> Any:
    from stentor.bench.session import Settings

    online = args.bench_command == "serve"
    body = args.extra_body
    if args.determinism_check and args.request_seed is None and "seed" not in body:
        raise ValueError("--determinism-check: needs --request-seed, or answers may differ by design")
    if args.warmup_seconds and not args.duration:
        raise ValueError("--warmup-seconds: only counts with --duration; use --num-warmups otherwise")
    return Settings(
        num_prompts=args.num_prompts,
        text_seed=args.seed,
        burstiness=args.burstiness,
        max_in_flight=args.max_in_flight,
        warmup_s=args.warmup_seconds,
        duration_s=args.duration,
        num_warmups=args.num_warmups,
        percentiles=args.metric_percentiles,
        goodput=_goodput(args.goodput),
        assumed_rate=args.sample_rate if online else 24000,
        framing=framing,
        save_audio=args.save_audio,
        determinism_check=args.determinism_check,
        watch_client=online,
        progress=not args.disable_tqdm,
    )


def _ramp(args: argparse.Namespace) -> Any:
    from stentor.bench.load.arrivals import Ramp

    if args.ramp_up_strategy is None:
        if args.ramp_up_start_rps is not None or args.ramp_up_end_rps is not None:
            raise ValueError("--ramp-up-start-rps and --ramp-up-end-rps: need --ramp-up-strategy")
        return None
    if args.ramp_up_start_rps is None or args.ramp_up_end_rps is None:
        raise ValueError("--ramp-up-strategy: needs --ramp-up-start-rps and --ramp-up-end-rps")
    if (
        math.isfinite(args.request_rate)
        or args.duration
        or args.sweep_rps
        or args.sweep_concurrency
        or args.find_capacity
    ):
        raise ValueError("--ramp-up-strategy: cannot be combined with another rate, --duration, a sweep or a search")
    return Ramp(args.ramp_up_strategy, args.ramp_up_start_rps, args.ramp_up_end_rps)


def _levels(args: argparse.Namespace) -> "list[Level]":
    from stentor.bench.session import Level

    chosen = [flag for flag in ("sweep_concurrency", "sweep_rps", "find_capacity") if vars(args)[flag]]
    if len(chosen) > 1:
        raise ValueError("choose one of " + ", ".join("--" + flag.replace("_", "-") for flag in chosen))
    if args.duration and math.isinf(args.request_rate) and not args.max_concurrency and not chosen:
        raise ValueError("--duration: needs --request-rate or --max-concurrency to say how much load")
    if chosen and math.isfinite(args.request_rate):
        raise ValueError(f"--request-rate: cannot be combined with --{chosen[0].replace('_', '-')}")
    if args.sweep_concurrency and args.max_concurrency:
        raise ValueError("--max-concurrency: cannot be combined with --sweep-concurrency")
    if args.slo_ttfa_ms and not args.find_capacity:
        raise ValueError("--slo-ttfa-ms: only has a meaning with --find-capacity")
    ramp = _ramp(args)
    if args.find_capacity:
        return [Level(args.capacity_min_rps, args.max_concurrency, args.seed)]
    loads = [(args.request_rate, args.max_concurrency)]
    if args.sweep_concurrency:
        loads = [(math.inf, count) for count in args.sweep_concurrency]
    if args.sweep_rps:
        loads = [(rate, args.max_concurrency) for rate in args.sweep_rps]
    return [Level(rate, limit, args.seed + repeat, ramp) for rate, limit in loads for repeat in range(args.repeats)]


def _capacity(args: argparse.Namespace) -> "Capacity | None":
    from stentor.bench.campaign import Capacity

    if not args.find_capacity:
        return None
    if args.capacity_min_rps > args.capacity_max_rps:
        raise ValueError("--capacity-min-rps: must not exceed --capacity-max-rps")
    slo = args.slo_ttfa_ms / 1000 if args.slo_ttfa_ms else None
    return Capacity(slo, args.capacity_min_rps, args.capacity_max_rps, args.capacity_tolerance)


def _metric_names(text: str) -> list[str]:
    names = [name.strip() for name in text.split(",") if name.strip()]
    for name in names:
        if name not in METRIC_NAMES + TEXT_METRICS:
            raise ValueError(f"--percentile-metrics: {name!r} is unknown; choose from {', '.join(METRIC_NAMES)}")
    if left_out := [name for name in names if name in TEXT_METRICS]:
        print(f"note: left out, since defined for text only: {', '.join(left_out)}", file=sys.stderr)
    return [name for name in names if name in METRIC_NAMES]


def _goodput(values: list[str]) -> dict[str, float]:
    """`audio_ttfp:200` (vLLM also writes audio_ttft) in each metric's printed unit, to base units."""
    from stentor.bench.metrics.measure import METRICS

    limits = {}
    for value in values:
        name, _, limit = value.partition(":")
        name = {"audio_ttft": "audio_ttfp", "ttft": "audio_ttfp"}.get(name, name)
        if name not in METRICS:
            raise ValueError(f"--goodput: {name!r} is unknown; choose from {', '.join(METRICS)}")
        try:
            limits[name] = float(limit) / METRICS[name].scale
        except ValueError:
            raise ValueError(f"--goodput: expected METRIC:LIMIT such as audio_ttfp:200, got {value!r}") from None
    return limits


def _describe(args: argparse.Namespace, model: str) -> dict[str, Any]:
    online = args.bench_command == "serve"
    return {
        "backend": args.backend if online else "offline",
        "model_id": model,
        "tokenizer_id": None,
        "dataset_name": args.dataset_name,
        "dataset_language": args.dataset_language,
        "burstiness": args.burstiness,
        "duration_s": args.duration,
        "warmup_s": args.warmup_seconds,
        "num_warmups": args.num_warmups,
        "response_format": args.response_format if online else "float32",
        "voice": args.voice,
        "language": args.language,
        "request_seed": args.request_seed,
        "extra_body": args.extra_body,
        **({} if online else {name: getattr(args, name) for name in ("device", "dtype", "quantization", "mode")}),
        **_pairs("--metadata", args.metadata),
    }

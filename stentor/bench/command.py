"""Jobs of `stentor bench serve` and `offline`, made from flags, and the run of those on an
engine."""

import argparse
import math
import os
import sys
from pathlib import Path
from typing import Any

from stentor.bench.campaign import BenchJob, Capacity, Scoring
from stentor.bench.load import prompts
from stentor.bench.load.backends import BACKENDS, RequestDefaults
from stentor.bench.load.client import ServerTarget
from stentor.bench.load.generator import Ramp
from stentor.bench.load.record import Framing
from stentor.bench.metrics.measure import METRICS, VLLM_METRICS
from stentor.bench.report.output import DESCRIBED, OF_ENGINE, ReportFiles, default_stem
from stentor.bench.report.table import TableOptions
from stentor.bench.session import Level, RunSettings
from stentor.flags import taken
from stentor.score import measures

METRIC_NAMES = tuple(metric.name for metric in VLLM_METRICS)
TEXT_METRICS = ("ttft", "tpot", "itl")


def server_target(args: argparse.Namespace) -> ServerTarget:
    """The `ServerTarget` of the flags. ValueError names one that is wrong."""
    url = args.base_url or f"http://{args.host}:{args.port}"
    if not url.startswith(("http://", "https://")):
        raise ValueError(f"--base-url: expected http:// or https://, got {url!r}")
    if args.text_rate and args.backend != "websocket":
        raise ValueError("--text-rate: only --backend websocket sends text in pieces")
    headers = _pairs("--header", args.header)
    if key := os.environ.get("OPENAI_API_KEY"):
        headers = {"Authorization": f"Bearer {key}"} | headers
    defaults = taken(
        RequestDefaults, args, seed=args.request_seed, file_references=args.seed_tts_file_ref_audio
    )
    settings = {
        "base_url": url,
        "backend": BACKENDS[args.backend],
        "defaults": defaults,
        "headers": headers,
    }
    return taken(ServerTarget, args, **settings, timeout_s=args.request_timeout_s)


def offline(args: argparse.Namespace, load: dict[str, Any]) -> int:
    """Run the job of the flags on the engine, with these arguments of `TTS`. Returns the exit code.
    ValueError names a flag that is wrong."""
    import stentor
    from stentor.bench.offline import CallOptions, offline

    shared = {
        name: vars(args)[name] for name in ("voice", "language", "instructions", "max_frames")
    }
    shared |= {"seed": args.request_seed, "ignore_eos": args.ignore_eos or None}
    shared = {name: value for name, value in shared.items() if value is not None} | args.extra_body
    options = CallOptions(args.mode, shared, stentor.Reference)
    bench_job = job(args, args.model or "embedded", "float32")
    # Open loop: the threads limit how many requests run at once. Waiting for one shows as client
    # queue.
    threads = max(
        level.max_concurrency or min(args.max_in_flight, 512) for level in bench_job.levels
    )
    arguments = {**load, **args.engine_options}
    with stentor.TTS(arguments.pop("model", None), **arguments) as engine:
        return offline(engine, options, bench_job, threads)


def _pairs(flag: str, values: list[str]) -> dict[str, str]:
    for value in values:
        if "=" not in value:
            raise ValueError(f"{flag}: expected KEY=VALUE, got {value!r}")
    return dict(value.split("=", 1) for value in values)


def job(args: argparse.Namespace, model: str, framing: Framing) -> BenchJob:
    """The job of the flags. ValueError names one that is wrong."""
    measures.require(bool(args.wer), args.mos)
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
    return taken(
        BenchJob,
        args,
        texts=prompts.load(args.dataset_name, args.dataset_language, args.dataset_path),
        settings=_settings(args, framing),
        levels=levels,
        table=TableOptions(
            _metric_names(args.percentile_metrics), args.metric_percentiles, args.verbose
        ),
        describe=_describe(args, model),
        capacity=_capacity(args),
        scoring=Scoring(args.wer, args.mos, args.score_limit),
        files=ReportFiles(target.parent, target.name) if saved else None,
        append=args.append_result,
    )


def _make_folder(flag: str, folder: Path) -> None:
    """Make the folder of files before a long load. ValueError names the flag if that cannot be."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(f"{flag}: cannot make the folder {folder}: {error.strerror}") from None
    if not os.access(folder, os.W_OK):
        raise ValueError(f"{flag}: the folder {folder} cannot be written to")


def _settings(args: argparse.Namespace, framing: Framing) -> RunSettings:
    online = args.bench_command == "serve"
    if args.determinism_check and args.request_seed is None and "seed" not in args.extra_body:
        raise ValueError(
            "--determinism-check: needs --request-seed, or answers may differ by design"
        )
    if args.warmup_seconds and not args.duration:
        raise ValueError(
            "--warmup-seconds: only counts with --duration; use --num-warmups otherwise"
        )
    return taken(
        RunSettings,
        args,
        text_seed=args.seed,
        warmup_s=args.warmup_seconds,
        duration_s=args.duration,
        percentiles=args.metric_percentiles,
        goodput=_goodput(args.goodput),
        assumed_rate=args.sample_rate if online else 24000,
        framing=framing,
        watch_client=online,
        progress=not args.disable_tqdm,
    )


def _ramp(args: argparse.Namespace) -> Ramp | None:
    start = args.ramp_up_start_rps
    end = args.ramp_up_end_rps
    if args.ramp_up_strategy is None:
        if start is not None or end is not None:
            raise ValueError("--ramp-up-start-rps and --ramp-up-end-rps: need --ramp-up-strategy")
        return None
    if start is None or end is None:
        raise ValueError("--ramp-up-strategy: needs --ramp-up-start-rps and --ramp-up-end-rps")
    others = (args.duration, args.sweep_rps, args.sweep_concurrency, args.find_capacity)
    if math.isfinite(args.request_rate) or any(others):
        raise ValueError(
            "--ramp-up-strategy: cannot be combined with another rate, --duration, a sweep or a search"
        )
    return Ramp(args.ramp_up_strategy, start, end)


def _levels(args: argparse.Namespace) -> list[Level]:
    chosen = [
        flag for flag in ("sweep_concurrency", "sweep_rps", "find_capacity") if vars(args)[flag]
    ]
    if len(chosen) > 1:
        raise ValueError(
            "choose one of " + ", ".join("--" + flag.replace("_", "-") for flag in chosen)
        )
    if args.duration and math.isinf(args.request_rate) and not args.max_concurrency and not chosen:
        raise ValueError(
            "--duration: needs --request-rate or --max-concurrency to say how much load"
        )
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
    return [
        Level(rate, limit, args.seed + repeat, ramp)
        for rate, limit in loads
        for repeat in range(args.repeats)
    ]


def _capacity(args: argparse.Namespace) -> Capacity | None:
    if not args.find_capacity:
        return None
    if args.capacity_min_rps > args.capacity_max_rps:
        raise ValueError("--capacity-min-rps: must not exceed --capacity-max-rps")
    if args.slo_ttfa_ms:
        slo = args.slo_ttfa_ms / 1000
    else:
        slo = None
    return Capacity(slo, args.capacity_min_rps, args.capacity_max_rps, args.capacity_tolerance)


def _metric_names(text: str) -> list[str]:
    names = [name.strip() for name in text.split(",") if name.strip()]
    for name in names:
        if name not in METRIC_NAMES + TEXT_METRICS:
            raise ValueError(
                f"--percentile-metrics: {name!r} is unknown; choose from {', '.join(METRIC_NAMES)}"
            )
    if left_out := [name for name in names if name in TEXT_METRICS]:
        print(
            f"note: left out, since defined for text only: {', '.join(left_out)}", file=sys.stderr
        )
    return [name for name in names if name in METRIC_NAMES]


def _goodput(values: list[str]) -> dict[str, float]:
    """`audio_ttfp:200` (vLLM also writes audio_ttft) in each metric's printed unit, to base
    units."""
    limits = {}
    for value in values:
        name, _, limit = value.partition(":")
        name = {"audio_ttft": "audio_ttfp", "ttft": "audio_ttfp"}.get(name, name)
        if name not in METRICS:
            raise ValueError(f"--goodput: {name!r} is unknown; choose from {', '.join(METRICS)}")
        try:
            limits[name] = float(limit) / METRICS[name].scale
        except ValueError:
            raise ValueError(
                f"--goodput: expected METRIC:LIMIT such as audio_ttfp:200, got {value!r}"
            ) from None
    return limits


def _describe(args: argparse.Namespace, model: str) -> dict[str, Any]:
    """The settings in the result file."""
    online = args.bench_command == "serve"
    how = {"backend": "offline", "response_format": "float32"} | vars(args)
    how |= {
        "model_id": model,
        "tokenizer_id": None,
        "duration_s": args.duration,
        "warmup_s": args.warmup_seconds,
    }
    excluded = () if online else OF_ENGINE
    return {name: how[name] for name in (*DESCRIBED, *excluded)} | _pairs(
        "--metadata", args.metadata
    )

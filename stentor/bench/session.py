"""One level of load, from schedule to summary. The server and the in-process benchmark share it."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import cycle, islice
from pathlib import Path

import numpy as np
from tqdm import tqdm

from stentor.bench.load import generator, prompts
from stentor.bench.load.generator import LoadPlan, LoadTrace, Ramp, Sender
from stentor.bench.load.prompts import TextItem
from stentor.bench.load.record import Exchange, Floats, Framing, Spool
from stentor.bench.metrics import quality
from stentor.bench.metrics.decode import DecodedAudio, decode
from stentor.bench.metrics.measure import RequestResult, measure
from stentor.bench.metrics.summary import Summary, Window, summarise
from stentor.bench.report.output import save_wav


@dataclass(frozen=True)
class RunSettings:
    """Settings of all levels of an invocation."""

    num_prompts: int = 100
    text_seed: int = 0
    """Order of the texts: the same at every level and repeat, so that only the load differs."""
    burstiness: float = 1.0
    max_in_flight: int = 4096
    warmup_s: float = 0.0
    duration_s: float | None = None
    num_warmups: int = 0
    percentiles: Sequence[float] = (50.0, 90.0, 95.0, 99.0)
    goodput: dict[str, float] = field(default_factory=dict)
    assumed_rate: int = 24000
    framing: Framing = "raw"
    save_audio: Path | None = None
    determinism_check: int = 0
    watch_client: bool = True
    """Report this process's own delay and CPU. Not meaningful when the engine runs in the same
    process."""
    silence_is_audio: bool = False
    progress: bool = True


@dataclass(frozen=True)
class Level:
    """The load of one run."""

    rate: float
    max_concurrency: int | None
    seed: int
    ramp: Ramp | None = None
    """A moving rate instead of `rate`."""


@dataclass(frozen=True)
class BenchRun:
    """One run: its results in the order of the schedule and their summary."""

    level: Level
    trace: LoadTrace
    results: list[RequestResult]
    summary: Summary
    unsaved: str | None = None
    """Why audio of this run could not be saved."""


def make_plan(level: Level, settings: RunSettings, texts: Sequence[TextItem]) -> LoadPlan:
    """The prompts and send times of a level, which are the same for the same seeds."""
    if settings.duration_s:
        total = settings.warmup_s + settings.duration_s
    else:
        total = None
    offsets = _offsets(level, settings, total)
    if offsets is None:
        count = settings.num_prompts
    else:
        count = len(offsets)
    return LoadPlan(
        prompts=prompts.select(texts, count, settings.text_seed),
        offsets=offsets,
        max_concurrency=level.max_concurrency,
        max_in_flight=settings.max_in_flight,
        duration=total,
    )


def _offsets(level: Level, settings: RunSettings, total: float | None) -> Floats | None:
    if level.ramp:
        return generator.ramped(settings.num_prompts, level.ramp, settings.burstiness, level.seed)
    if np.isinf(level.rate):
        if level.max_concurrency:
            return None
        return np.zeros(settings.num_prompts)
    if total:
        return generator.fixed_duration(total, level.rate, settings.burstiness, level.seed)
    return generator.fixed_count(settings.num_prompts, level.rate, settings.burstiness, level.seed)


async def run_level(
    sender: Sender, plan: LoadPlan, level: Level, settings: RunSettings, spool: Spool
) -> BenchRun:
    """Warm up, run the load, then measure. The spool keeps the run's audio until its next
    `clear`."""
    for prompt in islice(cycle(plan.prompts), settings.num_warmups):
        await sender.send(prompt)
    spool.clear()
    if plan.offsets is None and plan.duration:
        total = None
    else:
        total = len(plan.prompts)
    show_progress = settings.progress and sys.stderr.isatty()
    words = "{n_fmt} of {total_fmt} requests done, {rate_fmt} "
    with tqdm(
        total=total,
        unit=" req",
        disable=not show_progress,
        leave=False,
        mininterval=0.25,
        bar_format=words,
    ) as progress:
        trace = await generator.run(plan, sender, progress.update)
    results: list[RequestResult] = []
    folder = settings.save_audio
    unsaved = None
    # Not by the prompt's index: a closed loop with a duration repeats prompts.
    for number, exchange in enumerate(trace.exchanges):
        audio = decode_reply(exchange, spool, settings)
        results.append(measure(exchange, audio, settings.silence_is_audio))
        if audio is not None:
            results[-1].quality = quality.assess(audio, exchange.prompt.text)
        if folder is not None and unsaved is None and audio is not None and audio.samples.size:
            unsaved = _save(folder / f"{number:05d}.wav", audio)
    window = _window(trace, settings)
    for result in results:
        result.in_window = (
            settings.duration_s is None or window.start <= result.planned < window.end
        )
    summary = summarise(
        results,
        window,
        settings.percentiles,
        settings.goodput,
        trace.loop_delays if settings.watch_client else (),
        trace.cpu_s / (trace.ended - trace.started),
    )
    if settings.determinism_check:
        summary.extra["determinism"] = await _check_determinism(
            sender, trace, results, settings, spool
        )
    return BenchRun(level, trace, results, summary, unsaved)


def decode_reply(exchange: Exchange, spool: Spool, settings: RunSettings) -> DecodedAudio | None:
    """The decoded reply of an exchange, None if it was never sent."""
    if exchange.reply is None:
        return None
    return decode(
        exchange.reply, spool.get(exchange.reply.body), settings.framing, settings.assumed_rate
    )


def _save(path: Path, audio: DecodedAudio) -> str | None:
    """Why the audio cannot be written. The run is measured without."""
    try:
        save_wav(path, audio.samples, audio.rate)
    except OSError as e:
        return f"cannot write {e.filename}: {e.strerror}"
    return None


def _window(trace: LoadTrace, settings: RunSettings) -> Window:
    if settings.duration_s is None:
        return Window(trace.started, trace.ended)
    start = trace.started + settings.warmup_s
    return Window(start, start + settings.duration_s)


async def _check_determinism(
    sender: Sender,
    trace: LoadTrace,
    results: Sequence[RequestResult],
    settings: RunSettings,
    spool: Spool,
) -> dict[str, object]:
    """Send some of the run's requests again, one at a time, and compare the audio with that under
    load.

    Equal means equal bytes. `largest_difference` distinguishes answers that differ: the rounding of
    another batch is far below 1e-3 of full scale, another random draw is above. Answers of another
    length have none. Requests that fail alone are counted apart.
    """
    completed = [
        (exchange, result)
        for exchange, result in zip(trace.exchanges, results, strict=True)
        if result.completed
    ]
    checked = completed[: settings.determinism_check]
    failed = 0
    differing = []
    lengths = 0
    largest = 0.0
    for exchange, result in checked:
        again = Exchange(exchange.prompt, 0.0, 0.0, await sender.send(exchange.prompt))
        alone = decode_reply(again, spool, settings)
        before = decode_reply(exchange, spool, settings)
        if alone is None or before is None or alone.failure is not None:
            failed += 1
            continue
        if alone.audio == before.audio:
            continue
        differing.append(result.index)
        if alone.samples.size == before.samples.size:
            largest = max(largest, float(np.max(np.abs(alone.samples - before.samples))))
        else:
            lengths += 1
    return {
        "checked": len(checked) - failed,
        "failed": failed,
        "equal": len(checked) - failed - len(differing),
        "differing": differing,
        "other_length": lengths,
        "largest_difference": largest,
    }

"""The load generator: open loop from a schedule, or closed loop at a fixed concurrency.

It records what it did itself: when each request was due, when it was released, which requests were
dropped, how late the event loop ran, and how much of a core this process used.
"""

import asyncio
import gc
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import cycle
from typing import Literal, Protocol

import numpy as np

from stentor.bench.load.prompts import TextItem
from stentor.bench.load.record import Exchange, Floats, Reply

Clock = Callable[[], float]
"""Seconds since a fixed moment."""


class Sender(Protocol):
    """Anything that takes speech requests: a server's client, or the engine in this process."""

    @property
    def clock(self) -> Clock:
        """Clock of all time stamps of a run, those of the load generator included."""
        ...

    def prepare(self, prompts: Sequence[TextItem]) -> None:
        """Get ready for a run's prompts before its load begins."""
        ...

    async def send(self, prompt: TextItem) -> Reply: ...


@dataclass(frozen=True)
class LoadPlan:
    """Requests to send, and when."""

    prompts: Sequence[TextItem]
    offsets: Floats | None
    """Seconds from the start for each request, in order. None: closed loop, `max_concurrency` at a
    time."""
    max_concurrency: int | None = None
    max_in_flight: int = 4096
    """Open loop: an arrival that would be one more than this is dropped and counted."""
    duration: float | None = None
    """Closed loop: start no request after this many seconds (prompts repeat). None: each prompt
    once."""


@dataclass
class LoadTrace:
    """The record of one run of the load generator."""

    started: float
    exchanges: list[Exchange] = field(default_factory=list)
    ended: float = 0.0
    loop_delays: list[float] = field(default_factory=list)
    """How much later than asked a 10 ms timer fired, sampled during the whole run: the error of
    every time stamp."""
    cpu_s: float = 0.0


async def run(
    plan: LoadPlan, sender: Sender, progress: Callable[[int], None] = lambda done: None
) -> LoadTrace:
    """Run the plan to the end of its last answer."""
    trace = LoadTrace(started=sender.clock())
    watch = asyncio.create_task(_watch_loop(sender.clock, trace.loop_delays))
    cpu = time.process_time()
    try:
        if plan.offsets is None:
            await _closed_loop(plan, sender, trace, progress)
        else:
            await _open_loop(plan, plan.offsets, sender, trace, progress)
    finally:
        trace.cpu_s = time.process_time() - cpu
        watch.cancel()
    trace.ended = sender.clock()
    return trace


@contextmanager
def garbage_collection_off() -> Iterator[None]:
    """Switch Python's cycle collector off. With 500 streams it otherwise stops the client for tens
    of ms.

    A run keeps nearly everything that it allocates, so the collector would find little.
    """
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


async def _open_loop(
    plan: LoadPlan,
    offsets: Floats,
    sender: Sender,
    trace: LoadTrace,
    progress: Callable[[int], None],
) -> None:
    if plan.max_concurrency:
        places = asyncio.Semaphore(plan.max_concurrency)
    else:
        places = None
    running: set[asyncio.Task[None]] = set()

    async def one(exchange: Exchange) -> None:
        if places is None:
            exchange.reply = await sender.send(exchange.prompt)
        else:
            async with places:
                exchange.reply = await sender.send(exchange.prompt)
        progress(1)

    for prompt, offset in zip(plan.prompts, offsets, strict=True):
        planned = trace.started + float(offset)
        if (wait := planned - sender.clock()) > 0:
            await asyncio.sleep(wait)
        exchange = Exchange(prompt, planned, released=sender.clock())
        trace.exchanges.append(exchange)
        if len(running) >= plan.max_in_flight:
            progress(1)
            continue
        task = asyncio.create_task(one(exchange))
        running.add(task)
        task.add_done_callback(running.discard)
    await _all(running)


async def _closed_loop(
    plan: LoadPlan, sender: Sender, trace: LoadTrace, progress: Callable[[int], None]
) -> None:
    prompts = cycle(plan.prompts) if plan.duration else iter(plan.prompts)
    if plan.duration:
        end = trace.started + plan.duration
    else:
        end = np.inf

    async def worker() -> None:
        for prompt in prompts:
            now = sender.clock()
            if now >= end:
                return
            # Closed loop: a request is due when a place is free, so its send lag is zero.
            exchange = Exchange(prompt, planned=now, released=now)
            trace.exchanges.append(exchange)
            exchange.reply = await sender.send(prompt)
            progress(1)

    await _all({asyncio.create_task(worker()) for _ in range(plan.max_concurrency or 1)})


async def _all(tasks: set[asyncio.Task[None]]) -> None:
    """Wait for all tasks. If one raises (a bug, since senders do not raise) or we are cancelled,
    cancel the others."""
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()


async def _watch_loop(clock: Clock, delays: list[float], every: float = 0.010) -> None:
    while True:
        due = clock() + every
        await asyncio.sleep(every)
        delays.append(max(0.0, clock() - due))


# ---- when requests are sent: one seeded schedule, made before the run and kept with the result


@dataclass(frozen=True)
class Ramp:
    """A request rate that moves from `start_rps` to `end_rps` over the run."""

    strategy: Literal["linear", "exponential"]
    start_rps: float
    end_rps: float

    def rate(self, progress: float) -> float:
        """Requests per second when `progress` (0 to 1) of the requests have been sent."""
        if self.strategy == "linear":
            return self.start_rps + (self.end_rps - self.start_rps) * progress
        return float(self.start_rps * (self.end_rps / self.start_rps) ** progress)


def fixed_count(count: int, rate: float, burstiness: float, seed: int) -> Floats:
    """Send times in seconds from the start, shape [count], for exactly `count` requests.

    Gaps are gamma distributed with shape `burstiness` and mean `1 / rate`. A burstiness of
    1 is a Poisson process, less is burstier, more is more even. As in `vllm bench serve` they are
    rescaled so that the last request leaves at `count / rate`. The offered load is then exactly
    `rate`, not a sample of it. An infinite rate sends everything at once.
    """
    if np.isinf(rate):
        return np.zeros(count)
    times = np.cumsum(_gaps(np.random.default_rng(seed), np.full(count, rate), burstiness))
    return times * float(count / rate / times[-1])


def fixed_duration(duration: float, rate: float, burstiness: float, seed: int) -> Floats:
    """Send times in [0, duration) of the same process, not rescaled, so their number is random."""
    rng = np.random.default_rng(seed)
    times = np.zeros(0)
    while times.size == 0 or times[-1] < duration:
        block = max(16, int(rate * duration))
        if times.size:
            last = times[-1]
        else:
            last = 0.0
        times = np.concatenate(
            [times, last + np.cumsum(_gaps(rng, np.full(block, rate), burstiness))]
        )
    return times[times < duration]


def ramped(count: int, ramp: Ramp, burstiness: float, seed: int) -> Floats:
    """Send times, shape [count], while the rate follows `ramp`. Not rescaled, since no single rate
    is meant."""
    rates = np.array([ramp.rate(i / max(count - 1, 1)) for i in range(count)])
    return np.cumsum(_gaps(np.random.default_rng(seed), rates, burstiness))


def _gaps(rng: np.random.Generator, rates: Floats, burstiness: float) -> Floats:
    return rng.gamma(shape=burstiness, scale=1.0 / (rates * burstiness))

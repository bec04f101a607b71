"""`stentor bench offline`: the same load and the same figures on `stentor.TTS` in this process, without a server.

A chunk "arrives" when the stream yields it to the caller.
"""

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import numpy as np

from stentor.bench.campaign import Job, Target, run
from stentor.bench.load.prompts import Prompt
from stentor.bench.load.record import Arrival, Failure, Kind, Reply, Spool
from stentor.bench.metrics.playback import Samples
from stentor.bench.report import facts

clock = time.perf_counter


class Chunk(Protocol):
    """What `stentor.Speech` offers and is used here."""

    @property
    def samples(self) -> Samples: ...
    @property
    def sample_rate(self) -> int: ...


class Engine(Protocol):
    """What `stentor.TTS` offers and is used here; both methods may be called from any thread."""

    def stream(self, text: str, **options: Any) -> Iterable[Chunk]: ...
    def generate(self, text: str, **options: Any) -> Chunk: ...


@dataclass(frozen=True)
class Options:
    """How the engine is called. `shared` goes to every call, over what the prompt brings."""

    mode: Literal["stream", "generate"] = "stream"
    shared: Mapping[str, Any] = field(default_factory=dict)
    reference: Callable[[Any, str | None], Any] | None = None
    """Makes the `reference=` argument from a path and its text: `stentor.Reference`."""


class InProcess:
    """Sends prompts to an engine, each in a thread of its own; audio goes to `spool`."""

    def __init__(self, engine: Engine, options: Options, spool: Spool, threads: int) -> None:
        self._engine = engine
        self._options = options
        self._spool = spool
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="bench")

    def prepare(self, prompts: Sequence[Prompt]) -> None:
        """Nothing to prepare: there are no bodies."""

    async def send(self, prompt: Prompt) -> Reply:
        """Speak one prompt. An exception of the engine is a failure in the reply."""
        reply, chunks = await asyncio.get_running_loop().run_in_executor(self._pool, self._speak, prompt)
        reply.body = self._spool.put(chunks)
        return reply

    def _speak(self, prompt: Prompt) -> tuple[Reply, list[bytes]]:
        arguments = self._arguments(prompt)
        chunks: list[bytes] = []
        reply = Reply(sent=clock())
        try:
            for chunk in self._answer(prompt.text, arguments):
                now = clock()
                data = np.ascontiguousarray(chunk.samples, dtype="<f4").tobytes()
                reply.headers = {"x-sample-rate": str(chunk.sample_rate)}
                reply.headers_at = reply.headers_at or now
                reply.arrivals.append(Arrival(now, Kind.BODY, len(data)))
                chunks.append(data)
        except Exception as error:  # whatever the engine raises is the measured outcome
            reply.failure = Failure("exception", f"{type(error).__name__}: {error}")
        reply.ended = clock()
        return reply, chunks

    def _answer(self, text: str, arguments: dict[str, Any]) -> Iterable[Chunk]:
        if self._options.mode == "stream":
            return self._engine.stream(text, **arguments)
        return [self._engine.generate(text, **arguments)]

    def _arguments(self, prompt: Prompt) -> dict[str, Any]:
        own: dict[str, Any] = {
            "voice": prompt.voice,
            "language": prompt.language,
            "instructions": prompt.instructions,
        }
        if prompt.ref_audio is not None and self._options.reference is not None:
            own["reference"] = self._options.reference(prompt.ref_audio, prompt.ref_text)
        own = {name: value for name, value in own.items() if value is not None}
        return dict(self._options.shared) | own | dict(prompt.extra_body)

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)


def offline(engine: Engine, options: Options, job: Job, threads: int) -> int:
    """Run a job on an engine. Returns the exit code."""
    spool = Spool()
    sender = InProcess(engine, options, spool, threads)
    told = {"client": facts.client_facts()}
    try:
        with facts.gpu_watch() as gpus:
            target = Target(sender, sender.prepare, spool, lambda: told | gpus())
            return asyncio.run(run(job, target))
    finally:
        sender.close()
        spool.close()

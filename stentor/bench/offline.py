"""`stentor bench offline`: the same load and the same figures on `stentor.TTS` in this process,
without a server.

A chunk has arrived when the stream yields it to the caller.
"""

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from stentor.bench.campaign import BenchJob, run
from stentor.bench.load.generator import Clock
from stentor.bench.load.prompts import TextItem
from stentor.bench.load.record import Arrival, ArrivalKind, Failure, Reply, Spool
from stentor.bench.report import facts

if TYPE_CHECKING:
    from stentor.api import TTS, Speech


@dataclass(frozen=True)
class CallOptions:
    """How the engine is called. `shared` goes to every call, over what the prompt brings."""

    mode: Literal["stream", "generate"] = "stream"
    shared: Mapping[str, Any] = field(default_factory=dict)
    reference: Callable[[Any, str | None], Any] | None = None
    """Makes the `reference=` argument from a path and its text: `stentor.Reference`."""


class InProcess:
    """Sends prompts to an engine, each in a thread of its own. Audio goes to `spool`."""

    def __init__(
        self,
        engine: "TTS",
        options: CallOptions,
        spool: Spool,
        threads: int,
        clock: Clock = time.perf_counter,
    ) -> None:
        self.clock = clock
        self._engine = engine
        self._options = options
        self._spool = spool
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="bench")

    def prepare(self, prompts: Sequence[TextItem]) -> None:
        """Nothing to prepare: there are no bodies."""

    async def send(self, prompt: TextItem) -> Reply:
        """Speak one prompt. An exception of the engine is a failure in the reply."""
        reply, chunks = await asyncio.get_running_loop().run_in_executor(
            self._pool, self._speak, prompt
        )
        reply.body = self._spool.put(chunks)
        return reply

    def _speak(self, prompt: TextItem) -> tuple[Reply, list[bytes]]:
        arguments = self._arguments(prompt)
        chunks: list[bytes] = []
        reply = Reply(sent=self.clock())
        try:
            for chunk in self._answer(prompt.text, arguments):
                now = self.clock()
                data = np.ascontiguousarray(chunk.samples, dtype="<f4").tobytes()
                reply.headers = {"x-sample-rate": str(chunk.sample_rate)}
                reply.headers_at = reply.headers_at or now
                reply.arrivals.append(Arrival(now, ArrivalKind.BODY, len(data)))
                chunks.append(data)
        except Exception as error:  # whatever the engine raises is the measured outcome
            reply.failure = Failure("exception", f"{type(error).__name__}: {error}")
        reply.ended = self.clock()
        return reply, chunks

    def _answer(self, text: str, arguments: dict[str, Any]) -> "Iterable[Speech]":
        if self._options.mode == "stream":
            return self._engine.stream(text, **arguments)
        return [self._engine.generate(text, **arguments)]

    def _arguments(self, prompt: TextItem) -> dict[str, Any]:
        fields: dict[str, Any] = {
            "voice": prompt.voice,
            "language": prompt.language,
            "instructions": prompt.instructions,
        }
        if prompt.ref_audio is not None and self._options.reference is not None:
            fields["reference"] = self._options.reference(prompt.ref_audio, prompt.ref_text)
        fields = {name: value for name, value in fields.items() if value is not None}
        return dict(self._options.shared) | fields | dict(prompt.extra_body)

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)


def offline(
    engine: "TTS",
    options: CallOptions,
    job: BenchJob,
    threads: int,
    clock: Clock = time.perf_counter,
) -> int:
    """Run a job on an engine. Returns the exit code."""
    spool = Spool()
    sender = InProcess(engine, options, spool, threads, clock)
    client = {"client": facts.client_facts()}
    try:
        with facts.gpu_watch() as gpus:
            return asyncio.run(run(job, sender, spool, lambda: client | gpus()))
    finally:
        sender.close()
        spool.close()

"""The engine: one thread that plans, launches, reads what came back, and hands audio out."""

from __future__ import annotations

import itertools
import logging
import queue
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch

from stentor.config import EngineConfig
from stentor.engine.device import Device
from stentor.engine.inflight import AudioTicket, Ticket
from stentor.engine.model_runner import Worker
from stentor.engine.page_allocator import PagePool
from stentor.engine.request_state import Health, Request, Stats
from stentor.engine.scheduler import GENTLE_RAMP, AudioJob, Plan, Scheduler
from stentor.engine.sequence import BROKEN, LENGTH, Phase, Sequence
from stentor.engine.sizing import GIB, fit
from stentor.engine.stream import Bells, Chunk, Stream
from stentor.errors import EngineError, InvalidRequest, Overloaded
from stentor.models.base import LiveText, Prompt, SpeechModel

log = logging.getLogger("stentor.engine")

FINISH = {LENGTH: "length"}  # every other ending is "stop"
POLL_SECONDS = 1e-4  # how often audio is looked for while a step runs
STALL_SECONDS = 0.005  # how long to wait when every running request is far ahead of its listener


class Engine:
    """Serves one model on one device. Thread-safe; `close` ends what is running."""

    def __init__(self, model: SpeechModel, device: Device, config: EngineConfig) -> None:
        self.model, self.device, self.config = model, device, config
        weights = device.allocated_bytes() / GIB
        self.sizes = fit(model, config, device)
        log.info("%s on %s: weights %.2f GiB, %s", model.spec.family, device.describe(), weights, self.sizes.describe())
        self.overlap_steps = int(device.cuda) if config.overlap_steps is None else config.overlap_steps
        self.worker = Worker(model, self.sizes, config, device)
        policy = config.policy
        if policy.ramp is None and not device.cuda:
            policy = replace(policy, ramp=GENTLE_RAMP)
        self.scheduler = Scheduler(self.sizes.slots, PagePool(self.sizes.pages, self.sizes.page), policy)
        self.stats = Stats()
        self._ids = itertools.count()
        self._inbox: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._requests: dict[int, Request] = {}
        self._waiting = 0  # submitted and not yet started, guarded by _lock
        self._lock = threading.Lock()
        self._bells = Bells()
        self._tickets: deque[Ticket] = deque()
        self._audio: deque[AudioTicket] = deque()
        self._error: BaseException | None = None
        self._closing = False
        self._last_done = 0.0  # when a step was last seen to have run
        self._stalled = False  # the last turn found nothing to do
        self._started = threading.Event()
        self._thread = threading.Thread(target=self._run, name="stentor-engine", daemon=True)
        self._thread.start()
        self._started.wait()
        if self._error is not None:
            raise EngineError(f"the engine could not start: {self._error}") from self._error

    # -- callers --

    def submit(self, prompt: Prompt, seed: int, streaming: bool) -> Stream:
        """Queue a request. InvalidRequest if it can never fit, Overloaded if the queue is full."""
        limit = self._limit(prompt)
        with self._lock:
            if self._error is not None or self._closing:
                raise EngineError(f"the engine has stopped: {self._error or 'closed'}")
            if self._waiting >= self.config.policy.max_queue:
                raise Overloaded(f"{self._waiting} requests are waiting already; try again later")
            self._waiting += 1
        prompt.max_frames = limit
        stream = Stream(
            seed,
            lambda: self._inbox.put(lambda: self._cancel(request)),
            lambda text, last: self._append(request, prompt.live, text, last),
            self._bells,
        )
        request = Request(self._sequence(prompt, streaming), prompt, stream, seed)
        self._inbox.put(lambda: self._add(request))
        return stream

    def _sequence(self, prompt: Prompt, streaming: bool) -> Sequence:
        hop_seconds = self.model.spec.hop / self.model.spec.sample_rate
        counts = (prompt.length, prompt.max_frames, prompt.num_evals, prompt.trim_silent_frames)
        seq = Sequence(next(self._ids), *counts, hop_seconds, streaming)
        if prompt.live is not None:
            seq.fed = 1 + len(prompt.columns[prompt.live.column])
        return seq

    def _append(self, request: Request, live: LiveText | None, text: str, last: bool) -> None:
        if live is None:
            raise InvalidRequest("live", "the request was given its whole text")
        values = live.more(text, last)
        self._inbox.put(lambda: self._extend(request, live.column, values, last))

    def _limit(self, prompt: Prompt) -> int:
        """Frames that the request may make here."""
        room = self.sizes.capacity - prompt.length
        if room < 1:
            raise InvalidRequest(
                "input", f"text and reference take {prompt.length} positions, at most {self.sizes.capacity - 1} fit"
            )
        return max(1, min(prompt.max_frames, room, self.sizes.max_frames))

    def health(self) -> Health:
        s = self.scheduler
        running = len(s.live)
        return Health(
            alive=self._error is None and not self._closing,
            error=None if self._error is None else str(self._error),
            queued=self._waiting,
            running=running,
            free_slots=len(s.free_slots),
            free_pages=s.pages.available,
            pages=s.pages.count,
            preemptions=s.preemptions,
            eager_calls=self.worker.eager_calls,
            stats=self.stats,
        )

    def close(self) -> None:
        """Stop the thread. Requests that are still open fail with EngineError."""
        with self._lock:
            self._closing = True
        self._inbox.put(None)
        self._thread.join()

    # -- the thread --

    def _run(self) -> None:
        threads = self.config.threads or self.worker.model.spec.threads
        if threads is not None:
            torch.set_num_threads(threads)
        torch.set_flush_denormal(True)  # silence decays into denormals, which are slow on a CPU
        try:
            self.worker.warm_up()
            self._started.set()
            with torch.inference_mode():
                while not self._closing:
                    self._turn()
        except BaseException as e:
            log.exception("the engine stopped")
            self._error = e
        finally:
            self._started.set()
            self._abandon()

    def _turn(self) -> None:
        self._commands()
        now = time.monotonic()
        plan = self.scheduler.plan(now)
        self._stalled = plan.empty and not self._tickets and not self._audio
        # Audio before the next frames: on a CPU, where every launch is waited for, it is heard that much earlier.
        self._launch_audio(plan.audio)
        self._deliver_ready()
        self._tickets += self._launch(plan)
        while self._tickets and (len(self._tickets) > self.overlap_steps or plan.empty):
            ticket = self._tickets.popleft()
            self._deliver_until(ticket)
            self._observe(ticket)
            self._launch_audio(self.scheduler.audio(time.monotonic()))
        self._deliver_ready(wait=plan.empty and not self._tickets)
        for seq in self.scheduler.finished():
            self._close(self._requests.pop(seq.id))
        self._bells.flush()
        if plan.launches:
            self.stats.step_seconds += time.monotonic() - now

    def _commands(self) -> None:
        """Take what callers asked for; wait for it when there is nothing to do."""
        wait = self._stalled
        while True:
            try:
                command = self._inbox.get(wait, None if self.scheduler.inert else STALL_SECONDS)
            except queue.Empty:
                return
            if command is None:
                return
            command()
            wait = False

    def _add(self, request: Request) -> None:
        self.stats.submitted += 1
        self._requests[request.seq.id] = request
        self.scheduler.add(request.seq, time.monotonic())

    def _extend(self, request: Request, column: str, values: np.ndarray, last: bool) -> None:
        """Live text has come: for the row if there is one, and for `admit` if there will be."""
        seq, columns = request.seq, request.prompt.columns
        held = columns[column]
        columns[column] = np.concatenate((held, values))
        if seq.phase in (Phase.RUNNING, Phase.PREEMPTED) and len(values):
            self.worker.extend(seq, column, len(held), values)
        seq.fed = sys.maxsize if last else seq.fed + len(values)

    def _cancel(self, request: Request) -> None:
        if request.seq.id not in self._requests:
            return
        queued = request.seq.phase is Phase.QUEUED
        gone = self.scheduler.cancel(request.seq)
        if queued:
            self._left_queue()
        self._end(request)
        if gone:
            del self._requests[request.seq.id]

    def _left_queue(self) -> None:
        with self._lock:
            self._waiting -= 1

    # -- launching --

    def _launch(self, plan: Plan) -> list[Ticket]:
        tickets: list[Ticket] = []
        group = self._admit(plan) + [self._requests[s.id] for s in plan.resumed]
        paged = [r.seq for r in group] + plan.regrown
        if paged:
            self.worker.set_pages(paged)
        if group:
            self.stats.prefills += 1
            seqs = [r.seq for r in group]
            tickets += self._try(seqs, lambda: self.worker.prefill([(r.seq, r.prompt) for r in group]), True)
            if tickets:
                self._audio_ahead(plan.admitted)
        if plan.decode:
            self.stats.steps += 1
            tickets += self._try(plan.decode, lambda: self.worker.decode(plan.decode), False)
        return tickets

    def _admit(self, plan: Plan) -> list[Request]:
        """Rows of the new requests, all at once; one by one if that fails, so that only the culprit falls."""
        requests = [self._requests[seq.id] for seq in plan.admitted]
        if not requests:
            return []
        for _ in requests:
            self._left_queue()
        try:
            self.worker.admit([(r.seq, r.prompt, r.seed) for r in requests])
            return requests
        except Exception as e:
            self._alive_after(e)
        admitted = []
        for r in requests:
            try:
                self.worker.admit([(r.seq, r.prompt, r.seed)])
                admitted.append(r)
            except Exception as e:
                self._fail(r.seq, e)
        return admitted

    def _audio_ahead(self, admitted: list[Sequence]) -> None:
        """First chunks of one frame need not wait until the host has read of it. But what the codec is given next waits
        for this prefill, so only if they are most of what is served."""
        scheduler = self.scheduler
        first = [s for s in admitted if s.phase is Phase.RUNNING and s.streaming and not s.skip]
        if first and scheduler.ramp[0] == 1 and 2 * len(first) >= len(scheduler.live) and not scheduler.codec_busy:
            try:
                self.worker.audio_ahead(first)
            except Exception as e:
                self._alive_after(e)  # it will be tried again when it is due

    def _try(self, sequences: list[Sequence], launch: Callable[[], Ticket], prefill: bool) -> list[Ticket]:
        """Launch a step. A prefill that fails with company is repeated one by one, so that only the culprit falls."""
        try:
            return [launch()]
        except Exception as e:
            self._alive_after(e)
            if prefill and len(sequences) > 1:
                for seq in sequences:
                    self.scheduler.undo(seq)
            else:
                for seq in sequences:
                    self._fail(seq, e)
            return []

    def _launch_audio(self, jobs: list[AudioJob]) -> None:
        if not jobs:
            return
        try:
            self._audio.extend(self.worker.audio(jobs))
        except Exception as e:
            self._alive_after(e)
            for job in jobs:
                self._fail(job.seq, e, job.count)

    def _alive_after(self, error: Exception) -> None:
        """A CUDA error that has poisoned the device ends the engine; anything else ends only its requests."""
        if self.device.cuda and isinstance(error, torch.AcceleratorError):
            raise error
        log.error("a launch failed: %s", error, exc_info=error)

    def _fail(self, seq: Sequence, error: Exception, frames: int = 0) -> None:
        self.scheduler.fail(seq, error, frames)
        self._end(self._requests[seq.id])

    # -- what came back --

    def _observe(self, ticket: Ticket) -> None:
        results, now = ticket.result(), time.monotonic()
        if ticket.prefill:
            self.scheduler.prefilled(now - max(ticket.launched, self._last_done))
        self._last_done = now
        for seq, (made, status) in zip(ticket.sequences, results, strict=True):
            self.scheduler.observe(seq, made, status)
            if status == BROKEN and not seq.cancelled:
                seq.error = EngineError("the model produced a frame that is not finite")
                self.scheduler.cancel(seq)
                self._end(self._requests[seq.id])

    def _deliver_ready(self, wait: bool = False) -> None:
        """Hand out audio in the order of its launch, as far as it is there; with `wait`, something at least."""
        while self._audio and (wait or self._audio[0].done.ready()):
            self._deliver(self._audio.popleft())
            wait = False
        self._bells.flush()

    def _deliver_until(self, ticket: Ticket) -> None:
        """Audio that is ready before a step has run does not wait for it: first chunks would come a step late.

        Two streams cannot be waited for at once, so this looks at both now and then.
        """
        while self._audio and not ticket.done.ready():
            time.sleep(POLL_SECONDS)
            self._deliver_ready()

    def _deliver(self, ticket: AudioTicket) -> None:
        ticket.done.wait_host()
        now = time.monotonic()
        hop = self.model.spec.hop
        all_samples, all_frames = ticket.samples.numpy(), ticket.frames.numpy()
        for job, row in zip(ticket.jobs, ticket.rows, strict=True):
            samples, frames = all_samples[row], all_frames[row]
            self.scheduler.heard(job.seq, job.count, now)
            self.stats.frames += job.count
            request = self._requests[job.seq.id]
            skip = request.silent_lead(samples, hop)
            request.frames += job.count
            if request.closed:
                continue
            goes_on = request.prompt.continuation is not None
            if goes_on:
                request.kept.append(frames)
            finish = FINISH.get(job.seq.status, "stop") if job.last and not goes_on else None
            if skip < job.count or finish is not None:
                request.stream.put(Chunk(samples[skip * hop :], frames[skip:], finish))
            if finish is not None:
                self._end(request)

    def _close(self, request: Request) -> None:
        """The present prompt holds nothing any more. Its end may have become known only after its last audio."""
        if request.closed:
            return
        if request.prompt.continuation is not None:
            self._go_on(request, request.prompt.continuation)
        else:
            self._finish(request)

    def _finish(self, request: Request) -> None:
        request.stream.put(self._nothing(FINISH.get(request.seq.status, "stop")))
        self._end(request)

    def _go_on(self, request: Request, then: Callable[[np.ndarray], Prompt | None]) -> None:
        """The next prompt of a request, after the frames of the last; it waits for a slot like any other."""
        spoken = np.concatenate(request.kept) if request.kept else self._nothing("").frames
        streaming = request.seq.streaming
        try:
            prompt = then(spoken)
            if prompt is None:
                self._finish(request)
                return
            prompt.max_frames = self._limit(prompt)
        except Exception as e:
            request.seq.error = e
            self._end(request)
            return
        request.seq, request.prompt = self._sequence(prompt, streaming), prompt
        request.seed, request.frames, request.kept = request.seed + 1, 0, []
        with self._lock:
            self._waiting += 1
        self._requests[request.seq.id] = request
        self.scheduler.add(request.seq, time.monotonic())

    def _end(self, request: Request) -> None:
        """Last event of a stream: an error, or the notice of a cancel; nothing when a final chunk has gone out."""
        if request.closed:
            return
        request.closed = True
        seq = request.seq
        if seq.error is not None:
            self.stats.failed += 1
            request.stream.put(seq.error)
        elif seq.cancelled:
            self.stats.cancelled += 1
            request.stream.put(self._nothing("cancelled"))
        else:
            self.stats.finished += 1

    def _nothing(self, finish: str) -> Chunk:
        frame = self.model.spec.frame
        dtype = torch.empty(0, dtype=frame.dtype).numpy().dtype
        return Chunk(np.zeros(0, np.float32), np.zeros((0, *frame.shape), dtype), finish)

    def _abandon(self) -> None:
        """The thread is ending: every open request learns so, also those still in the inbox."""
        with self._lock:
            self._closing = True
        while True:
            try:
                command = self._inbox.get_nowait()
            except queue.Empty:
                break
            if command is not None:
                command()
        error = EngineError(f"the engine has stopped: {self._error or 'closed'}")
        for request in self._requests.values():
            if not request.closed:
                request.seq.error = error
                self._end(request)
        self._bells.flush()
        self._requests.clear()

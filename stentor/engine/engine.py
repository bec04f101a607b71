"""The engine: one thread that plans steps, launches them, reads their reports and hands audio
out."""

from __future__ import annotations

import atexit
import logging
import queue
import threading
import time
from collections import deque
from collections.abc import Callable
from functools import partial

import numpy as np

from stentor.config import EngineConfig
from stentor.engine.delivery import AudioDelivery
from stentor.engine.health import Health, Stats
from stentor.engine.launcher import Launcher
from stentor.engine.requests import Inbox, Marks, OpenRequests, Request, Submit
from stentor.engine.scheduling.pages import PageAllocator
from stentor.engine.scheduling.scheduler import Scheduler
from stentor.engine.scheduling.sequence import BROKEN, Place
from stentor.engine.sequence_maker import SequenceMaker
from stentor.engine.side import InFlightStep, RunningSide
from stentor.engine.stream import (
    AppendText,
    AudioStream,
    Cancel,
    Chunk,
    EventSink,
    LoopNotifier,
    Outbox,
    RequestHandle,
)
from stentor.errors import EngineError
from stentor.models.base import HostModel, Prompt

log = logging.getLogger("stentor.engine")

STALL_SECONDS = (
    0.005  # how long to wait when every running request has `max_ahead` seconds buffered
)
CHECK_SECONDS = 0.0003  # and for audio of a codec that does not announce it


class Engine:
    """Serves one model on one device. Thread-safe. `close` ends what is running."""

    def __init__(self, model: HostModel, side: RunningSide, config: EngineConfig) -> None:
        """side: the buffers and launches of `model`."""
        self.model = model
        self.side = side
        self.config = config
        self.sizes = side.sizes
        self.runner = side.runner
        self.codec = side.codec
        self.primer = side.primer
        self.encoder = side.encoder
        self.overlap_steps = side.overlap_steps
        if config.overlap_steps is not None:
            self.overlap_steps = config.overlap_steps
        pages = PageAllocator(self.sizes.pages, self.sizes.page_size)
        frames = PageAllocator(self.sizes.frame_pages, 1)
        parked = self.sizes.parked(config.policy.parked_mb)
        policy = side.policy(config.policy)
        self.scheduler = Scheduler(
            self.sizes.slots, pages, policy, parked, self.codec.timing, frames
        )
        self.stats = Stats()
        self.sequences = SequenceMaker(
            model.spec, self.sizes, config.policy, self.runner.covering_evals
        )
        self._requests = OpenRequests(model.spec.frame, self.scheduler, self.sequences, self.stats)
        self._notifier = LoopNotifier()
        self._launcher = Launcher(side, self.scheduler, self._requests, model.spec.hides_frames)
        self._delivery = AudioDelivery(
            self.scheduler, self._requests, self._notifier, model.spec, self._launcher.lose
        )
        self.inbox = Inbox()
        if side.announces_audio(partial(self.inbox.put, None)):
            self._audio_patience = STALL_SECONDS
        else:
            self._audio_patience = CHECK_SECONDS
        self._in_flight: deque[InFlightStep] = deque()
        self._error: BaseException | None = None
        self._last_done = 0.0  # when a step was last seen to have run
        self._working_since: float | None = (
            None  # when the present iteration began. None: it waits for messages
        )
        self._patience = (
            0.0  # seconds to wait for a message, as the last iteration found nothing to do
        )
        self._started = threading.Event()
        self._start()

    def _start(self) -> None:
        self._thread = threading.Thread(target=self._run, name="stentor-engine", daemon=True)
        atexit.register(
            self._stop
        )  # a thread that is inside torch when the interpreter ends aborts the process
        self._thread.start()
        self._started.wait()
        if self._error is not None:
            raise EngineError(f"the engine could not start: {self._error}") from self._error

    # -- callers --

    def submit(
        self, prompt: Prompt, seed: int, streaming: bool, place: Place = Place.NEW
    ) -> AudioStream:
        """Queue a request. InvalidRequest if it can never fit, Overloaded if it is new and the
        queue is full."""
        outbox = self.outbox()
        self.queue(prompt, seed, streaming, place, outbox)
        return AudioStream(seed, outbox, prompt.live, self.inbox.put)

    def outbox(self) -> Outbox:
        """Make the outbox of a request."""
        return Outbox(self._notifier)

    def cancelled(self) -> Chunk:
        """Make the last event of a request that was cancelled before it was queued."""
        return Chunk(np.zeros(0, np.float32), self._requests.no_frames(), "cancelled")

    def notify(self) -> None:
        """Wake the readers of events that the engine's thread has not put."""
        self._notifier.flush()

    def queue(
        self,
        prompt: Prompt,
        seed: int,
        streaming: bool,
        place: Place,
        outbox: EventSink,
        marks: Marks | None = None,
    ) -> RequestHandle:
        """Queue a request whose events go to `outbox`. Its moments go to `marks`. Raises what
        `submit` does."""
        self.fit(prompt)
        self.inbox.check()
        self._requests.enter_queue(self.config.policy.max_queue if place is Place.NEW else None)
        try:
            seq = self.sequences.new(prompt, streaming, place)
            self.inbox.put(Submit(Request(seq, prompt, outbox, seed, marks)))
        except BaseException:
            self._requests.leave_queue()
            raise
        return RequestHandle(outbox, prompt.live, self.inbox.put)

    def on_flush(self, call: Callable[[], None]) -> None:
        """Have `call` called after each iteration that may have put events into outboxes."""
        self._notifier.on_flush.append(call)

    def fit(self, prompt: Prompt) -> None:
        """Bound a prompt, as `submit` does, by what these buffers can serve. InvalidRequest if that
        is too little."""
        self.sequences.fit(prompt)

    def health(self) -> Health:
        s = self.scheduler
        return Health(
            alive=self.inbox.refusal is None,
            ready=self.inbox.refusal is None
            and self._requests.failed_in_a_row < self.config.policy.unready_after,
            error=None if self._error is None else str(self._error),
            queued=self._requests.waiting,
            running=len(s.live),
            free_slots=len(s.free_slots),
            free_pages=s.tables.available,
            pages=s.tables.count,
            preemptions=s.preemptions,
            evictions=s.pages.evictions + s.tables.frames.evictions,
            eager_calls=self.side.eager_calls,
            working=0.0 if (since := self._working_since) is None else time.monotonic() - since,
            gpu_bytes=self.side.device_bytes(),
            stats=self.stats,
            references=self.encoder.counts(),
            codec_states=self.primer.counts(),
        )

    def close(self) -> None:
        """Stop the thread. Requests that are still open fail with EngineError."""
        self._stop()
        self.side.close()

    def _stop(self) -> None:
        """End the thread and wait for it. A forked child has none."""
        if not self.inbox.forked:
            self.inbox.close("closed")
            self._thread.join()

    # -- the thread --

    def _run(self) -> None:
        try:
            self.side.set_up_thread()
            self.side.warm_up()
            self._started.set()
            with self.side.serving():
                while self.inbox.refusal is None:
                    self._step()
        except BaseException as e:
            log.exception("the engine stopped")
            self._error = e
        finally:
            self._started.set()
            self._abandon()
            atexit.unregister(self._stop)

    def _step(self) -> None:
        """One iteration: read messages, plan, launch, read reports that are due, hand audio out."""
        self._working_since = None
        self._read_messages()
        self._working_since = now = time.monotonic()
        plan = self.scheduler.plan(now)
        self._requests.leave_queue(len(plan.admitted))
        for seq in plan.admitted:
            if (marks := self._requests.of(seq).marks) is not None:
                marks.admitted = marks.admitted or now
        stalled = plan.empty and not self._in_flight
        if not stalled:
            self._patience = 0.0
        elif self._delivery.empty:
            self._patience = STALL_SECONDS
        else:
            self._patience = self._audio_patience
        # Audio goes before the next frames: on a CPU, which waits for every launch, it arrives that
        # much earlier.
        self._delivery.add(self._launcher.audio(plan.audio))
        self._delivery.ready()
        self._launcher.write(plan)
        self._delivery.ready()  # writing takes a millisecond or two
        self._in_flight += self._launcher.step(plan)
        while self._in_flight and (len(self._in_flight) > self.overlap_steps or plan.empty):
            step = self._in_flight.popleft()
            self._delivery.until(step)
            self._observe(step)
            self._delivery.add(self._launcher.audio(self.scheduler.plan_audio(time.monotonic())))
        self._delivery.ready()
        complete = self.scheduler.complete()
        for seq in complete:
            self._requests.prepare_next(seq)
        self.scheduler.release(complete)
        for seq in complete:
            self._requests.close(seq)
        self._notifier.flush()
        if plan.launches:
            self.stats.step_seconds += time.monotonic() - now

    def _read_messages(self) -> None:
        """Handle the messages of callers. With nothing else to do, wait for one."""
        wait = self._patience > 0
        while True:
            try:
                inert = self.scheduler.inert and self._delivery.empty
                message = self.inbox.get(wait, None if inert else self._patience)
            except queue.Empty:
                return
            if message is not None:
                self._handle(message)
            wait = False

    def _handle(self, message: Submit | Cancel | AppendText) -> None:
        if isinstance(message, Submit):
            self.stats.submitted += 1
            self._requests.queue(message.request)
            return
        request = self._requests.of_outbox(message.outbox)
        if request is None:
            return
        if isinstance(message, Cancel):
            self._requests.cancel(request)
        else:
            try:
                self._append(request, message)
            except Exception as e:
                self._launcher.survive(e)
                self._requests.cancel(request, e)

    def _append(self, request: Request, text: AppendText) -> None:
        """Append live text to the row, if the request has one, and to the prompt, which becomes a
        row on admission."""
        seq = request.seq
        columns = request.prompt.columns
        values = columns[text.column]
        columns[text.column] = np.concatenate((values, text.values))
        if seq.has_row and len(text.values):
            self.runner.extend(seq, text.column, len(values), text.values)
        self.scheduler.add_text(seq, len(text.values), text.last)

    def _observe(self, step: InFlightStep) -> None:
        generated, stop, emitted = step.result()
        now = time.monotonic()
        if step.prefill:
            self.scheduler.prefills.took(now - max(step.launched_at, self._last_done))
            for marks in [self._requests.of(s).marks for s in step.sequences if generated[s.slot]]:
                if marks is not None and not marks.first_frame:
                    marks.prefilled = step.prefilled_at
                    marks.first_frame = now
        self._last_done = now
        observe = self.scheduler.observe
        for seq in step.sequences:
            slot = seq.slot
            observe(seq, generated[slot], stop[slot], generated[slot] - emitted[slot])
            if stop[slot] == BROKEN and not seq.cancelled:
                error = EngineError("the model produced a frame that is not finite")
                self._requests.cancel(self._requests.of(seq), error)

    def _abandon(self) -> None:
        """The thread ends: every open request fails, also those in the inbox. No command runs and
        no device is used."""
        self.inbox.close(str(self._error))
        error = EngineError(f"the engine has stopped: {self._error or 'closed'}")
        self._requests.abandon(
            error, [m.request for m in self.inbox.rest() if isinstance(m, Submit)]
        )
        self._notifier.flush()

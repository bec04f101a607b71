"""The engine: one thread that plans steps, launches them, reads their reports and hands audio out."""

from __future__ import annotations

import atexit
import logging
import queue
import sys
import threading
import time
from collections import deque
from dataclasses import replace

import numpy as np
import torch

from stentor import kernels
from stentor.config import EngineConfig, Policy
from stentor.engine.audio_scheduler import GENTLE_RAMP
from stentor.engine.buffer_sizes import GIB
from stentor.engine.captures import Captures, nobody_waits
from stentor.engine.codec_runner import CodecRunner
from stentor.engine.cuda_graphs import CudaGraphRunner
from stentor.engine.delivery import AudioDelivery
from stentor.engine.determinism import check_deterministic
from stentor.engine.device import Device
from stentor.engine.inbox import Inbox, Submit
from stentor.engine.inflight import InFlightStep
from stentor.engine.launcher import Launcher
from stentor.engine.model_runner import ModelRunner
from stentor.engine.page_allocator import PageAllocator
from stentor.engine.preparation import Preparation, Upcoming
from stentor.engine.reference_encoder import ReferenceEncoder
from stentor.engine.request_state import Health, OpenRequests, Request, Stats
from stentor.engine.scheduler import Scheduler
from stentor.engine.sequence import BROKEN, Phase, Place
from stentor.engine.sequence_maker import SequenceMaker
from stentor.engine.sizing import plan_memory
from stentor.engine.stream import AppendText, AudioStream, Cancel, LoopNotifier, Taken
from stentor.engine.turns import Turns
from stentor.errors import EngineError
from stentor.models.base import Prompt, SpeechModel, SpeechRequest

log = logging.getLogger("stentor.engine")

STALL_SECONDS = 0.005  # how long to wait when every running request has `max_ahead` seconds buffered
EXPECT_SECONDS = 0.005  # and for the requests that are to be prefilled with those that wait
CHECK_SECONDS = 0.0003  # and for what sends no message: audio of the codec, a request given up before it is submitted


class Engine:
    """Serves one model on one device. Thread-safe. `close` ends what is running."""

    def __init__(self, model: SpeechModel, device: Device, config: EngineConfig) -> None:
        self.model, self.device, self.config = model, device, config
        if config.deterministic:
            check_deterministic(model, device)
        weights = device.allocated_bytes() / GIB
        device.compile_ahead.begin(f"{device.describe()} {weights:.2f} {model.spec} {config}")
        self.sizes = plan_memory(model, config, device)
        log.info("%s on %s: weights %.2f GiB, %s", model.spec.family, device.describe(), weights, self.sizes.describe())
        self.overlap_steps = int(device.cuda) if config.overlap_steps is None else config.overlap_steps
        self.runner = ModelRunner(model, self.sizes, config, device)
        self.codec = CodecRunner(model, self.sizes, config, device, self.runner.slots, self.runner.stream)
        self.reference_encoder = ReferenceEncoder(
            model, device, config.encoded_references, self.sizes.encoder_columns, config.require_graphs
        )
        pages = PageAllocator(self.sizes.pages, self.sizes.page_size)
        parked = self.sizes.parked(config.policy.parked_mb)
        policy = _policy(config, device, self.sizes.prefill_tokens)
        self.scheduler = Scheduler(self.sizes.slots, pages, policy, parked, model.spec.codec_timing)
        self.stats = Stats()
        self._requests = OpenRequests(model.spec.frame, self.stats)
        self.sequences = SequenceMaker(model.spec, self.sizes, config.policy, self.runner.covering_evals)
        self._turns = Turns(self._requests, self.scheduler, self.sequences)
        self._notifier = LoopNotifier()
        self._captures = Captures(self.runner, self.codec, device)
        self._launcher = Launcher(self.runner, self.codec, self.scheduler, self._requests)
        self._delivery = AudioDelivery(self.scheduler, self._requests, self._notifier, model.spec.hop)
        self.inbox = Inbox()
        self.upcoming = Upcoming(device.cuda)
        self._in_flight: deque[InFlightStep] = deque()
        self._error: BaseException | None = None
        self._last_done = 0.0  # when a step was last seen to have run
        self._patience = 0.0  # seconds to wait for a message, as the last iteration found nothing to do
        self._started = threading.Event()
        self._start()

    def _start(self) -> None:
        self._thread = threading.Thread(target=self._run, name="stentor-engine", daemon=True)
        atexit.register(self._stop)  # a thread that is inside torch when the interpreter ends aborts the process
        self._thread.start()
        self._started.wait()
        if self._error is not None:
            raise EngineError(f"the engine could not start: {self._error}") from self._error

    # -- callers --

    def prepare(self, request: SpeechRequest) -> Preparation:
        """A checked request on its way to a prompt. EngineError in a forked child."""
        self.inbox.check_process()
        return Preparation(self.model, self.reference_encoder, self.codec.primer, request, self.upcoming)

    def submit(self, prompt: Prompt, seed: int, streaming: bool, place: Place = Place.NEW) -> AudioStream:
        """Queue a request. InvalidRequest if it can never fit, Overloaded if it is new and the queue is full."""
        self.fit(prompt)
        self.inbox.check()
        self._requests.enter_queue(self.config.policy.max_queue if place is Place.NEW else None)
        try:
            seq = self.sequences.new(prompt, streaming, place)
            stream = AudioStream(seed, prompt.live, self.inbox.put, self._notifier)
            self.inbox.put(Submit(Request(seq, prompt, stream.outbox, seed)))
            self.upcoming.submitted()
        except BaseException:
            self._requests.leave_queue()
            raise
        return stream

    def fit(self, prompt: Prompt) -> None:
        """Bound a prompt, as `submit` does, by what these buffers can serve. InvalidRequest if that is too little."""
        self.sequences.fit(prompt)

    def health(self) -> Health:
        s = self.scheduler
        return Health(
            alive=self.inbox.refusal is None,
            ready=self.inbox.refusal is None and self._requests.failed_in_a_row < self.config.policy.unready_after,
            error=None if self._error is None else str(self._error),
            queued=self._requests.waiting,
            running=len(s.live),
            free_slots=len(s.free_slots),
            free_pages=s.pages.available,
            pages=s.pages.count,
            preemptions=s.preemptions,
            evictions=s.pages.evictions,
            eager_calls=self.eager_calls,
            stats=self.stats,
            references=self.reference_encoder.counts(),
            codec_states=self.codec.primer.counts(),
        )

    @property
    def graph_runners(self) -> tuple[CudaGraphRunner, ...]:
        codec = self.codec.graphs, self.codec.whole.graphs, self.codec.primer.graphs
        return *self.runner.graph_runners, *codec, self.reference_encoder.graphs

    @property
    def eager_calls(self) -> int:
        """Launches since start that no CUDA graph served."""
        return sum(x.eager_calls for x in self.graph_runners)

    def close(self) -> None:
        """Stop the thread. Requests that are still open fail with EngineError."""
        self._stop()
        self.reference_encoder.close()
        self.codec.primer.close()
        for runner in self.graph_runners:
            runner.close()

    def _stop(self) -> None:
        """End the thread and wait for it. A forked child has none."""
        if not self.inbox.forked:
            self.inbox.close("closed")
            self._thread.join()

    # -- the thread --

    def _run(self) -> None:
        try:
            self._set_up_thread()
            self._warm_up()
            self._started.set()
            with torch.inference_mode(), kernels.batch_invariant(self.config.deterministic):
                while self.inbox.refusal is None:
                    self._step()
        except BaseException as e:
            log.exception("the engine stopped")
            self._error = e
        finally:
            self._started.set()
            self._abandon()
            atexit.unregister(self._stop)

    def _set_up_thread(self) -> None:
        """Settings of torch that belong to a thread."""
        self.device.select()
        threads = self.config.threads or self.model.spec.threads
        if self.config.threads is None and self.config.max_threads is not None:
            threads = min(threads or self.config.max_threads, self.config.max_threads)
        if threads is not None:
            torch.set_num_threads(threads)  # OpenMP counts for each thread by itself
        torch.set_flush_denormal(True)  # silence decays into denormals, which are slow on a CPU

    def _warm_up(self) -> None:
        """Capture graphs for all that is launched, and run what the first voice would otherwise run cold."""
        self.device.synchronize()  # weights and buffers were made on another stream
        started, held = time.monotonic(), self.device.allocated_bytes()
        with torch.inference_mode(), kernels.batch_invariant(self.config.deterministic):
            self._captures.start(self.config.capture_all)
        self.codec.primer.warm_up()
        self.reference_encoder.warm_up()
        self.device.compile_ahead.end()
        if self.device.cuda:
            graphs = sum(len(x.graphs) for x in self.graph_runners)
            taken = (self.device.allocated_bytes() - held) / GIB
            log.info("captured %d graphs in %.1f s, %.2f GiB", graphs, time.monotonic() - started, taken)

    def _step(self) -> None:
        """One iteration: read messages, plan, launch, read reports that are due, hand audio out."""
        self._read_messages()
        now = time.monotonic()
        plan = self.scheduler.plan(now, len(self.upcoming))
        self._requests.leave_queue(len(plan.admitted))
        stalled, checks = plan.empty and not self._in_flight, plan.awaits or not self._delivery.empty
        self._patience = 0.0 if not stalled else CHECK_SECONDS if checks else STALL_SECONDS
        # Audio goes before the next frames: on a CPU, which waits for every launch, it arrives that much earlier.
        self._delivery.add(self._launcher.audio(plan.audio))
        self._delivery.ready()
        with self.upcoming.paused(bool(plan.prefill)):
            self._launcher.write(plan)
            self._delivery.ready()  # writing takes a millisecond or two
            self._in_flight += self._launcher.step(plan)
        while self._in_flight and (len(self._in_flight) > self.overlap_steps or plan.empty):
            step = self._in_flight.popleft()
            self._delivery.until(step)
            self._observe(step)
            self._delivery.add(self._launcher.audio(self.scheduler.plan_audio(time.monotonic())))
        self._delivery.ready()
        for seq in self.scheduler.complete():
            self._turns.prepare(seq)
        for seq in self.scheduler.finished():
            self._turns.close(self._requests.remove(seq))
        self._notifier.flush()
        if plan.launches:
            self.stats.step_seconds += time.monotonic() - now
        if self._captures.asked and not self.upcoming and nobody_waits(self.scheduler, time.monotonic()):
            self._captures.next(asked=True)
        if stalled and plan.awaits and self._delivery.empty:
            self.upcoming.wait_until(self.stats.submitted + plan.awaits, EXPECT_SECONDS)

    def _read_messages(self) -> None:
        """Handle the messages of callers. With nothing else to do, wait for one, or capture a graph if none comes."""
        wait = self._patience > 0
        while True:
            patience = self._captures.wait if self.scheduler.idle else None
            try:
                inert = self.scheduler.inert and self._delivery.empty
                message = self.inbox.get(wait, patience if inert else self._patience)
            except queue.Empty:
                if wait and self.scheduler.idle:
                    if self.upcoming:  # its prompt is made: its message comes soon
                        self._captures.interrupt()
                    else:
                        self._captures.next()
                return
            if message is None:
                return
            self._captures.interrupt()
            self._handle(message)
            wait = False

    def _handle(self, message: Submit | Cancel | AppendText | Taken) -> None:
        if isinstance(message, Submit):
            self.stats.submitted += 1
            self._turns.queue(message.request)
            return
        request = self._requests.of_outbox(message.outbox)
        if request is not None and isinstance(message, Cancel):
            self._cancel(request)
        elif request is not None and isinstance(message, Taken):
            self._delivery.note_unread(request)
        elif request is not None and isinstance(message, AppendText):
            try:
                self._append(request, message)
            except Exception as e:
                self._launcher.survive(e)
                request.seq.error = e
                self._cancel(request)

    def _append(self, request: Request, text: AppendText) -> None:
        """Append live text to the row, if the request has one, and to the prompt, which becomes a row on admission."""
        seq, columns = request.seq, request.prompt.columns
        held = columns[text.column]
        columns[text.column] = np.concatenate((held, text.values))
        if seq.has_row and len(text.values):
            self.runner.extend(seq, text.column, len(held), text.values)
        seq.max_schedulable = sys.maxsize if text.last else seq.max_schedulable + len(text.values)

    def _cancel(self, request: Request) -> None:
        if request.seq.phase is Phase.QUEUED:
            self._requests.leave_queue()
        gone = self.scheduler.cancel(request.seq)
        self._requests.end(request)
        if gone:
            self._requests.remove(request.seq)

    def _observe(self, step: InFlightStep) -> None:
        generated, stop, heard = step.result()
        now = time.monotonic()
        if step.prefill:
            self.scheduler.prefills.took(now - max(step.launched_at, self._last_done))
        self._last_done = now
        observe = self.scheduler.observe
        for seq in step.sequences:
            slot = seq.slot
            observe(seq, generated[slot], stop[slot], generated[slot] - heard[slot])
            if stop[slot] == BROKEN and not seq.cancelled:
                self.scheduler.abort(seq, EngineError("the model produced a frame that is not finite"))
                self._requests.end(self._requests.of(seq))

    def _abandon(self) -> None:
        """The thread ends: every open request fails, also those in the inbox. No command runs and no device is used."""
        self.inbox.close(str(self._error))
        error = EngineError(f"the engine has stopped: {self._error or 'closed'}")
        for message in self.inbox.rest():
            if isinstance(message, Submit):
                self._requests.add(message.request)
        self._requests.abandon(error)
        self._notifier.flush()


def _policy(config: EngineConfig, device: Device, captured_tokens: int) -> Policy:
    """The scheduler's policy. Without a ramp of its own, a CPU takes the gentle one. A GPU's prefills are captured."""
    policy = config.policy
    if device.cuda:
        return replace(
            policy,
            max_prefill_tokens=min(policy.max_prefill_tokens, captured_tokens),
            crowd_prefill_tokens=min(policy.crowd_prefill_tokens, captured_tokens),
        )
    return replace(policy, ramp=GENTLE_RAMP) if policy.ramp is None else policy

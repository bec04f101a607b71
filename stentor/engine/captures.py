"""When graphs are captured: few before the engine is ready, the others one by one while nobody asks for anything.

A step or a codec call that runs in a larger graph than it needs asks for its own. That one is captured while requests
run too, as soon as each client has audio to play meanwhile.
"""

from __future__ import annotations

import logging
import time

from stentor.engine.codec_runner import CodecRunner
from stentor.engine.device import Device
from stentor.engine.model_runner import ModelRunner
from stentor.engine.scheduler import Scheduler
from stentor.engine.sequence import Sequence
from stentor.errors import EngineError

log = logging.getLogger("stentor.engine")

QUIET_SECONDS = 10.0
"""Without a message, before the others are captured, one after another until a message comes. A request that comes
during a capture waits for it, on an H200 for 0.44 s at most. So nothing is captured between the requests of a client
that sends one after another, or before the first one of clients that wait until an engine is ready."""
LEAD_SECONDS = 2.5
"""Of audio that each client has buffered, for a capture beside requests. On an H200 the longest takes 0.44 s, and 2.1 s
where kernels are compiled in it."""


class Captures:
    """Used from the engine's thread only, inside what it launches in."""

    def __init__(self, runner: ModelRunner, codec: CodecRunner, device: Device) -> None:
        self.runner, self.codec, self.device = runner, codec, device
        self._tried, self._seconds = 0, 0.0  # behind the start
        self._goes_on = False  # the last graph was captured while idle, and no message has come since

    @property
    def left(self) -> int:
        """Graphs that are not captured yet."""
        return sum(len(graphs.later) for graphs in (*self.runner.graph_runners, *self.codec.graph_runners))

    @property
    def wait(self) -> float | None:
        """How long an idle engine waits for a message. None: for ever, as no graph is left."""
        return None if not self.left else 0.0 if self._goes_on else QUIET_SECONDS

    def interrupt(self) -> None:
        """A message has come, or is about to."""
        self._goes_on = False

    def start(self, every: bool) -> None:
        """Capture graphs into which all that is launched fits, or all. EngineError if one fails that is required.

        Kernels of all of them are compiled together, so that a slow one does not keep others waiting.
        """
        self.device.compile_ahead([*self.runner.plan(), *self.codec.plan()])
        self.runner.capture()
        self.codec.capture()
        while every and self.left:
            self._capture()
        self.device.release_cached()

    @property
    def asked(self) -> bool:
        """Whether a launch has asked for a graph that can be captured beside requests."""
        return self.codec.graphs.asked or self.runner.asked is not None

    def next(self, asked: bool = False) -> None:
        """Capture a graph while no request is open, or with `asked` one for which requests ask. Not while another model
        of the process is loaded or captured."""
        with self.device.capturing() as alone:
            self._goes_on = alone and not asked
            if not alone:
                return
            started = time.monotonic()
            try:
                if asked:
                    self._capture_asked()
                else:
                    self._capture()
            except EngineError as e:  # graphs are required, and what is launched has one: the engine goes on
                log.error("%s; larger graphs serve in its place", e)
            self._tried += 1
            self._seconds += time.monotonic() - started
            if not self.left:
                self.device.release_cached()
                log.info("captured the other %d graphs in %.1f s behind the start", self._tried, self._seconds)

    def _capture(self) -> None:
        owner = self.runner if any(graphs.later for graphs in self.runner.graph_runners) else self.codec
        owner.capture_next()

    def _capture_asked(self) -> None:
        graphs = self.runner.asked
        if graphs is not None:
            self.runner.capture_asked(graphs)
        else:
            self.codec.capture_asked()


def nobody_waits(scheduler: Scheduler, now: float) -> bool:
    """Whether requests run, none is queued, and each client of a stream plays audio and has enough of it buffered."""
    return bool(scheduler.live) and not scheduler.queue and all(_can_wait(seq, now) for seq in scheduler.live)


def _can_wait(seq: Sequence, now: float) -> bool:
    return not seq.streaming or (seq.first_audio is not None and seq.lead(now) >= LEAD_SECONDS)

"""More API processes on one port, for more streams than one event loop can send:
`stentor serve --api-processes N`.

The first one owns the engines and starts the others. Each has its own socket to every engine. The
kernel spreads connections over them. Limits and open requests to each engine count over all of them
in shared memory. A process requests outcomes and metrics from the others.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import mmap
import os
import signal
import socket
import subprocess
import time
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

import msgspec
from prometheus_client import Metric, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from stentor.errors import EngineError
from stentor.server.config import ServerConfig
from stentor.server.engines import messages as m
from stentor.server.engines.attached import AttachedEngine
from stentor.server.engines.launch import ProcessEngine, end_of, restart_pause, start_module
from stentor.server.engines.lifecycle import OwnedEngine
from stentor.server.engines.model_engine import ModelEngine, Phase
from stentor.server.errors import ApiError
from stentor.server.limits import LIMITS
from stentor.server.metrics import OF_ENGINES
from stentor.server.speech.outcomes import Outcome
from stentor.server.state import Counts, Others, Server
from stentor.server.stop_signals import StopSignals

log = logging.getLogger("stentor.server")

ASK_SECONDS = 2 * LIMITS.process_seconds  # the first process may wait for others before it answers
BEAT_SECONDS = 1.0
CLOSE_POLL_SECONDS = 0.05
READ_BYTES = 1 << 18  # at once


class Start(msgspec.Struct):
    """Orders to an API process on its standard input. counts: a descriptor of the shared memory."""

    config: ServerConfig
    api: int
    port: int
    counts: int


class _Message(msgspec.Struct, tag=True, array_like=True): ...


class State(_Message):
    """Phase of an engine in the first process. created: when its model was."""

    engine: int
    phase: Phase
    reason: str | None
    created: int
    restarts: int


class Attach(_Message):
    """An engine: its socket comes with the message."""

    engine: int


class Beat(_Message):
    """Sent by the other processes every second. missing: engines that the first process reports
    ready and that this one cannot reach, with the number of `Attach` messages received for each."""

    missing: dict[int, int]


class Ask(_Message):
    """Request for all metrics, or for the outcome of a request."""

    call: int
    id: str | None = None


class Answer(_Message):
    call: int
    text: str | None = None
    outcome: Outcome | None = None


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(State | Attach | Beat | Ask | Answer)


class Control:
    """Messages between two API processes over a stream socket. They wait in a queue while the other
    one does not read.

    answer: answers a question. note: handles any other message and the descriptors that have come
    so far. lost: called when the other process is gone.
    """

    def __init__(
        self,
        connection: socket.socket,
        answer: Callable[[Ask], Awaitable[Answer]],
        note: Callable[[State | Attach | Beat, deque[int]], None] = lambda message, descriptors: (
            None
        ),
        lost: Callable[[], None] = lambda: None,
    ) -> None:
        self.silent = 0  # beats that did not come
        self.closed = False
        self._socket = connection
        self._answer = answer
        self._note = note
        self._lost = lost
        self._loop = asyncio.get_running_loop()
        self._unpacker = m.Unpacker()
        self._descriptors: deque[int] = deque()
        self._unsent: deque[tuple[memoryview, int | None]] = deque()
        self._calls: dict[int, asyncio.Future[Answer]] = {}
        self._numbers = itertools.count()
        self._tasks: set[asyncio.Task[None]] = set()
        connection.setblocking(False)
        self._loop.add_reader(connection, self._read)

    @property
    def behind(self) -> bool:
        """Whether the other process has not read everything yet."""
        return bool(self._unsent)

    def send(
        self, message: State | Attach | Beat | Ask | Answer, descriptor: int | None = None
    ) -> None:
        """Send a message, with a copy of a descriptor."""
        self.write(m.pack([_encoder.encode(message)]), descriptor)

    def write(self, data: bytes, descriptor: int | None = None) -> None:
        """Send bytes behind all earlier ones."""
        if self.closed:
            return
        copy = None if descriptor is None else os.dup(descriptor)
        self._unsent.append((memoryview(data), copy))
        if len(self._unsent) == 1:
            self._flush()

    async def ask(self, id: str | None = None, seconds: float = LIMITS.process_seconds) -> Answer:
        """Question the other process. The answer is empty if that takes too long, or if it does not
        read."""
        number = next(self._numbers)
        if self.behind:
            return Answer(number)
        future = self._calls[number] = self._loop.create_future()
        self.send(Ask(number, id))
        try:
            async with asyncio.timeout(seconds):
                answer: Answer = await future
                return answer
        except TimeoutError:
            return Answer(number)
        finally:
            del self._calls[number]

    def close(self) -> None:
        """Free the socket and all descriptors that were not sent or not used."""
        if self.closed:
            return
        self.closed = True
        self._loop.remove_reader(self._socket)
        self._loop.remove_writer(self._socket)
        self._socket.close()
        for descriptor in (*(d for _, d in self._unsent), *self._descriptors):
            if descriptor is not None:
                os.close(descriptor)
        self._unsent.clear()
        self._descriptors.clear()

    def _flush(self) -> None:
        """Send what the socket takes now, and the rest once it takes more."""
        while self._unsent:
            data, descriptor = self._unsent[0]
            try:
                sent = self._send_now(data, descriptor)
            except BlockingIOError:
                self._loop.add_writer(self._socket, self._flush)
                return
            except OSError:  # it is gone, which the reader sees
                break
            if descriptor is not None:
                os.close(descriptor)
            if sent < len(data):
                self._unsent[0] = (data[sent:], None)
            else:
                self._unsent.popleft()
        self._loop.remove_writer(self._socket)

    def _send_now(self, data: memoryview, descriptor: int | None) -> int:
        if descriptor is None:
            return self._socket.send(data)
        return socket.send_fds(self._socket, [data], [descriptor])

    def _read(self) -> None:
        try:
            data, descriptors, _, _ = socket.recv_fds(self._socket, READ_BYTES, 8)
        except BlockingIOError:
            return
        except OSError:
            data = b""
            descriptors = []
        if not data:
            self.close()
            self._lost()
            return
        self.silent = 0
        self._descriptors += descriptors
        for head, _ in self._unpacker.feed(data):
            self._handle(_decoder.decode(head))

    def _handle(self, message: State | Attach | Beat | Ask | Answer) -> None:
        match message:
            case Ask():
                task = asyncio.create_task(self._reply(message))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
            case Answer():
                future = self._calls.get(message.call)
                if future is not None and not future.done():
                    future.set_result(message)
            case _:
                self._note(message, self._descriptors)

    async def _reply(self, ask: Ask) -> None:
        self.send(await self._answer(ask))


# -- the first process --


@dataclass
class _Links:
    """Sockets to engines that were sent to an API process, by the engine's number."""

    control: Control
    sent: Counter[int] = field(default_factory=Counter)
    pending: Counter[int] = field(default_factory=Counter)  # being made


class ApiProcesses(Others):
    """The other API processes. The first one starts, attaches, watches and replaces them."""

    def __init__(self, config: ServerConfig, port: int, stop: StopSignals) -> None:
        self.config = config
        self.port = port
        self.stop = stop
        engines = len(config.engines)
        size = Counts.size(engines, config.api_processes)
        self._memory = os.memfd_create("stentor-counts")
        os.ftruncate(self._memory, size)
        self.counts = Counts(engines, mmap.mmap(self._memory, size))
        self._controls: dict[int, Control] = {}
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        self._links: dict[int, _Links] = {}
        self._pages: dict[int, str] = {}  # the last metrics of each process
        self._retired = ""  # counters of processes that are gone
        self._tasks: list[asyncio.Task[None]] = []
        self._attaching: set[asyncio.Task[None]] = set()
        self._ending = False

    def start(self, server: Server) -> None:
        """Start them, and report every phase of the engines of `server` to them."""
        self.server = server
        server.others = self
        for host in server.hosts.all:
            host.listeners.append(self._report_phase)
        numbers = range(1, self.config.api_processes)
        self._tasks = [asyncio.create_task(self._keep(api)) for api in numbers]
        self._tasks.append(asyncio.create_task(self._watch()))
        self._tasks.append(asyncio.create_task(self._drain()))

    # -- start and end --

    async def _keep(self, api: int) -> None:
        """Run an API process, and start another one when it has ended."""
        crashes = 0
        while not self._ending:
            began = time.monotonic()
            try:
                code = await end_of(self._begin(api))
                self._forget(api)
                if not self._ending:
                    log.error("API process %d ended with code %d; restarting it", api, code)
            except Exception:  # such as a lack of descriptors
                log.exception("API process %d cannot be started", api)
            settled = time.monotonic() - began > LIMITS.settled_seconds
            crashes = 1 if settled else crashes + 1
            await asyncio.sleep(restart_pause(crashes))

    def _begin(self, api: int) -> subprocess.Popen[bytes]:
        ours, theirs = socket.socketpair()
        with theirs:
            process = start_module(theirs, self._memory, module="stentor.server.main")
        self._processes[api] = process
        control = self._controls[api] = Control(ours, self._answer, partial(self._note, api))
        self._links[api] = _Links(control)
        start = Start(self.config, api, self.port, self._memory)
        control.write(msgspec.json.encode(start) + b"\n")
        for engine in self.server.hosts.engines:
            self._report(api, engine)
        return process

    def _forget(self, api: int) -> None:
        """Free what belongs to a process that is gone. Its counters stay in the metrics."""
        control = self._controls.pop(api, None)
        self.counts.clear(api)
        if control is None:
            return
        control.close()
        page = self._pages.pop(api, "")
        self._retired = merged(self._retired, [counters(page)])

    async def _watch(self) -> None:
        """Kill processes whose event loop has stopped. They are then replaced.

        It counts its own iterations instead of seconds: a machine that was suspended is no reason
        to kill."""
        while not self._ending:
            await asyncio.sleep(BEAT_SECONDS)
            for api, control in list(self._controls.items()):
                control.silent += 1
                if control.silent * BEAT_SECONDS > LIMITS.process_stuck_seconds:
                    log.error("API process %d is stuck; killing it", api)
                    control.silent = 0
                    self._processes[api].kill()

    async def _drain(self) -> None:
        """Stop the others when the first one stops."""
        await self.server.drain.wait()
        self._stop()

    def _stop(self) -> None:
        self._ending = True
        self._signal(signal.SIGTERM)

    def _signal(self, number: signal.Signals) -> None:
        for process in self._processes.values():
            process.send_signal(number)

    def kill(self) -> None:
        """Kill every process. For any thread."""
        for process in list(self._processes.values()):
            process.kill()

    async def close(self) -> None:
        """Wait until they have ended, as long as their clients may take, and kill those that have
        not."""
        self._stop()
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self.config.drain_seconds + 2 * LIMITS.end_seconds
        hurried = False
        while any(p.poll() is None for p in self._processes.values()) and loop.time() < deadline:
            if self.stop.hurried and not hurried:
                hurried = True
                self._signal(signal.SIGINT)
                deadline = min(deadline, loop.time() + 3 * LIMITS.end_seconds)
            await asyncio.sleep(CLOSE_POLL_SECONDS)
        self.kill()
        for task in (*self._tasks, *self._attaching):
            task.cancel()

    # -- models --

    def _report_phase(self, engine: ModelEngine) -> None:
        for api in list(self._controls):
            self._report(api, engine)

    def _report(self, api: int, engine: ModelEngine) -> None:
        """Send a process the phase of an engine, and a socket to it."""
        created = engine.host.created
        state = State(engine.number, engine.phase, engine.reason, created, engine.restarts)
        self._controls[api].send(state)
        self._attach(api, engine)

    def _attach(self, api: int, engine: ModelEngine) -> None:
        assert isinstance(engine, OwnedEngine)
        if engine.phase == "ready" and engine.process is not None:
            task = asyncio.create_task(self._send_link(api, engine, engine.process))
            self._attaching.add(task)
            task.add_done_callback(self._attaching.discard)

    async def _send_link(self, api: int, engine: ModelEngine, process: ProcessEngine) -> None:
        links = self._links[api]
        number = engine.number
        links.pending[number] += 1
        try:
            with await process.connect(api) as connection:
                links.control.send(Attach(number), connection.fileno())
                links.sent[number] += 1
        except EngineError:  # gone again: the next one is reported
            return
        except OSError as e:  # a lack of descriptors: the process reports the engine as missing
            log.error("API process %d cannot be connected to model %s: %s", api, engine.label, e)
        finally:
            links.pending[number] -= 1

    def _note(self, api: int, message: State | Attach | Beat, descriptors: deque[int]) -> None:
        """Send sockets for missing engines again, unless one is on its way."""
        if not isinstance(message, Beat):
            return
        links = self._links[api]
        for engine in self.server.hosts.engines:
            number = engine.number
            received = message.missing.get(number)
            if received == links.sent[number] and not links.pending[number]:
                self._attach(api, engine)

    # -- questions --

    async def _answer(self, ask: Ask) -> Answer:
        if ask.id is None:
            return Answer(ask.call, text=await self.metrics())
        outcome = await self.server.outcomes.find(ask.id) or await self.outcome(ask.id)
        return Answer(ask.call, outcome=outcome)

    async def metrics(self) -> str:
        """The metrics of all processes, in Prometheus's text format. Counters never go back: a
        process that does not answer counts with its last answer, and one that is gone too."""
        await asyncio.gather(*(self._refresh(*item) for item in self._controls.items()))
        return merged(self.server.metrics.text(), [self._retired, *self._pages.values()])

    async def _refresh(self, api: int, control: Control) -> None:
        answer = await control.ask()
        if answer.text is not None and self._controls.get(api) is control:
            self._pages[api] = answer.text

    async def outcome(self, id: str) -> Outcome | None:
        """The outcome of a request that another process has served."""
        answers = await asyncio.gather(*(c.ask(id) for c in self._controls.values()))
        return next((a.outcome for a in answers if a.outcome is not None), None)


def merged(own: str, others: Sequence[str]) -> str:
    """Sum the metrics of several processes. Those of engines are `own`'s, and of moments and leads
    the smallest."""
    lines: dict[tuple[str, tuple[tuple[str, str], ...]], float] = {}
    families: dict[str, Metric] = {}
    for text in (own, *others):
        for family in text_string_to_metric_families(text):
            total = families.setdefault(family.name, family)
            for sample in family.samples:
                key = sample.name, tuple(sorted(sample.labels.items()))
                if key not in lines:
                    lines[key] = sample.value
                    if total is not family:
                        total.samples.append(sample)
                elif sample.name.endswith("_created") or "playback_lead" in sample.name:
                    lines[key] = min(lines[key], sample.value)
                elif family.name not in OF_ENGINES:
                    lines[key] += sample.value
    for family in families.values():
        family.samples = [
            s._replace(value=lines[s.name, tuple(sorted(s.labels.items()))]) for s in family.samples
        ]
    return _page(list(families.values()))


def counters(page: str) -> str:
    """The metrics of a page that only ever grow and that its process counted itself."""
    families = text_string_to_metric_families(page)
    growing = ("counter", "histogram", "summary")
    return _page([f for f in families if f.type in growing and f.name not in OF_ENGINES])


def _page(families: list[Metric]) -> str:
    class Families:
        def collect(self) -> list[Metric]:
            return families

    return generate_latest(Families()).decode()


# -- the others --


class Owner(Others):
    """The first process, as the others know it."""

    def __init__(self, server: Server, lost: Callable[[], None]) -> None:
        super().__init__(server)
        self._engines = {
            engine.number: engine
            for engine in server.hosts.engines
            if isinstance(engine, AttachedEngine)
        }
        connection = socket.socket(fileno=os.dup(0))
        self._control = Control(connection, self._answer, self._note, lost)
        self._tasks: set[asyncio.Task[None]] = {asyncio.create_task(self._beat())}

    async def _beat(self) -> None:
        """Show that this event loop runs, and which engines it does not reach."""
        while True:
            if not self._control.behind:
                engines = self._engines.values()
                self._control.send(Beat({e.number: e.attached for e in engines if e.missing}))
            await asyncio.sleep(BEAT_SECONDS)

    def _note(self, message: State | Attach | Beat, descriptors: deque[int]) -> None:
        match message:
            case State():
                engine = self._engines[message.engine]
                engine.host.created = message.created
                engine.note(message.phase, message.reason, message.restarts)
            case Attach():
                connection = socket.socket(fileno=descriptors.popleft())
                task = asyncio.create_task(self._engines[message.engine].attach(connection))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)

    async def _answer(self, ask: Ask) -> Answer:
        if ask.id is None:
            return Answer(ask.call, text=self.server.metrics.text())
        return Answer(ask.call, outcome=await self.server.outcomes.find(ask.id))

    async def metrics(self) -> str:
        """The metrics of all processes. ApiError 503 if the first one does not answer: those of
        this one alone would look like counters that went back."""
        answer = await self._control.ask(None, ASK_SECONDS)
        if answer.text is None:
            message = "the first API process does not answer"
            raise ApiError(503, message, code="not_ready", retry_after=5)
        return answer.text

    async def outcome(self, id: str) -> Outcome | None:
        """The outcome of a request that another process has served."""
        return (await self._control.ask(id, ASK_SECONDS)).outcome


def read_start() -> tuple[Start, Counts]:
    """Read the orders of the first process, and nothing behind them."""
    with socket.socket(fileno=os.dup(0)) as connection, connection.makefile("rb", 0) as file:
        start = msgspec.json.decode(file.readline(), type=Start)
    return start, Counts(len(start.config.engines), mmap.mmap(start.counts, 0), start.api)

"""More API processes on one port, for more streams than one event loop can send:
`stentor serve --api-processes N`.

The first one owns the engines and starts the others. Each reaches every engine over a socket of its
own. The kernel spreads connections over them. Limits count over all of them in memory that they
share, outcomes and metrics are asked for where they are not here.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import mmap
import os
import signal
import socket
import subprocess
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
from prometheus_client import Metric, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from stentor.errors import EngineError
from stentor.server.config import ServerConfig
from stentor.server.engines.client import EngineLink
from stentor.server.engines.launch import ProcessEngine, end_of, start_module
from stentor.server.limits import LIMITS
from stentor.server.metrics import OF_ENGINES
from stentor.server.model_hosts import ModelHost, Phase
from stentor.server.speech.outcomes import Outcome
from stentor.server.state import SHARED, Counts, Others, Server

log = logging.getLogger("stentor.server")

MESSAGE_BYTES = LIMITS.process_message_kib << 10
# for the first process, which asks those that may not answer
ASK_SECONDS = 2 * LIMITS.process_seconds


class Start(msgspec.Struct):
    """Orders to an API process on its standard input. counts: a descriptor of the shared memory."""

    config: ServerConfig
    api: int
    port: int
    counts: int


class _Message(msgspec.Struct, tag=True, array_like=True): ...


class State(_Message):
    """Where a model is, as the first process knows it."""

    name: str
    phase: Phase
    reason: str | None
    created: int
    restarts: int


class Attach(_Message):
    """The engine of a model: its socket comes with the message."""

    name: str


class Ask(_Message):
    """Ask for all metrics, or for the outcome of a request."""

    call: int
    id: str | None = None


class Answer(_Message):
    call: int
    text: str | None = None
    outcome: Outcome | None = None


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(State | Attach | Ask | Answer)


class Control:
    """Messages between two API processes, over a socket of packets. answer(ask): what this one
    says."""

    def __init__(
        self,
        connection: socket.socket,
        answer: Callable[[Ask], asyncio.Future[Answer] | Any],
        note: Callable[[State | Attach, list[int]], None] = lambda message, descriptors: None,
        lost: Callable[[], None] = lambda: None,
    ) -> None:
        self._socket = connection
        self._answer = answer
        self._note = note
        self._lost = lost
        self._calls: dict[int, asyncio.Future[Answer]] = {}
        self._numbers = itertools.count()
        self._tasks: set[asyncio.Task[None]] = set()
        connection.setblocking(False)
        asyncio.get_running_loop().add_reader(connection, self._read)

    def send(self, message: State | Attach | Ask | Answer, descriptor: int | None = None) -> None:
        """Send a message. One that the other does not read is lost, as the other is."""
        with contextlib.suppress(OSError):
            socket.send_fds(
                self._socket, [_encoder.encode(message)], [] if descriptor is None else [descriptor]
            )

    async def ask(self, id: str | None = None, seconds: float = LIMITS.process_seconds) -> Answer:
        """Ask the other process. It answers nothing where it takes too long."""
        number = next(self._numbers)
        answer = self._calls[number] = asyncio.get_running_loop().create_future()
        self.send(Ask(number, id))
        try:
            async with asyncio.timeout(seconds):
                told: Answer = await answer
                return told
        except TimeoutError:
            return Answer(number)
        finally:
            del self._calls[number]

    def close(self) -> None:
        asyncio.get_running_loop().remove_reader(self._socket)
        self._socket.close()

    def _read(self) -> None:
        try:
            data, descriptors, _, _ = socket.recv_fds(self._socket, MESSAGE_BYTES, 1)
        except BlockingIOError:
            return
        except OSError:
            data = b""
            descriptors = []
        if not data:
            self.close()
            self._lost()
            return
        message = _decoder.decode(data)
        match message:
            case Ask():
                task = asyncio.create_task(self._reply(message))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
            case Answer():
                answer = self._calls.get(message.call)
                if answer is not None and not answer.done():
                    answer.set_result(message)
            case _:
                self._note(message, descriptors)

    async def _reply(self, ask: Ask) -> None:
        self.send(await self._answer(ask))


# -- the first process --


class ApiProcesses(Others):
    """The other API processes, which the first one starts, feeds and replaces."""

    def __init__(self, config: ServerConfig, port: int) -> None:
        self.config = config
        self.port = port
        size = 8 * len(SHARED) * config.api_processes
        self._memory = os.memfd_create("stentor-counts")
        os.ftruncate(self._memory, size)
        self.counts = Counts(mmap.mmap(self._memory, size))
        self._controls: dict[int, Control] = {}
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._attaching: set[asyncio.Task[None]] = set()
        self._ending = False

    def start(self, server: Server) -> None:
        """Start them, and tell them of the models of `server` from now on."""
        self.server = server
        server.others = self
        for host in server.hosts.all:
            host.listeners.append(self._note)
        self._tasks = [
            asyncio.create_task(self._keep(api)) for api in range(1, self.config.api_processes)
        ]
        self._tasks.append(asyncio.create_task(self._drain()))

    async def _keep(self, api: int) -> None:
        """Run an API process, and another in its place when it has ended."""
        crashes = 0
        while not self._ending:
            process = self._begin(api)
            code = await end_of(process)
            self._controls.pop(api, None)
            self.counts.clear(api)
            if not self._ending:
                crashes += 1
                log.error("API process %d ended with code %d; restarting it", api, code)
                await asyncio.sleep(min(LIMITS.restart_seconds, 0.1 * 2**crashes))

    def _begin(self, api: int) -> subprocess.Popen[bytes]:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            process = self._processes[api] = start_module(
                theirs, self._memory, module="stentor.server.main"
            )
        ours.send(msgspec.json.encode(Start(self.config, api, self.port, self._memory)))
        self._controls[api] = Control(ours, self._answer)
        for host in self.server.hosts.all:
            self._tell(api, host)
        return process

    def _note(self, host: ModelHost) -> None:
        """A model's phase has changed."""
        for api in list(self._controls):
            self._tell(api, host)

    def _tell(self, api: int, host: ModelHost) -> None:
        control = self._controls[api]
        control.send(State(host.name, host.phase, host.reason, host.created, host.restarts))
        if host.phase == "ready" and host.engine is not None:
            task = asyncio.create_task(self._attach(control, api, host.name, host.engine))
            self._attaching.add(task)
            task.add_done_callback(self._attaching.discard)

    async def _attach(self, control: Control, api: int, name: str, engine: ProcessEngine) -> None:
        with contextlib.suppress(EngineError), await engine.connect(api) as connection:
            control.send(Attach(name), connection.fileno())

    async def _answer(self, ask: Ask) -> Answer:
        if ask.id is None:
            return Answer(ask.call, text=await self.metrics())
        return Answer(
            ask.call, outcome=await self.server.outcomes.find(ask.id) or await self.outcome(ask.id)
        )

    async def metrics(self) -> str:
        """The metrics of all processes, in Prometheus's text format."""
        own = self.server.metrics.text()
        answers = await asyncio.gather(*(c.ask() for c in self._controls.values()))
        return merged(own, [a.text for a in answers if a.text is not None])

    async def outcome(self, id: str) -> Outcome | None:
        """The outcome of a request that another process has served."""
        answers = await asyncio.gather(*(c.ask(id) for c in self._controls.values()))
        return next((a.outcome for a in answers if a.outcome is not None), None)

    async def _drain(self) -> None:
        """Have them finish what runs when the first one does."""
        await self.server.drain.wait()
        self._ending = True
        for process in self._processes.values():
            process.send_signal(signal.SIGTERM)

    async def close(self) -> None:
        """Wait until they have ended, which takes as long as their clients may."""
        self._ending = True
        for process in self._processes.values():
            process.send_signal(signal.SIGTERM)
        for process in self._processes.values():
            try:
                await asyncio.to_thread(
                    process.wait, self.config.drain_seconds + 2 * LIMITS.end_seconds
                )
            except subprocess.TimeoutExpired:
                process.kill()
        for task in (*self._tasks, *self._attaching):
            task.cancel()


def merged(own: str, others: Sequence[str]) -> str:
    """Metrics of several processes as those of one: sums, but for those of engines, which `own`
    has, and for moments and the smallest lead."""
    lines: dict[tuple[str, tuple[tuple[str, str], ...]], float] = {}
    families: dict[str, Metric] = {}
    for text in (own, *others):
        for family in text_string_to_metric_families(text):
            known = families.setdefault(family.name, family)
            for sample in family.samples:
                key = sample.name, tuple(sorted(sample.labels.items()))
                if key not in lines:
                    lines[key] = sample.value
                    if known is not family:
                        known.samples.append(sample)
                elif sample.name.endswith("_created") or "playback_lead" in sample.name:
                    lines[key] = min(lines[key], sample.value)
                elif family.name not in OF_ENGINES:
                    lines[key] += sample.value
    for family in families.values():
        family.samples = [
            s._replace(value=lines[s.name, tuple(sorted(s.labels.items()))]) for s in family.samples
        ]

    class All:
        def collect(self) -> list[Metric]:
            return list(families.values())

    return generate_latest(All()).decode()


# -- the others --


class AttachedHost(ModelHost):
    """A model whose engine the first process owns."""

    api = 0
    _told: Phase = "loading"

    def start(self) -> None:
        """Wait for the first process to say where the model is."""

    def note(self, state: State) -> None:
        """Take over what the first process knows."""
        self.reason = state.reason
        self.created = state.created
        self.restarts = state.restarts
        self._told = state.phase
        self._settle()

    def _settle(self) -> None:
        """Be ready once this process reaches the engine too."""
        if self._told != "ready" or (self._client is not None and self._client.lost is None):
            self._become(self._told)

    async def attach(self, connection: socket.socket) -> None:
        """Use another engine from now on."""
        link = EngineLink(self.name, self.api)
        await asyncio.get_running_loop().create_connection(lambda: link, sock=connection)
        with contextlib.suppress(EngineError):  # gone again
            self._ready = await link.client.ready
            self._client = link.client
            self._settle()

    async def close(self) -> None:
        """Leave the engine to the first process."""
        self._become("closed")
        self.references.shutdown(wait=False, cancel_futures=True)


class Owner(Others):
    """The first process, as the others know it."""

    def __init__(self, server: Server, api: int, lost: Callable[[], None]) -> None:
        super().__init__(server)
        self._hosts = {
            host.name: host for host in server.hosts.all if isinstance(host, AttachedHost)
        }
        for host in self._hosts.values():
            host.api = api
        connection = socket.socket(fileno=os.dup(0))
        self._control = Control(connection, self._answer, self._note, lost)
        self._tasks: set[asyncio.Task[None]] = set()

    def _note(self, message: State | Attach, descriptors: list[int]) -> None:
        host = self._hosts[message.name]
        if isinstance(message, State):
            host.note(message)
            return
        task = asyncio.create_task(host.attach(socket.socket(fileno=descriptors[0])))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _answer(self, ask: Ask) -> Answer:
        if ask.id is None:
            return Answer(ask.call, text=self.server.metrics.text())
        return Answer(ask.call, outcome=await self.server.outcomes.find(ask.id))

    async def metrics(self) -> str:
        """The metrics of all processes."""
        return (await self._control.ask(None, ASK_SECONDS)).text or self.server.metrics.text()

    async def outcome(self, id: str) -> Outcome | None:
        """The outcome of a request that another process has served."""
        return (await self._control.ask(id, ASK_SECONDS)).outcome


def read_start() -> tuple[Start, Counts]:
    """Read the orders of the first process."""
    with socket.socket(fileno=os.dup(0)) as connection:
        start = msgspec.json.decode(connection.recv(MESSAGE_BYTES), type=Start)
    return start, Counts(mmap.mmap(start.counts, 0), start.api)

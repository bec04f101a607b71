"""State of one server process, and what it shares with others. Routes reach it as
`request.app.state.server`."""

from __future__ import annotations

import asyncio
import mmap
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from starlette.requests import HTTPConnection

from stentor.errors import InvalidRequest
from stentor.host.installed import pip_install
from stentor.host.machine import cpus
from stentor.server.config import ServerConfig, value_at
from stentor.server.engines.attached import AttachedEngine
from stentor.server.engines.launch import EngineFactory, EngineGpu
from stentor.server.engines.lifecycle import OwnedEngine, Start
from stentor.server.engines.open_requests import OpenRequests
from stentor.server.limits import LIMITS, MIB, Limits
from stentor.server.metrics import Metrics
from stentor.server.model_hosts import GiveUp, ModelHost, ModelHosts, names
from stentor.server.speech.fields import VoiceResolver
from stentor.server.speech.outcomes import Outcome, Outcomes
from stentor.server.speech.plan import Planner
from stentor.server.voices.consents import ConsentStore
from stentor.server.voices.recordings import KnownVoices, Recordings
from stentor.server.voices.references import Fetcher, References, Resolver
from stentor.server.voices.store import DEFAULT_DIR, VoiceStore

if TYPE_CHECKING:
    from stentor.server.traces import Traces

SHARED = ("requests", "bodies", "sessions")


class Counts:
    """Counts of a server over all of its API processes: those that limits look at, and the open
    requests to each engine. Each process writes a row of its own, without a lock: two that check at
    once may each admit one more."""

    def __init__(
        self, engines: int = 1, memory: mmap.mmap | bytearray | None = None, row: int = 0
    ) -> None:
        """memory: `Counts.size` bytes that the processes share. row: the number of this process."""
        self._width = len(SHARED) + engines
        self._cells = memoryview(memory or bytearray(self.size(engines))).cast("q")
        self._row = row

    @staticmethod
    def size(engines: int, processes: int = 1) -> int:
        """Bytes of memory."""
        return 8 * (len(SHARED) + engines) * processes

    def add(self, name: str, count: int) -> None:
        """Add to this process's count."""
        self._cells[self._row * self._width + SHARED.index(name)] += count

    def total(self, name: str) -> int:
        """The count of all processes."""
        return sum(self._cells[SHARED.index(name) :: self._width])

    def open_requests(self, engine: int) -> OpenRequests:
        """Open requests to an engine, by its number."""
        return OpenRequests(self._cells[len(SHARED) + engine :: self._width], self._row)

    def clear(self, row: int) -> None:
        """Forget what a process that is gone had counted."""
        for i in range(self._width):
            self._cells[row * self._width + i] = 0


class Others:
    """The other API processes of a server, as one of them sees them. Here it is the only
    one."""

    def __init__(self, server: Server) -> None:
        self.server = server

    async def metrics(self) -> str:
        """The metrics of all processes, in Prometheus's text format."""
        return self.server.metrics.text()

    async def outcome(self, id: str) -> Outcome | None:
        """The outcome of a request that another process has served."""
        return None

    async def close(self) -> None:
        """Wait until they have ended, if this one is to."""


class Server:
    """The models, voices, metrics and pools that all routes share. There is one per app."""

    def __init__(
        self,
        config: ServerConfig,
        give_up: GiveUp = lambda code: None,
        start: Callable[[str, str | None], Start] | None = None,
        limits: Limits = LIMITS,
        outcomes: Outcomes | None = None,
        labels: Mapping[str, str] = MappingProxyType({}),
        counts: Counts | None = None,
        attached: int = 0,
        gpus: Sequence[EngineGpu] = (EngineGpu(),),
    ) -> None:
        """give_up(code) is called with an exit code when a model is lost for good.
        `start(name, model)` replaces how engines are started (tests). outcomes: where outcomes are
        kept, default in this process. labels: of every metric. counts: of all API processes.
        attached: the number of this process, if another has the engines. gpus: how engines share
        theirs, in their order."""
        self.config = config
        self.limits = limits
        self.counts = counts or Counts(len(config.engines))
        # the rest is for requests
        self.max_sessions = min(config.ws_max_sessions, limits.max_connections // 2)
        hosts = [ModelHost(name, config, give_up, limits) for name, _ in names(config)]
        if attached:
            for number, place in enumerate(config.engines):
                host = hosts[place.model]
                open_requests = self.counts.open_requests(number)
                host.engines.append(AttachedEngine(host, number, attached, open_requests))
        else:
            self._own_engines(hosts, start, gpus)
        self.hosts = ModelHosts(hosts, config.served_model_name[len(hosts) :])
        self.parsers = ThreadPoolExecutor(limits.parse_threads, thread_name_prefix="stentor-parse")
        if config.voices_dir:
            folder = Path(config.voices_dir)
        else:
            folder = DEFAULT_DIR
        self.voices = VoiceStore(folder, config.max_voices, config.voice_policy == "overwrite")
        self.consents = ConsentStore(folder, config.max_voices)
        self.known_voices = KnownVoices(self.voices)
        max_bytes = int(config.max_upload_mb * MIB)
        domains = config.allowed_media_domains
        fetcher = Fetcher(max_bytes, config.media_timeout, domains, Resolver(limits.dns_threads))
        references = References(
            fetcher, config.allow_remote_references, config.allowed_local_media_path
        )
        self.recordings = Recordings(references, self.voices)
        self.metrics = Metrics(self.hosts, self.recordings, labels)
        self.others = Others(self)
        self.outcomes = outcomes or Outcomes()
        self.planner = Planner(
            config, self.hosts, VoiceResolver(config.aliases, self.known_voices, self.recordings)
        )
        self.traces = _traces(config.otlp_traces_endpoint)
        self.encoders = ThreadPoolExecutor(cpus(), thread_name_prefix="stentor-encode")
        self.wyoming_port: int | None = None  # where it listens for Wyoming clients
        # set at shutdown: nothing new is accepted, running requests finish
        self.drain = asyncio.Event()
        # set when their time is over: what still runs ends with an error
        self.ended = asyncio.Event()

    def _own_engines(
        self,
        hosts: Sequence[ModelHost],
        start: Callable[[str, str | None], Start] | None,
        gpus: Sequence[EngineGpu],
    ) -> None:
        """Add the engines of each model, which this process starts."""
        # each engine of a device plans with the memory that those before have left
        loading: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        models = names(self.config)
        for number, place in enumerate(self.config.engines):
            name, model = models[place.model]
            if start is None:
                starting: Start = EngineFactory(
                    name,
                    model,
                    self.config,
                    number,
                    value_at(gpus, number),
                    self.counts.open_requests(number),
                )
            else:
                starting = start(name, model)
            host = hosts[place.model]
            host.engines.append(OwnedEngine(host, number, starting, loading[place.shared_device]))

    async def close(self) -> None:
        """Wait for the other API processes, then stop every engine and the encoder and parser
        threads."""
        await self.others.close()
        self.known_voices.close()
        await asyncio.gather(*(h.close() for h in self.hosts.all))
        for pool in (self.encoders, self.parsers):
            pool.shutdown(wait=False, cancel_futures=True)
        if self.traces is not None:
            await asyncio.to_thread(self.traces.close)


def _traces(endpoint: str | None) -> Traces | None:
    """Exporter of spans to this address. None: nobody wants any. InvalidRequest without
    OpenTelemetry."""
    if endpoint is None:
        return None
    try:
        from stentor.server.traces import Traces
    except ImportError as e:
        message = f"needs OpenTelemetry: {pip_install('traces')} ({e})"
        raise InvalidRequest("otlp_traces_endpoint", message) from None
    return Traces(endpoint)


def server(connection: HTTPConnection) -> Server:
    """The server that a request or a WebSocket belongs to."""
    state: Server = connection.app.state.server
    return state

"""State of one server process. Routes reach it as `request.app.state.server`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

from starlette.requests import HTTPConnection

from stentor.errors import InvalidRequest
from stentor.machine import cpus
from stentor.server.config import ServerConfig
from stentor.server.counts import Alone, Counts, Others
from stentor.server.limits import Limits
from stentor.server.metrics import Metrics
from stentor.server.model_factory import EngineFactory
from stentor.server.model_hosts import GiveUp, ModelHost, ModelHosts, Start, names
from stentor.server.speech.outcomes import Outcomes
from stentor.server.speech.plan import Planner
from stentor.server.voices.known import KnownVoices
from stentor.server.voices.recordings import Recordings
from stentor.server.voices.references import References
from stentor.server.voices.resolve import VoiceResolver
from stentor.server.voices.store import DEFAULT_DIR, VoiceStore

if TYPE_CHECKING:
    from stentor.server.traces import Traces


class Server:
    """The models, voices, metrics and pools that all routes share. There is one per app."""

    def __init__(
        self,
        config: ServerConfig,
        give_up: GiveUp,
        start: Callable[[str, str | None], Start] | None,
        limits: Limits,
        outcomes: Outcomes,
        labels: Mapping[str, str],
        counts: Counts,
        models: type[ModelHost],
    ) -> None:
        """start(name, model) replaces how engines are started (tests). counts: of all API processes. models: how
        this process knows them."""
        self.config, self.limits, self.counts = config, limits, counts
        self.most_sessions = min(config.ws_max_sessions, limits.max_connections // 2)  # the rest is for requests
        loading = asyncio.Lock()
        hosts = [
            models(
                name,
                EngineFactory(name, model, config, at) if start is None else start(name, model),
                config,
                give_up,
                loading,
                limits,
            )
            for at, (name, model) in enumerate(names(config))
        ]
        self.hosts = ModelHosts(hosts, config.served_model_name[len(hosts) :])
        self.parsers = ThreadPoolExecutor(limits.parse_threads, thread_name_prefix="stentor-parse")
        folder = Path(config.voices_dir) if config.voices_dir else DEFAULT_DIR
        self.voices = VoiceStore(folder, config.max_voices, config.voice_policy == "overwrite")
        self.known_voices = KnownVoices(self.voices)
        self.recordings = Recordings(References(config), self.voices)
        self.metrics = Metrics(self.hosts, self.recordings, labels)
        self.others: Others = Alone(self.metrics)
        self.outcomes = outcomes
        self.planner = Planner(config, self.hosts, VoiceResolver(config, self.known_voices, self.recordings))
        self.traces = _traces(config.otlp_traces_endpoint)
        self.encoders = ThreadPoolExecutor(cpus(), thread_name_prefix="stentor-encode")
        self.wyoming_port: int | None = None  # where it listens for Wyoming clients
        self.drain = asyncio.Event()  # set at shutdown: nothing new is accepted, running requests finish
        self.ended = asyncio.Event()  # set when their time is over: what still runs ends with an error

    async def close(self) -> None:
        """Wait for the other API processes, then stop every engine and the encoder and parser threads."""
        await self.others.close()
        self.known_voices.close()
        await asyncio.gather(*(h.close() for h in self.hosts.all))
        for pool in (self.encoders, self.parsers):
            pool.shutdown(wait=False, cancel_futures=True)
        if self.traces is not None:
            await asyncio.to_thread(self.traces.close)


def _traces(endpoint: str | None) -> Traces | None:
    """Exporter of spans to this address. None: nobody wants any. InvalidRequest without OpenTelemetry."""
    if endpoint is None:
        return None
    try:
        from stentor.server.traces import Traces
    except ImportError as e:
        message = f"needs OpenTelemetry: pip install 'stentor[traces]' ({e})"
        raise InvalidRequest("otlp_traces_endpoint", message) from None
    return Traces(endpoint)


def server(connection: HTTPConnection) -> Server:
    """The server that a request or a WebSocket belongs to."""
    held: Server = connection.app.state.server
    return held

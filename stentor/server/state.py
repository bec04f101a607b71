"""What one server process holds. Routes reach it as `request.app.state.server`."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from starlette.requests import HTTPConnection

from stentor.api import TTS
from stentor.server.config import ServerConfig
from stentor.server.limits import LIMITS
from stentor.server.loader import Loader, cpu_share
from stentor.server.metrics import Metrics
from stentor.server.model_hosts import GiveUp, ModelHost, ModelHosts, names
from stentor.server.speech.outcomes import Outcomes
from stentor.server.speech.plan import Planner
from stentor.server.voices.known import KnownVoices
from stentor.server.voices.recordings import Recordings
from stentor.server.voices.references import References
from stentor.server.voices.resolve import VoiceResolver
from stentor.server.voices.store import DEFAULT_DIR, VoiceStore


class Server:
    """The models, voices, metrics and pools that all routes share. There is one per app."""

    def __init__(
        self,
        config: ServerConfig,
        give_up: GiveUp,
        load: Callable[[str, str | None], Callable[[], TTS]],
        outcomes: Outcomes,
        labels: Mapping[str, str],
    ) -> None:
        self.config = config
        self.loader = Loader(cpu_share(len(config.models)))
        self.parsers = ThreadPoolExecutor(LIMITS.parse_threads, thread_name_prefix="stentor-parse")
        shared = config, give_up, self.loader, self.parsers
        hosts = [ModelHost(name, load(name, model), *shared) for name, model in names(config)]
        self.hosts = ModelHosts(hosts, config.served_model_name[len(hosts) :])
        folder = Path(config.voices_dir) if config.voices_dir else DEFAULT_DIR
        self.voices = VoiceStore(folder, config.max_voices, config.voice_policy == "overwrite")
        self.known_voices = KnownVoices(self.voices)
        self.recordings = Recordings(References(config), self.voices)
        self.metrics = Metrics(self.hosts, self.recordings, labels)
        self.outcomes = outcomes
        self.planner = Planner(config, self.hosts, VoiceResolver(config, self.known_voices, self.recordings))
        self.encoders = ThreadPoolExecutor(os.cpu_count() or 1, thread_name_prefix="stentor-encode")
        self.drain = asyncio.Event()  # set at shutdown: nothing new is accepted, running requests finish
        self.ended = asyncio.Event()  # set when their time is over: what still runs ends with an error

    async def close(self) -> None:
        """Stop every engine and the encoder and parser threads."""
        self.known_voices.close()
        await asyncio.gather(*(h.close() for h in self.hosts.all))
        self.loader.close()
        for pool in (self.encoders, self.parsers):
            pool.shutdown(wait=False, cancel_futures=True)


def server(connection: HTTPConnection) -> Server:
    """The server that a request or a WebSocket belongs to."""
    held: Server = connection.app.state.server
    return held

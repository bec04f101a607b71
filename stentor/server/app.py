"""The application: what a server process holds, and the FastAPI app around it."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware

import stentor
from stentor.api import TTS
from stentor.server import errors
from stentor.server.config import ServerConfig
from stentor.server.http import routes_info, routes_page, routes_speech, routes_voices
from stentor.server.http.middleware import Gate
from stentor.server.http.responses import Kitchen
from stentor.server.metrics import Metrics
from stentor.server.model_hosts import Host, Hosts, Load, names
from stentor.server.speech.outcomes import Outcomes
from stentor.server.speech.plan import Planner
from stentor.server.voices.references import References
from stentor.server.voices.store import DEFAULT_DIR, VoiceStore
from stentor.server.ws import session

EXPOSED = [
    "X-Request-Id", "X-Seed", "X-Sample-Rate", "X-Channels", "X-Bit-Depth", "X-Finish-Reason", "X-Audio-Duration",
    "X-Usage-Input-Tokens", "X-Usage-Output-Tokens", "X-Usage-Total-Tokens", "Server-Timing", "Retry-After",
]  # fmt: skip


class Server:
    """Everything the routes share. One per app; routes reach it as `request.app.state.server`."""

    def __init__(
        self, config: ServerConfig, give_up: Callable[[], None], load: Callable[[str, str | None], Callable[[], TTS]]
    ) -> None:
        self.config = config
        hosts = [Host(name, load(name, model), config, give_up) for name, model in names(config)]
        self.hosts = Hosts(hosts, config.served_model_name[len(hosts) :])
        folder = Path(config.voices_dir) if config.voices_dir else DEFAULT_DIR
        self.voices = VoiceStore(folder, config.max_voices, config.voice_policy == "overwrite")
        self.references = References(config)
        self.metrics = Metrics(self.hosts, self.references)
        self.outcomes = Outcomes()
        self.planner = Planner(config, self.hosts, self.voices, self.references)
        self.encoders = ThreadPoolExecutor(os.cpu_count() or 1, thread_name_prefix="stentor-encode")
        self.kitchen = Kitchen(config, self.metrics, self.outcomes, self.encoders)
        self.drain = asyncio.Event()  # set when no new work is taken and what runs may end

    async def close(self) -> None:
        await asyncio.gather(*(h.close() for h in self.hosts.all))
        self.encoders.shutdown(wait=False, cancel_futures=True)


def create_app(
    config: ServerConfig,
    give_up: Callable[[], None] = lambda: None,
    load: Callable[[str, str | None], Callable[[], TTS]] | None = None,
) -> FastAPI:
    """An ASGI app that loads its models when it starts.

    give_up() is called when a model has crashed for good. `load(name, model)` replaces how models are made (tests).
    """
    server = Server(config, give_up, load or (lambda name, model: Load(name, model, config)))

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        for host in server.hosts.all:
            host.start()
        yield
        await server.close()

    cors = Middleware(
        CORSMiddleware,
        allow_origins=list(config.allowed_origins),
        allow_methods=["*"],
        allow_headers=["*"],
        expose_headers=EXPOSED,
    )
    app = FastAPI(
        title="stentor",
        version=stentor.__version__,
        summary="Speech in OpenAI's API and beyond",
        lifespan=lifespan,
        root_path=config.root_path,
        middleware=[
            *([cors] if config.allowed_origins else []),
            Middleware(Gate, config=config, note=server.metrics.answered),
        ],
        docs_url=None,  # FastAPI's pages load scripts from elsewhere
        redoc_url=None,
    )
    app.state.server = server
    errors.install(app)
    for part in (routes_speech, routes_voices, routes_info, routes_page, session):
        app.include_router(part.router)
    app.openapi = lambda: openapi(app)  # type: ignore[method-assign]
    return app


def openapi(app: FastAPI) -> dict[str, Any]:
    """The OpenAPI description: FastAPI's, with our errors (400 in OpenAI's envelope) in place of its 422."""
    if app.openapi_schema is None:
        made = get_openapi(title=app.title, version=app.version, summary=app.summary, routes=app.routes)
        for operations in made["paths"].values():
            for operation in operations.values():
                operation["responses"].pop("422", None)
        for name in ("HTTPValidationError", "ValidationError"):
            made.get("components", {}).get("schemas", {}).pop(name, None)
        made["components"]["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
        made["security"] = [{}, {"key": []}]
        app.openapi_schema = made
    return app.openapi_schema

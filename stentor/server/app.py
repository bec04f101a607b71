"""The FastAPI app around a `state.Server`: middleware, routes and the OpenAPI description."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from types import MappingProxyType
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware

import stentor
from stentor.server import errors
from stentor.server.config import ServerConfig
from stentor.server.counts import Counts
from stentor.server.doors.elevenlabs import routes as elevenlabs
from stentor.server.doors.elevenlabs import sockets as elevenlabs_sockets
from stentor.server.doors.realtime import session as realtime
from stentor.server.http import routes_info, routes_lora, routes_page, routes_speech, routes_voices
from stentor.server.http.authentication import Authentication, Preflight
from stentor.server.http.bodies import RequestLimits
from stentor.server.http.hosts import AllowedHosts, Forwarded, hosts
from stentor.server.http.middleware import HeadAsGet, RequestIds, RootPath
from stentor.server.limits import LIMITS, Limits
from stentor.server.logs import AccessLog
from stentor.server.model_hosts import GiveUp, ModelHost, Start
from stentor.server.speech.outcomes import Outcomes
from stentor.server.state import Server
from stentor.server.ws import session

EXPOSED = [
    "X-Request-Id",
    "X-Seed",
    "X-Sample-Rate",
    "X-Channels",
    "X-Bit-Depth",
    "X-Finish-Reason",
    "X-Audio-Duration",
    "X-Usage-Input-Tokens",
    "X-Usage-Output-Tokens",
    "X-Usage-Total-Tokens",
    "X-Ignored",
    "X-Provenance",
    "Server-Timing",
    "Retry-After",
]


def create_app(
    config: ServerConfig,
    give_up: GiveUp = lambda code: None,
    start: Callable[[str, str | None], Start] | None = None,
    limits: Limits = LIMITS,
    outcomes: Outcomes | None = None,
    labels: Mapping[str, str] = MappingProxyType({}),
    counts: Counts | None = None,
    models: type[ModelHost] = ModelHost,
) -> FastAPI:
    """An ASGI app that loads its models when it starts.

    give_up(code) is called with an exit code when a model is lost for good. `start(name, model)` replaces how engines
    are started (tests). outcomes: where outcomes are kept, default in this process. labels: of every metric. counts,
    models: of a server with several API processes.
    """
    server = Server(config, give_up, start, limits, outcomes or Outcomes(), labels, counts or Counts(), models)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        for host in server.hosts.all:
            host.start()
        async with wyoming(server):
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
        middleware=[
            *([Middleware(Forwarded, proxies=proxies)] if (proxies := config.forwarded_allow_ips) else []),
            Middleware(RootPath, root_path=config.root_path),
            Middleware(Preflight, allowed_origins=config.allowed_origins),
            *([cors] if config.allowed_origins else []),
            Middleware(RequestIds, on_response=server.metrics.count_response),
            *([Middleware(AccessLog)] if config.log_requests else []),
            *([Middleware(AllowedHosts, names=names)] if (names := hosts(config)) is not None else []),
            Middleware(Authentication, config=config),
            Middleware(RequestLimits, config=config, limits=limits, counts=server.counts, ended=server.ended),
            Middleware(HeadAsGet),
        ],
        docs_url=None,  # routes_page.py has one that loads nothing from elsewhere
        redoc_url=None,
    )
    app.state.server = server
    errors.install(app)
    app.include_router(elevenlabs.models_router)  # before the other /v1/models
    doors = (elevenlabs, elevenlabs_sockets, realtime)
    for part in (routes_speech, *doors, routes_voices, routes_lora, routes_info, routes_page, session):
        app.include_router(part.router)
    app.openapi = lambda: openapi(app)  # type: ignore[method-assign]
    return app


@asynccontextmanager
async def wyoming(server: Server) -> AsyncIterator[None]:
    """Take Wyoming clients meanwhile, if the server is to."""
    if server.config.wyoming_port is None:
        yield
        return
    from stentor.server.doors.wyoming.listener import WyomingListener

    listener = WyomingListener(server)
    await listener.start()
    server.wyoming_port = listener.port
    try:
        yield
    finally:
        await listener.close()


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

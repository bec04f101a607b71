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
from stentor.api import TTS
from stentor.server import errors
from stentor.server.config import ServerConfig
from stentor.server.http import routes_info, routes_lora, routes_page, routes_speech, routes_voices
from stentor.server.http.authentication import Authentication, Preflight
from stentor.server.http.middleware import RequestIds, RequestLimits, RootPath, Starts
from stentor.server.limits import LIMITS, Limits
from stentor.server.logs import AccessLog
from stentor.server.model_factory import ModelFactory
from stentor.server.model_hosts import GiveUp, names
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
    "Server-Timing",
    "Retry-After",
]


def create_app(
    config: ServerConfig,
    give_up: GiveUp = lambda code: None,
    load: Callable[[str, str | None], Callable[[], TTS]] | None = None,
    limits: Limits = LIMITS,
    outcomes: Outcomes | None = None,
    labels: Mapping[str, str] = MappingProxyType({}),
) -> FastAPI:
    """An ASGI app that loads its models when it starts.

    give_up(code) is called with an exit code when a model is lost for good. `load(name, model)` replaces how models
    are made (tests). outcomes: where outcomes are kept, default in this process. labels: of every metric.
    """
    places = [name for name, _ in names(config)]
    make = load or (lambda name, model: ModelFactory(name, model, config, places.index(name)))
    server = Server(config, give_up, make, outcomes or Outcomes(), labels)

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
        middleware=[
            Middleware(RootPath, root_path=config.root_path),
            Middleware(Preflight, allowed_origins=config.allowed_origins),
            *([cors] if config.allowed_origins else []),
            Middleware(RequestIds, on_response=server.metrics.count_response, starts=Starts(server.hosts.arriving)),
            *([Middleware(AccessLog)] if config.log_requests else []),
            Middleware(Authentication, config=config),
            Middleware(RequestLimits, config=config, limits=limits, ended=server.ended),
        ],
        docs_url=None,  # routes_page.py has one that loads nothing from elsewhere
        redoc_url=None,
    )
    app.state.server = server
    errors.install(app)
    for part in (routes_speech, routes_voices, routes_lora, routes_info, routes_page, session):
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

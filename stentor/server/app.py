"""The FastAPI app around a `state.Server`: middleware, routes and the OpenAPI description."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware

import stentor
from stentor.server import errors
from stentor.server.config import ServerConfig
from stentor.server.doors.elevenlabs import routes as elevenlabs
from stentor.server.doors.elevenlabs import sockets as elevenlabs_sockets
from stentor.server.doors.realtime import session as realtime
from stentor.server.http import (
    middleware,
    routes_consents,
    routes_info,
    routes_lora,
    routes_page,
    routes_speech,
    routes_voices,
)
from stentor.server.http.bodies import RequestLimits
from stentor.server.http.titles import TITLES
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


def create_app(config: ServerConfig, server: Server | None = None) -> FastAPI:
    """An ASGI app that loads its models when it starts. server: its state, where that is not the
    usual one."""
    server = server or Server(config)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        for host in server.hosts.all:
            host.start()
        async with AsyncExitStack() as doors:
            if config.wyoming_port is not None:
                from stentor.server.doors.wyoming import listening

                await doors.enter_async_context(listening(server))
            if config.wyoming_zeroconf is not None:
                from stentor.server.doors.discovery import announced

                assert server.wyoming_port is not None
                announcement = announced(config.wyoming_zeroconf, config.host, server.wyoming_port)
                await doors.enter_async_context(announcement)
            yield
        await server.close()

    cors = Middleware(
        CORSMiddleware,
        allow_origins=list(config.allowed_origins),
        allow_methods=["*"],
        allow_headers=["*"],
        expose_headers=EXPOSED,
        allow_private_network=True,  # of the allowed origins: the only ones that get here
    )
    app = FastAPI(
        title="stentor",
        version=stentor.__version__,
        summary="Speech in OpenAI's API and beyond",
        lifespan=lifespan,
        middleware=[
            *(
                [Middleware(middleware.Forwarded, proxies=proxies)]
                if (proxies := config.forwarded_allow_ips)
                else []
            ),
            Middleware(middleware.RootPath, root_path=config.root_path),
            Middleware(middleware.Preflight, allowed_origins=config.allowed_origins),
            *([cors] if config.allowed_origins else []),
            Middleware(middleware.RequestIds, on_response=server.metrics.count_response),
            *([Middleware(middleware.AccessLog)] if config.log_requests else []),
            *(
                [Middleware(middleware.AllowedHosts, names=names)]
                if (names := middleware.hosts(config)) is not None
                else []
            ),
            Middleware(middleware.Authentication, config=config),
            Middleware(
                RequestLimits,
                config=config,
                limits=server.limits,
                counts=server.counts,
                ended=server.ended,
            ),
            Middleware(middleware.HeadAsGet),
        ],
        docs_url=None,  # routes_page.py has one that loads nothing from elsewhere
        redoc_url=None,
    )
    app.state.server = server
    errors.install(app)
    # before routes_info: ElevenLabs has a /v1/models too
    doors = (elevenlabs, elevenlabs_sockets, realtime)
    for part in (
        routes_speech,
        *doors,
        routes_consents,
        routes_voices,
        routes_lora,
        routes_info,
        routes_page,
        session,
    ):
        app.include_router(part.router)
    app.openapi = lambda: openapi(app)  # type: ignore[method-assign]
    return app


def openapi(app: FastAPI) -> dict[str, Any]:
    """The OpenAPI description: FastAPI's, with our errors (400 in OpenAI's envelope) in place of
    its 422."""
    if app.openapi_schema is None:
        schema = get_openapi(
            title=app.title, version=app.version, summary=app.summary, routes=app.routes
        )
        for path, operations in schema["paths"].items():
            for method, operation in operations.items():
                operation["responses"].pop("422", None)
                operation["summary"] = TITLES.get((method.upper(), path), operation["summary"])
        for name in ("HTTPValidationError", "ValidationError"):
            schema.get("components", {}).get("schemas", {}).pop(name, None)
        schema["components"]["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
        schema["security"] = [{}, {"key": []}]
        app.openapi_schema = schema
    return app.openapi_schema

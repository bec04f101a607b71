"""Running a server process: sockets, signals, exit codes."""

from __future__ import annotations

import asyncio
import errno
import logging
import math
import os
import signal
import socket
import ssl
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any

import uvicorn
from fastapi import FastAPI

from stentor.host import machine
from stentor.server import logs
from stentor.server.api_processes import ApiProcesses, AttachedHost, Owner, read_start
from stentor.server.app import create_app
from stentor.server.config import ServerConfig
from stentor.server.engines.process import CRASHED
from stentor.server.http.connections import Connection, fitted, limited
from stentor.server.limits import LIMITS, Limits
from stentor.server.model_hosts import ModelHost
from stentor.server.state import Server

log = logging.getLogger("stentor.server")

GPU = Path("/dev/nvidia0")  # this process imports no torch
MANY = 4  # API processes, and the CPUs of a machine that has them
MANY_CPUS = 16
END_SECONDS = (
    LIMITS.end_seconds
)  # for the last words to clients whose requests have not ended in time


class _Uvicorn(uvicorn.Server):
    """uvicorn that lets everything end with an answer when it shuts down, and records whether a model was lost."""

    lost: int | None = None  # the exit code, once a model is lost
    hurried = False  # nobody wants to wait for what runs
    held: Server
    processes: ApiProcesses | None = None  # the others, where there are and this is the first
    owner_api = 0  # the number of this process, where it is one of the others

    def give_up(self, code: int) -> None:
        """End the process with this exit code, because a model is lost for good."""
        self.lost = code
        self.should_exit = True

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        if self.processes is not None:
            self.processes.start(self.held)
        elif self.owner_api:
            self.held.others = Owner(self.held, self.owner_api, lambda: os._exit(CRASHED))
        await super().startup(sockets)
        for listening in sockets or ():  # more may wait than are accepted at once
            listening.listen(LIMITS.backlog)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Accept nothing more, wait until requests and WebSocket sessions have finished, then let uvicorn close.

        uvicorn alone closes WebSockets at once. It waits only for HTTP requests, and cancels them without an answer.
        So what still runs at the deadline, or at a second SIGINT, is told to end, and has `END_SECONDS` to say so to
        its client."""
        for server in self.servers:
            server.close()
        self.held.drain.set()
        await self._served(self.config.timeout_graceful_shutdown or 0, lambda: self.hurried)
        self.held.ended.set()
        await self._served(END_SECONDS, lambda: self.force_exit)
        for connection in list(self.server_state.connections):
            connection.transport.abort()
        await self._served(END_SECONDS, lambda: not self.server_state.connections)
        self.config.timeout_graceful_shutdown = math.ceil(END_SECONDS)
        await super().shutdown(sockets)

    async def _served(self, seconds: float, given_up: Callable[[], bool]) -> None:
        """Wait until nothing is served any more, for so long, or until nobody wants to wait."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + seconds
        while self._serves() and loop.time() < deadline and not given_up():
            await asyncio.sleep(0.05)

    def _serves(self) -> bool:
        """Close HTTP connections, those with a request behind its answer. Whether any connection is left."""
        for connection in list(self.server_state.connections):
            if isinstance(connection, Connection):
                connection.shutdown()
        return bool(
            self.server_state.connections or self.server_state.tasks or self.held.metrics.sessions
        )

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        again = self.should_exit and sig == signal.SIGINT
        if again:
            rest = "ending running requests"
        else:
            rest = "waiting for running requests (again to end them)"
        log.info("%s: stopping; %s", signal.Signals(sig).name, rest)
        # uvicorn's handler raises the signal again at the end, which would change the exit code
        self.force_exit = again and self.hurried
        self.hurried = again or self.hurried
        self.should_exit = True


def serve(config: ServerConfig) -> int:
    """Serve until SIGTERM or SIGINT, then finish running requests. Returns the process's exit code."""
    logs.configure(config.uvicorn_log_level, config.log_format)
    config = replace(config, api_processes=config.api_processes or usual_api_processes(config))
    try:
        tls = tls_context(config)
    except OSError as e:
        log.error("the certificate or its key cannot be used: %s", e)
        return 1
    try:
        port = config.wyoming_port or 0
        for tried in (
            _sockets(config, port) if port else ()
        ):  # each process takes it by itself, later
            tried.close()
        port = config.port
        sockets = _sockets(config, port)
    except OSError as e:
        log.error("cannot listen on %s port %d: %s", config.host, port, e.strerror)
        return 1
    if sockets:
        port = sockets[0].getsockname()[1]
    else:
        port = config.port
    if config.api_processes <= 1:
        processes = None
    else:
        processes = ApiProcesses(config, port)
    limits = fitted(LIMITS)
    if processes is None:
        counts = None
    else:
        counts = processes.counts

    def give_up(code: int) -> None:
        server.give_up(code)

    server = _configured(Server(config, give_up, limits=limits, counts=counts), tls)
    server.processes = processes
    if config.uds is not None:
        log.info("running on unix socket %s; loading models", config.uds)
    else:
        if ":" in config.host:
            host = f"[{config.host}]"
        else:
            host = config.host
        url = f"{'http' if tls is None else 'https'}://{host}:{port}"
        log.info("running on %s; loading models", url)
        _say_when_ready(server.held.hosts.all, url)
    return _run(server, sockets or None)


def usual_api_processes(config: ServerConfig) -> int:
    """API processes where none are asked for. A GPU makes more streams than one event loop sends (docs/scaling.md)."""
    gpu = config.device != "cpu" and GPU.exists()
    if gpu and machine.cpus() >= MANY_CPUS and config.wants_one_process() is None:
        return MANY
    return 1


def _say_when_ready(hosts: Sequence[ModelHost], url: str) -> None:
    """Log where to go, once all models have been loaded."""
    loading = set(hosts)

    def changed(host: ModelHost) -> None:
        if host.serves and host in loading:
            loading.discard(host)
            if not loading:
                log.info("Ready. Page: %s  API: %s/v1  Docs: %s/docs", url, url, url)

    for host in hosts:
        host.listeners.append(changed)


def tls_context(config: ServerConfig) -> ssl.SSLContext | None:
    """How connections are encrypted. None: they are not. OSError if a file cannot be read or is none of its kind."""
    if config.ssl_certfile is None:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=config.ssl_ca_certs)
    context.options |= ssl.OP_NO_RENEGOTIATION  # a handshake costs the server more than the client
    context.load_cert_chain(config.ssl_certfile, config.ssl_keyfile)
    if config.ssl_ca_certs is not None:
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def _sockets(config: ServerConfig, port: int) -> list[socket.socket]:
    """Sockets on every address of the host that this machine has, which other API processes share. None for a unix
    socket, which uvicorn makes. OSError if there is no address to be had, or one is in use."""
    if config.uds is not None:
        return []
    made = list[socket.socket]()
    why = list[OSError]()
    for family, kind, protocol, _, address in socket.getaddrinfo(
        config.host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    ):
        found = socket.socket(family, kind, protocol)
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if config.api_processes > 1:
            found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        if family == socket.AF_INET6:
            found.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        try:
            found.bind((address[0], port, *address[2:]))
        except OSError as e:  # such as ::1 in a container
            found.close()
            why.append(e)
            continue
        port = port or found.getsockname()[1]
        made.append(found)
    in_use = [e for e in why if e.errno == errno.EADDRINUSE]
    if in_use or not made:
        for found in made:
            found.close()
        raise (in_use or why)[0]
    return made


def _configured(held: Server, tls: ssl.SSLContext | None) -> _Uvicorn:
    server = _Uvicorn(uvicorn_config(create_app(held.config, held), held.config, held.limits, tls))
    server.held = held
    return server


def uvicorn_config(
    app: FastAPI,
    config: ServerConfig,
    limits: Limits = LIMITS,
    tls: ssl.SSLContext | None = None,
    **more: Any,
) -> uvicorn.Config:
    """How uvicorn serves an app. more: other settings of its (tests)."""
    settings = {
        "http": limited(limits, tls),
        "uds": config.uds,
        "backlog": limits.accepted_at_once,
        "log_level": "warning"
        if config.uvicorn_log_level == "info"
        else config.uvicorn_log_level,  # we tell of starts
        "log_config": None,
        "loop": "asyncio",  # whatever is installed: uvloop is no faster here (docs/decisions.md)
        "access_log": False,  # logs.AccessLog writes it
        "server_header": False,
        "proxy_headers": False,  # hosts.Forwarded reads them
        "timeout_graceful_shutdown": config.drain_seconds,
        "timeout_keep_alive": int(limits.keep_alive_seconds),
        "ws_max_size": limits.ws_config_mb << 20,
        "ws_per_message_deflate": False,  # audio does not shrink
        "h11_max_incomplete_event_size": limits.max_head_kib << 10,
    }
    return uvicorn.Config(app, **{**settings, **more})


def _run(server: _Uvicorn, sockets: list[socket.socket] | None = None) -> int:
    """Run it to its end. Returns the process's exit code."""
    machine.one_thread_for_numpy()
    try:
        server.run(sockets)
    except KeyboardInterrupt:
        return 0
    except SystemExit as e:  # uvicorn's own: the address is in use, the certificate is bad
        if e.code in (None, 0):
            return 1
        if isinstance(e.code, int):
            return int(e.code)
        return 1
    if server.lost is not None:
        log.error("a model could not be loaded, or did not stay up; exit code %d", server.lost)
        return server.lost
    if server.started:
        return 0
    return 1


def _serve_beside() -> int:
    """Serve as a further API process, as the first one says on standard input, until it ends or is gone."""
    start, counts = read_start()
    config = start.config
    logs.configure(config.uvicorn_log_level, config.log_format)
    held = Server(config, limits=fitted(LIMITS), counts=counts, models=AttachedHost)
    server = _configured(held, tls_context(config))
    server.owner_api = start.api
    return _run(server, _sockets(config, start.port))


if __name__ == "__main__":
    sys.exit(_serve_beside())

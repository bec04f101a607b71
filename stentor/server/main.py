"""Running a server process: sockets, signals, exit codes."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import math
import os
import socket
import ssl
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import uvicorn
from fastapi import FastAPI

from stentor.host import machine
from stentor.server import logs, status_line
from stentor.server.api_processes import ApiProcesses, Owner, read_start
from stentor.server.app import create_app
from stentor.server.config import ServerConfig
from stentor.server.engines import mps
from stentor.server.engines.launch import EngineGpu
from stentor.server.engines.model_engine import ModelEngine
from stentor.server.http.connections import Connection, fitted, limited
from stentor.server.limits import LIMITS, Limits
from stentor.server.model_hosts import ModelHost
from stentor.server.state import Server
from stentor.server.stop_signals import CRASHED, StopSignals

log = logging.getLogger("stentor.server")

GPU = Path("/dev/nvidia0")  # this process imports no torch
GPU_API_PROCESSES = 4
GPU_MIN_CPUS = 16  # for as many API processes
POLL_SECONDS = 0.05


class _Uvicorn(uvicorn.Server):
    """uvicorn that answers every request before it shuts down, and records whether a model was
    lost."""

    def __init__(self, config: uvicorn.Config, state: Server, stop: StopSignals) -> None:
        super().__init__(config)
        self.state = state
        self.stop = stop
        self.exit_code: int | None = None  # once a model is lost
        self.processes: ApiProcesses | None = None  # the others, if this is the first of several
        self.api = 0  # the number of this process, if it is one of the others

    def give_up(self, code: int) -> None:
        """End the process with this exit code, because a model is lost for good."""
        self.exit_code = code
        self.stop.request()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave the signals to `StopSignals`, which has them before uvicorn starts and after it has
        ended."""
        yield

    async def main_loop(self) -> None:
        if self.api or self.state.config.log_format == "json":
            await super().main_loop()
            return
        with status_line.shown(sys.stderr, logging.getLogger().handlers, self.state.others.metrics):
            await super().main_loop()

    async def on_tick(self, counter: int) -> bool:
        self.should_exit = self.should_exit or self.stop.requested
        return await super().on_tick(counter)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        if self.processes is not None:
            self.processes.start(self.state)
        elif self.api:
            self.state.others = Owner(self.state, lambda: os._exit(CRASHED))
        await super().startup(sockets)
        for listening in sockets or ():  # more may wait than are accepted at once
            listening.listen(LIMITS.backlog)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Accept nothing more, wait until requests and WebSocket sessions have finished, then have
        uvicorn close.

        uvicorn closes WebSockets at once and cancels HTTP requests without an answer. Here both
        have `--drain-seconds`, or until a second SIGINT. What still runs then is ended with an
        error, which its client has `Limits.end_seconds` to read."""
        if self.stop.signal is not None:
            name = self.stop.signal.name
            log.info("%s: stopping; waiting for running requests (again to end them)", name)
        for server in self.servers:
            server.close()

        self.state.drain.set()
        await self._idle(self.config.timeout_graceful_shutdown or 0, lambda: self.stop.hurried)
        if self.stop.hurried:
            log.info("ending running requests")
        self.state.ended.set()
        await self._idle(LIMITS.end_seconds, lambda: self.stop.forced)

        for connection in list(self.server_state.connections):
            connection.transport.abort()
        await self._idle(LIMITS.end_seconds, lambda: not self.server_state.connections)

        self.force_exit = self.stop.forced
        self.config.timeout_graceful_shutdown = math.ceil(LIMITS.end_seconds)
        await super().shutdown(sockets)

    async def _idle(self, seconds: float, abandoned: Callable[[], bool]) -> None:
        """Wait until nothing is served, for at most `seconds` or until `abandoned`."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + seconds
        while self._serves() and loop.time() < deadline and not abandoned():
            await asyncio.sleep(POLL_SECONDS)

    def _serves(self) -> bool:
        """Close idle HTTP connections, the others after their answer. Returns whether anything is
        left."""
        for connection in list(self.server_state.connections):
            if isinstance(connection, Connection):
                connection.shutdown()
        return bool(
            self.server_state.connections or self.server_state.tasks or self.state.metrics.sessions
        )


def serve(config: ServerConfig, stop: StopSignals) -> int:
    """Serve until SIGTERM or SIGINT, then finish running requests. Returns the process's exit
    code."""
    code = _serve(config, stop)
    stop.finish(code)
    return code


def _serve(config: ServerConfig, stop: StopSignals) -> int:
    logs.configure(config.uvicorn_log_level, config.log_format)
    stop.watch(config.drain_seconds, LIMITS.exit_seconds)
    config = replace(config, api_processes=config.api_processes or default_api_processes(config))
    try:
        tls = tls_context(config)
    except OSError as e:
        log.error("invalid TLS certificate or key: %s", e)
        return 1
    try:
        sockets = _reserved(config)
    except _CannotListen as e:
        log.error("%s", e)
        return 1

    port = sockets[0].getsockname()[1] if sockets else config.port
    with contextlib.closing(mps.begin(config)) as sharing:
        server = _first(config, port, tls, stop, sharing.engines)
        _announce(config, port, tls is not None, server.state.hosts.all)
        return _run(server, sockets or None)


def _first(
    config: ServerConfig,
    port: int,
    tls: ssl.SSLContext | None,
    stop: StopSignals,
    gpus: Sequence[EngineGpu],
) -> _Uvicorn:
    """The server of the first process, which has the engines and starts other API processes."""
    processes = None
    counts = None
    if config.api_processes > 1:
        processes = ApiProcesses(config, port, stop)
        counts = processes.counts

    def give_up(code: int) -> None:
        server.give_up(code)

    state = Server(config, give_up, limits=fitted(LIMITS), counts=counts, gpus=gpus)
    stop.kills += [host.kill for host in state.hosts.all]
    if processes is not None:
        stop.kills.append(processes.kill)
    server = _configured(state, tls, stop)
    server.processes = processes
    return server


def default_api_processes(config: ServerConfig) -> int:
    """API processes if the flag is not set. A GPU makes more streams than one event loop sends
    (docs/scaling.md)."""
    gpu = config.uses_gpus and GPU.exists()
    if gpu and machine.cpus() >= GPU_MIN_CPUS and config.wants_one_process() is None:
        return GPU_API_PROCESSES
    return 1


def _announce(config: ServerConfig, port: int, tls: bool, hosts: Sequence[ModelHost]) -> None:
    """Log the address, and the pages once all models have been loaded."""
    if config.uds is not None:
        log.info("running on unix socket %s; loading models", config.uds)
        return
    scheme = "https" if tls else "http"
    name = f"[{config.host}]" if ":" in config.host else config.host
    url = f"{scheme}://{name}:{port}"
    log.info("running on %s; loading models", url)
    loading = set(hosts)

    def changed(engine: ModelEngine) -> None:
        host = engine.host
        if host.serves and host in loading:
            loading.discard(host)
            if not loading:
                log.info("Ready. Page: %s  API: %s/v1  Docs: %s/docs", url, url, url)

    for host in hosts:
        host.listeners.append(changed)


def tls_context(config: ServerConfig) -> ssl.SSLContext | None:
    """The context for TLS, None without a certificate. OSError if a file is missing or none of its
    kind."""
    if config.ssl_certfile is None:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=config.ssl_ca_certs)
    context.options |= ssl.OP_NO_RENEGOTIATION  # a handshake costs the server more than the client
    context.load_cert_chain(config.ssl_certfile, config.ssl_keyfile)
    if config.ssl_ca_certs is not None:
        context.verify_mode = ssl.CERT_REQUIRED
    return context


class _CannotListen(Exception):
    """A port that cannot be had."""


def _reserved(config: ServerConfig) -> list[socket.socket]:
    """Sockets for HTTP, after a check that the port for Wyoming is free too: each process takes
    that one later."""
    ports = [config.port]
    if config.wyoming_port:
        ports.insert(0, config.wyoming_port)
    sockets: list[socket.socket] = []
    for port in ports:
        for checked in sockets:
            checked.close()
        try:
            sockets = _sockets(config, port)
        except OSError as e:
            raise _CannotListen(
                f"cannot listen on {config.host} port {port}: {e.strerror}"
            ) from None
    return sockets


def _sockets(config: ServerConfig, port: int) -> list[socket.socket]:
    """Sockets on every address of the host that this machine has, which other API processes share.
    None for a unix socket, which uvicorn makes. OSError if no address can be bound, or one is in
    use."""
    if config.uds is not None:
        return []
    sockets: list[socket.socket] = []
    errors: list[OSError] = []
    for family, kind, protocol, _, address in socket.getaddrinfo(
        config.host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    ):
        sock = socket.socket(family, kind, protocol)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if config.api_processes > 1:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        try:
            sock.bind((address[0], port, *address[2:]))
        except OSError as e:  # such as ::1 in a container
            sock.close()
            errors.append(e)
            continue
        port = port or sock.getsockname()[1]
        sockets.append(sock)

    in_use = [e for e in errors if e.errno == errno.EADDRINUSE]
    if in_use or not sockets:
        for sock in sockets:
            sock.close()
        raise (in_use or errors)[0]
    return sockets


def _configured(state: Server, tls: ssl.SSLContext | None, stop: StopSignals) -> _Uvicorn:
    app = create_app(state.config, state)
    return _Uvicorn(uvicorn_config(app, state.config, state.limits, tls), state, stop)


def uvicorn_config(
    app: FastAPI,
    config: ServerConfig,
    limits: Limits = LIMITS,
    tls: ssl.SSLContext | None = None,
    **settings: Any,
) -> uvicorn.Config:
    """uvicorn's configuration for an app. settings: others of uvicorn's (tests)."""
    level = config.uvicorn_log_level
    if level == "info":  # the server logs its own start
        level = "warning"
    defaults = {
        "http": limited(limits, tls),
        "uds": config.uds,
        "backlog": limits.accepted_at_once,
        "log_level": level,
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
    return uvicorn.Config(app, **{**defaults, **settings})


def _run(server: _Uvicorn, sockets: list[socket.socket] | None = None) -> int:
    """Run a server to its end. Returns the process's exit code."""
    machine.one_thread_for_numpy()
    if server.stop.requested:  # before anything was started
        return 0
    try:
        server.run(sockets)
    except SystemExit as e:  # uvicorn's own: the unix socket is in use
        return e.code if isinstance(e.code, int) and e.code else 1
    if server.exit_code is not None:
        log.error("a model failed for good; exit code %d", server.exit_code)
        return server.exit_code
    return 0 if server.started else 1


def _serve_further() -> int:
    """Serve as a further API process, by orders on standard input, until it ends or the first one
    is gone."""
    stop = StopSignals(hurry_at_once=True)
    stop.install()
    start, counts = read_start()
    config = start.config
    logs.configure(config.uvicorn_log_level, config.log_format)
    stop.watch(config.drain_seconds, LIMITS.exit_seconds)

    state = Server(config, limits=fitted(LIMITS), counts=counts, attached=start.api)
    server = _configured(state, tls_context(config), stop)
    server.api = start.api
    code = _run(server, _sockets(config, start.port))
    stop.finish(code)
    return code


if __name__ == "__main__":
    sys.exit(_serve_further())

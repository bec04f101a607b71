"""Running a server process: sockets, signals, exit codes."""

from __future__ import annotations

import asyncio
import errno
import logging
import math
import os
import signal
import socket
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import uvicorn

from stentor.server import logs
from stentor.server.app import create_app
from stentor.server.config import ServerConfig
from stentor.server.http.connections import Connection, limited
from stentor.server.limits import LIMITS, SWITCH_SECONDS
from stentor.server.state import Server

log = logging.getLogger("stentor.server")

END_SECONDS = LIMITS.end_seconds  # for the last words to clients whose requests have not ended in time


class _Uvicorn(uvicorn.Server):
    """uvicorn that lets everything end with an answer when it shuts down, and records whether a model was lost."""

    lost: int | None = None  # the exit code, once a model is lost
    hurried = False  # nobody wants to wait for what runs
    drain: asyncio.Event
    ended: asyncio.Event

    def give_up(self, code: int) -> None:
        """End the process with this exit code, because a model is lost for good."""
        self.lost = code
        self.should_exit = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Accept nothing more, wait until requests and WebSocket sessions have finished, then let uvicorn close.

        uvicorn alone closes WebSockets at once. It waits only for HTTP requests, and cancels them without an answer.
        So what still runs at the deadline, or at a second SIGINT, is told to end, and has `END_SECONDS` to say so to
        its client."""
        for server in self.servers:
            server.close()
        self.drain.set()
        await self._served(self.config.timeout_graceful_shutdown or 0, lambda: self.hurried)
        self.ended.set()
        await self._served(END_SECONDS, lambda: self.force_exit)
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
        return bool(self.server_state.connections or self.server_state.tasks)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        again = self.should_exit and sig == signal.SIGINT
        rest = "those that run are ended" if again else "waiting for those that run"
        log.info("%s: no new requests; %s", signal.Signals(sig).name, rest)
        # uvicorn's handler raises the signal again at the end, which would change the exit code
        self.force_exit = again and self.hurried
        self.hurried = again or self.hurried
        self.should_exit = True


def _cannot_listen(config: ServerConfig) -> str | None:
    """Why the address cannot be had, None if it can. uvicorn sees it only when models have begun to load."""
    if config.uds is not None:
        return None
    why = []
    try:
        found = socket.getaddrinfo(config.host, config.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError as e:
        return str(e)
    for family, kind, protocol, _, address in found:
        try:
            _try_to_bind(family, kind, protocol, address)
        except OSError as e:
            why.append(e)
    # a name may have addresses that this machine lacks, such as ::1 in a container
    in_use = [e for e in why if e.errno == errno.EADDRINUSE]
    if in_use or len(why) == len(found):
        return (in_use or why)[0].strerror
    return None


def _try_to_bind(family: int, kind: int, protocol: int, address: Any) -> None:
    with socket.socket(family, kind, protocol) as trial:
        trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            trial.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        trial.bind(address)


def serve(config: ServerConfig) -> int:
    """Serve until SIGTERM or SIGINT, then finish running requests. Returns the process's exit code. Where a model is
    still being loaded, the process ends with it here: Python would wait for the load, which may be a long download."""
    logs.configure(config.uvicorn_log_level, config.log_format)
    sys.setswitchinterval(SWITCH_SECONDS)
    if (why := _cannot_listen(config)) is not None:
        log.error("cannot listen on %s port %d: %s", config.host, config.port, why)
        return 1
    holder: list[_Uvicorn] = []

    def give_up(code: int) -> None:
        holder[0].give_up(code)

    app = create_app(config, give_up)
    held: Server = app.state.server
    options = uvicorn.Config(
        app,
        http=limited(LIMITS, held.hosts.arriving),
        host=config.host,
        port=config.port,
        uds=config.uds,
        log_level=config.uvicorn_log_level,
        log_config=None,
        access_log=False,  # logs.AccessLog writes it
        server_header=False,
        ssl_keyfile=config.ssl_keyfile,
        ssl_certfile=config.ssl_certfile,
        ssl_ca_certs=config.ssl_ca_certs,
        ssl_cert_reqs=2 if config.ssl_ca_certs else 0,
        timeout_graceful_shutdown=config.drain_seconds,
        timeout_keep_alive=int(LIMITS.keep_alive_seconds),
        ws_max_size=LIMITS.ws_config_mb << 20,
        ws_per_message_deflate=False,  # audio does not shrink
        h11_max_incomplete_event_size=LIMITS.max_head_kib << 10,
    )
    server = _Uvicorn(options)
    server.drain, server.ended = held.drain, held.ended
    holder.append(server)
    code = _run(server)
    if held.loader.loading:
        logging.shutdown()
        os._exit(code)
    return code


def _run(server: _Uvicorn) -> int:
    """Run it to its end. Returns the process's exit code."""
    try:
        server.run()
    except KeyboardInterrupt:
        return 0
    except SystemExit as e:  # uvicorn's own: the address is in use, the certificate is bad
        return 1 if e.code in (None, 0) else int(e.code) if isinstance(e.code, int) else 1
    if server.lost is not None:
        log.error("a model could not be loaded or kept alive; exit code %d", server.lost)
        return server.lost
    return 0 if server.started else 1

"""A place for a Ray on this machine that shares no port, folder or token with another Ray that runs here."""

from __future__ import annotations

import contextlib
import os
import socket
import tempfile
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock, Timeout

FIRST, LAST, BLOCK = 20_000, 30_000, 50  # of ports: Linux gives clients those from 32768 up
HTTP, GRPC = 10, 30  # where the replicas' ports begin in a block
MARK = "STENTOR_CLUSTER"  # a variable of every process of a cluster
TOLD = 2_000  # last characters of each log that `logs` reads
SERVE = "RAY_SERVE_"
START_S = 300  # in which Ray's own processes have to start


class NoPorts(Exception):
    """Every block of ports has a user."""


@dataclass(frozen=True)
class Apart:
    """folder: for all that Ray writes. It goes at the end. ports: of this machine, held until the end."""

    folder: Path
    ports: range
    mark: str

    @property
    def proxy(self) -> int:
        """The port for clients."""
        return self.ports[0]

    @property
    def replicas(self) -> range:
        """Ports of replicas' HTTP, counted up."""
        return self.ports[HTTP:GRPC]

    @property
    def environment(self) -> dict[str, str]:
        """The environment of this process without its Ray, and with what keeps another one apart."""
        plain = {k: v for k, v in os.environ.items() if not k.startswith("RAY_")}
        own = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": self.mark, MARK: self.mark}
        return (
            plain
            | self._folders
            | self._ports
            | own
            | {"RAY_raylet_start_wait_time_s": str(START_S)}
        )

    @property
    def _folders(self) -> dict[str, str]:
        haproxy = self.folder / "haproxy"
        files = {
            "CONFIG_FILE_LOC": haproxy / "haproxy.cfg",
            "SOCKET_PATH": haproxy / "admin.sock",
            "METRICS_SOCKET_PATH": haproxy / "metrics.sock",
            "SERVER_STATE_BASE": haproxy,
            "SERVER_STATE_FILE": haproxy / "server-state",
        }
        return {"RAY_TMPDIR": str(self.folder)} | {
            f"{SERVE}HAPROXY_{name}": str(path) for name, path in files.items()
        }

    @property
    def _ports(self) -> dict[str, str]:
        ports = {
            "HAPROXY_STATS_PORT": self.ports[1],
            "HAPROXY_METRICS_PORT": self.ports[2],
            "FALLBACK_PROXY_HTTP_PORT": self.ports[3],
            "FALLBACK_PROXY_GRPC_PORT": self.ports[4],
            "DIRECT_INGRESS_MIN_HTTP_PORT": self.ports[HTTP],
            "DIRECT_INGRESS_MAX_HTTP_PORT": self.ports[GRPC - 1],
            "DIRECT_INGRESS_MIN_GRPC_PORT": self.ports[GRPC],
            "DIRECT_INGRESS_MAX_GRPC_PORT": self.ports[-1],
        }
        return {SERVE + name: str(port) for name, port in ports.items()}

    def logs(self) -> str:
        """The end of each log that Ray has written."""
        found = sorted((self.folder / "ray").glob("session_2*/logs/**/*"))
        parts = [
            f"== {path.name}\n{_end(path)}"
            for path in found
            if path.is_file() and path.stat().st_size
        ]
        return "\n".join(parts)


def _end(path: Path) -> str:
    with contextlib.suppress(OSError):
        return path.read_text(encoding="utf-8", errors="replace")[-TOLD:]
    return ""


@contextlib.contextmanager
def apart() -> Iterator[Apart]:
    """A place that nobody else has until the end."""
    with contextlib.ExitStack() as held:
        ports = next((block for block in _blocks() if _taken(block, held)), None)
        if ports is None:
            raise NoPorts(
                f"no {BLOCK} ports that follow each other are free from {FIRST} to {LAST}"
            )
        # In /tmp: Ray's sockets lie under it, and the path of a socket has 107 bytes at most.
        folder = held.enter_context(
            tempfile.TemporaryDirectory(prefix="ray-", dir="/tmp", ignore_cleanup_errors=True)
        )
        yield Apart(Path(folder), ports, uuid.uuid4().hex)


def _blocks() -> Iterator[range]:
    return (range(first, first + BLOCK) for first in range(FIRST, LAST, BLOCK))


def _taken(block: range, held: contextlib.ExitStack) -> bool:
    """Whether the block is ours now. Others that ask here see a lock, and what others listen at cannot be bound."""
    locks = Path(tempfile.gettempdir()) / "stentor-ports"
    locks.mkdir(exist_ok=True)
    lock = FileLock(locks / f"{block[0]}.lock")
    try:
        lock.acquire(timeout=0)
    except Timeout:
        return False
    if not all(map(free, block)):
        lock.release()
        return False
    held.callback(lock.release)
    return True


def free(port: int) -> bool:
    """Whether nobody listens at a port, on any interface."""
    with socket.socket() as s:
        s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            s.bind(("0.0.0.0", port))
        except OSError:
            return False
    return True

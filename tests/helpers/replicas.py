"""`stentor serve --replicas N` as a user runs it, in processes of its own."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from benchmarks.replicas.apart import Apart, apart
from benchmarks.replicas.cluster import marked
from tests.helpers.patience import STUCK_S, until
from tests.helpers.server_remote import at_own_ports

NEEDS_RAY = pytest.mark.skipif(
    importlib.util.find_spec("ray") is None,
    reason="ray is not installed: pip install 'stentor[ray]'",
)
ROOT = Path(__file__).resolve().parents[2]
PATIENT = {  # what Ray and HAProxy take for lost after seconds, on a machine that other work may keep busy
    "RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S": str(STUCK_S),
    "RAY_SERVE_PROXY_HEALTH_CHECK_TIMEOUT_S": str(STUCK_S),
    "RAY_SERVE_HAPROXY_HEALTH_CHECK_FALL": "60",
    "RAY_memory_monitor_refresh_ms": "0",  # memory that other work takes is no reason to end a replica
    "RAY_SERVE_DIRECT_INGRESS_MIN_DRAINING_PERIOD_S": "1",  # nobody streams when these replicas end
}


@dataclass
class Replicas:
    """Replicas that take requests. url: of the proxy."""

    url: str
    place: Apart
    pid: int = 0  # of `stentor serve`
    lines: list[str] = field(default_factory=list)  # what it has printed

    @property
    def each(self) -> list[str]:
        """The address of each replica, at a port of its own."""
        return at_own_ports(self.place.replicas[0])

    def processes(self) -> list[int]:
        """Pids of the replicas."""
        return [
            pid
            for pid in marked(self.place.mark, self.pid)
            if _command(pid).startswith(b"ray::ServeReplica")
        ]

    def told(self) -> str:
        """Last lines that it has printed, and the ends of Ray's logs."""
        return "".join(self.lines[-100:]) + self.place.logs()


def _command(pid: int) -> bytes:
    """Empty if the process has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


@contextlib.contextmanager
def replicas(
    count: int, *words: str, models: Sequence[str] = ("dummy:toy",), follows_load: bool = False
) -> Iterator[Replicas]:
    """So many replicas, once they take requests. They end with 0 after SIGTERM.

    words: flags. models: none is the built-in voice. follows_load: so many at most.
    """
    flag = "--max-replicas" if follows_load else "--replicas"
    with apart() as place:
        made = Replicas(f"http://127.0.0.1:{place.proxy}", place)
        command = [
            sys.executable,
            "-m",
            "stentor",
            "serve",
            *models,
            flag,
            str(count),
            "--port",
            str(place.proxy),
        ]
        paths = {"PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
        with subprocess.Popen(
            [*command, *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=place.environment | PATIENT | paths,
            start_new_session=True,
        ) as process:
            made.pid = process.pid
            reader = threading.Thread(
                target=lambda: made.lines.extend(process.stdout or ()), daemon=True
            )
            reader.start()
            try:
                _until_served(process, f"{count} replicas on", made)
                yield made
                process.send_signal(signal.SIGTERM)
                assert process.wait(STUCK_S) == 0, made.told()
            finally:
                for pid in marked(place.mark, process.pid):
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
                reader.join(STUCK_S)


def _until_served(process: subprocess.Popen[str], said: str, made: Replicas) -> None:
    """Wait until it has said so."""
    there = until(
        lambda: process.poll() is not None or any(said in line for line in list(made.lines))
    )
    assert there, f"not there after {STUCK_S:g} s: {made.told()}"
    assert process.poll() is None, made.told()

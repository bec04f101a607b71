"""`stentor serve --replicas N` as a user runs it, in processes of its own."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path

from benchmarks.replicas.cluster import MARK, free_port, marked

ROOT = Path(__file__).resolve().parents[2]
PORTS = ("RAY_SERVE_HAPROXY_STATS_PORT", "RAY_SERVE_HAPROXY_METRICS_PORT")  # another HAProxy may have Ray's own
STOP_S = 150.0


@contextlib.contextmanager
def replicas(count: int, *words: str, follows_load: bool = False) -> Iterator[str]:
    """The address of so many replicas of `dummy:toy`, once they take requests. They end with 0 after SIGTERM.

    words: flags. follows_load: so many at most.
    """
    port, log, mark = free_port(), list[str](), uuid.uuid4().hex
    environment = {k: v for k, v in os.environ.items() if k != "RAY_ADDRESS"}
    environment["PYTHONPATH"] = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    environment |= {name: str(free_port()) for name in PORTS} | {MARK: mark}
    flag = "--max-replicas" if follows_load else "--replicas"
    command = [sys.executable, "-m", "stentor", "serve", "dummy:toy", flag, str(count), "--port", str(port)]
    with subprocess.Popen(
        [*command, *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=environment,
        start_new_session=True,
    ) as process:
        try:
            _until_served(process, f"{count} replicas on", log)
            yield f"http://127.0.0.1:{port}"
            process.send_signal(signal.SIGTERM)
            assert process.wait(STOP_S) == 0, "".join(log[-40:])
        finally:
            for pid in marked(mark, process.pid):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)


def _until_served(process: subprocess.Popen[str], said: str, log: list[str]) -> None:
    """Read what it prints until it has said so, and in a thread from then on."""
    assert process.stdout is not None
    for line in process.stdout:
        log.append(line)
        if said in line:
            break
    assert process.poll() is None, "".join(log[-40:])
    threading.Thread(target=lambda: log.extend(process.stdout or ()), daemon=True).start()

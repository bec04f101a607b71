"""`stentor serve --replicas N` as a user runs it, in processes of its own."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

from benchmarks.replicas.cluster import free_port

ROOT = Path(__file__).resolve().parents[2]
STOP_S = 150.0


@contextlib.contextmanager
def replicas(count: int, *words: str) -> Iterator[str]:
    """The address of so many replicas of `dummy:toy`, once they take requests. words: flags. They end with 0 after SIGTERM."""
    port, log = free_port(), list[str]()
    environment = {k: v for k, v in os.environ.items() if k != "RAY_ADDRESS"}
    environment["PYTHONPATH"] = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, "-m", "stentor", "serve", "dummy:toy", "--replicas", str(count), "--port", str(port)]
    with subprocess.Popen(
        [*command, *words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            log.append(line)
            if f"{count} replicas on" in line:
                break
        assert process.poll() is None, "".join(log[-40:])
        threading.Thread(target=lambda: log.extend(process.stdout or ()), daemon=True).start()
        try:
            yield f"http://127.0.0.1:{port}"
        finally:
            process.send_signal(signal.SIGTERM)
            ended = process.wait(STOP_S)
        assert ended == 0, "".join(log[-40:])

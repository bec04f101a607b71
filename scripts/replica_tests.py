"""Run the server's client and streaming tests against replicas: the tests of `live`, unchanged.

Run: python scripts/replica_tests.py [--replicas 2] [PYTEST WORDS ...]
Needs: `stentor[ray]`, and the tests' packages.

`stentor serve dummy:toy --replicas N` runs while the tests do. Tests that look into the process skip with that reason,
and are listed. Tests that start a server with settings of their own are left out.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
ALL = ("tests/server", "--ignore=tests/server/web")
STOP_S = 150.0
SHORT = ("--max-num-seqs", "8", "--memory-gb", "0.01", "--threads", "1", "--request-timeout", "60")


@contextlib.contextmanager
def replicas(count: int) -> Iterator[str]:
    """The address of replicas, once they take requests."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    environment = {k: v for k, v in os.environ.items() if k != "RAY_ADDRESS"}
    environment["PYTHONPATH"] = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    with tempfile.TemporaryDirectory() as folder:
        words = ["serve", "dummy:toy", "--replicas", str(count), "--port", port, "--voices-dir", folder, *SHORT]
        with subprocess.Popen(
            [sys.executable, "-m", "stentor", *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=environment,
        ) as server:
            assert server.stdout is not None
            log = []
            for line in server.stdout:
                log.append(line)
                if "replicas on" in line:
                    break
            else:
                raise SystemExit("".join(log[-40:]))
            threading.Thread(target=lambda: log.extend(server.stdout or ()), daemon=True).start()
            try:
                yield f"http://127.0.0.1:{port}"
            finally:
                server.send_signal(signal.SIGTERM)
                server.wait(STOP_S)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--replicas", type=int, default=2)
    args, words = parser.parse_known_args()
    chosen = any((ROOT / word.split("::")[0]).exists() for word in words)
    with replicas(args.replicas) as url:
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-rs",
            "-p",
            "no:cacheprovider",
            *(() if chosen else ALL),
            *words,
        ]
        return subprocess.run(command, cwd=ROOT, env={**os.environ, "STENTOR_TEST_URL": url}, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())

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
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # this tree, also where none is installed
from tests.helpers.replicas import ROOT, replicas

ALL = ("tests/server", "--ignore=tests/server/web")
SHORT = ("--max-num-seqs", "8", "--memory-gb", "0.01", "--threads", "1", "--request-timeout", "60")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--replicas", type=int, default=2)
    args, words = parser.parse_known_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the replicas end too
    chosen = any((ROOT / word.split("::")[0]).exists() for word in words)
    with contextlib.ExitStack() as running:
        voices = Path(running.enter_context(tempfile.TemporaryDirectory())) / "voices"
        url = running.enter_context(replicas(args.replicas, "--voices-dir", str(voices), *SHORT))
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
        environment = {**os.environ, "STENTOR_TEST_URL": url, "STENTOR_TEST_VOICES": str(voices)}
        return subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())

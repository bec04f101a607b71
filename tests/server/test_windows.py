"""`stentor serve` where Python has no fcntl and no resource, and no C library by the name None."""

from __future__ import annotations

import subprocess
import sys

from stentor.server.cli import NO_WINDOWS
from tests.helpers.patience import STUCK_S

WINDOWS = """
import asyncio, ctypes, subprocess, sys  # what looks at the platform when it is imported, as it is here
import numpy, stentor
for name in ("fcntl", "resource", "pwd", "termios"):
    sys.modules[name] = None
CDLL = ctypes.CDLL
def no_library(name, *given, **named):
    if name is None:
        raise TypeError("bad argument type for built-in operation")
    return CDLL(name, *given, **named)
ctypes.CDLL = no_library
sys.platform = "win32"
from stentor.cli import main
sys.exit(main(sys.argv[1:]))
"""


def on_windows(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", WINDOWS, *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=STUCK_S, check=False)


def test_serve_says_in_its_first_line_that_it_does_not_run_on_windows() -> None:
    for words in ((), ("dummy:toy", "--port", "0"), ("--replicas", "2")):
        run = on_windows("serve", *words)
        assert (run.returncode, run.stderr, run.stdout) == (2, f"stentor serve: {NO_WINDOWS}\n", "")


def test_the_rest_of_the_command_line_is_there() -> None:
    assert on_windows("serve", "--help").returncode == 0
    assert on_windows("--version").returncode == 0

"""SIGTERM and SIGINT, wherever they interrupt a server, and the end of one that does not stop by itself."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from stentor.server.stop_signals import CRASHED, StopSignals
from tests.helpers.patience import STUCK_S

TERM, INT = signal.SIGTERM, signal.SIGINT

INTERRUPTED_LOG = """
import io, os, sys
from stentor.cli import main

class Interrupted(io.RawIOBase):
    "A log of which each line that has a word is interrupted by a signal."

    def writable(self):
        return True

    def write(self, data):
        if {word!r} in bytes(data):
            os.kill(os.getpid(), {number})
        return os.write(1, data)

sys.stderr = io.TextIOWrapper(io.BufferedWriter(Interrupted()), line_buffering=True)
sys.argv[0] = "stentor"
sys.exit(main())
"""


@pytest.mark.parametrize("number", [TERM, INT], ids=lambda number: number.name)
@pytest.mark.parametrize("word", [b"running on", b"is ready"])
def test_a_signal_inside_a_line_of_the_log_stops_the_server(
    word: bytes, number: int, tmp_path: Path
) -> None:
    """The log is locked then: a handler that wrote to it would raise, and the signal would be lost."""
    words = ("serve", "dummy:toy", "--port", "0", "--memory-gb", "0.01", "--threads", "1")
    code = INTERRUPTED_LOG.format(word=word, number=int(number))
    ended = subprocess.run(
        [sys.executable, "-c", code, *words, "--voices-dir", str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=STUCK_S,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout
    assert "Logging error" not in ended.stdout


HANGS = """
import os, signal, sys, threading
from stentor.server.stop_signals import StopSignals

stop = StopSignals()
stop.kills.append(lambda: os.write(1, b"others killed"))
stop.install()
stop.watch({drain}, 0.1)
for number in {numbers}:
    os.kill(os.getpid(), number)
if {ended}:
    stop.finish(3)
    os.kill(os.getpid(), signal.SIGTERM)
    while True:
        pass
lock = threading.Lock()
lock.acquire()
lock.acquire()
"""


@pytest.mark.parametrize(
    ("drain", "numbers", "ended", "code"),
    [
        (0, [TERM], False, CRASHED),
        (0, [INT], False, CRASHED),
        (1000, [INT, INT], False, CRASHED),
        (1000, [TERM, INT], False, CRASHED),
        (1000, [], True, 3),
        (1000, [TERM], True, 3),
    ],
)
def test_a_process_that_does_not_stop_is_ended_with_all_others(
    drain: int, numbers: list[int], ended: bool, code: int
) -> None:
    """The main thread waits for a lock, or runs for ever. Once it has its exit code, it ends with that."""
    program = HANGS.format(drain=drain, numbers=[int(n) for n in numbers], ended=ended)
    run = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        timeout=STUCK_S,
        check=False,
    )
    assert (run.returncode, run.stdout) == (code, "others killed"), run.stderr


@pytest.mark.parametrize(
    ("numbers", "hurried", "forced"),
    [
        ([TERM], False, False),
        ([TERM, TERM, TERM], False, False),
        ([INT], False, False),
        ([INT, INT], True, False),
        ([TERM, INT], True, False),
        ([INT, TERM], False, False),
        ([INT, INT, INT], True, True),
        ([TERM, INT, INT], True, True),
    ],
)
def test_a_second_sigint_hurries_and_a_third_one_forces(
    numbers: list[int], hurried: bool, forced: bool
) -> None:
    stop = StopSignals()
    for number in numbers:
        stop.handle(number)
    assert (stop.requested, stop.hurried, stop.forced) == (True, hurried, forced)
    assert stop.signal == numbers[0]


def test_another_process_hurries_at_its_first_sigint() -> None:
    """Only the first process sends one, and both signals may arrive as one batch, SIGINT first."""
    stop = StopSignals(hurry_at_once=True)
    stop.handle(TERM)
    assert not stop.hurried
    stop.handle(INT)
    assert (stop.hurried, stop.forced) == (True, False)

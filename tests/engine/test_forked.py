"""A TTS of a forked child, whose parent has multiplied with all its threads."""

from __future__ import annotations

import subprocess
import sys
import threading

import pytest
import torch

from stentor.engine.running import forked
from tests.helpers.patience import STUCK_S

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux shows a fork")

FORKS = """
import os, sys, threading
import torch

torch.set_num_threads(2)
a = torch.ones(500, 500)
a @ a
a.exp()  # OpenMP has its threads
import stentor

if {parent_loads}:
    parent = stentor.TTS(runtime={runtime!r})
    parent.generate("Hello.")
child = os.fork()
if child:
    os._exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
made = []
if {in_thread}:
    loader = threading.Thread(target=lambda: made.append(stentor.TTS(runtime={runtime!r})))
    loader.start()
    loader.join()
else:
    made.append(stentor.TTS(runtime={runtime!r}))
with made[0] as tts:
    one = tts.generate("Hello from the child.", seed=1)
    two = [tts.stream("Two at once.", seed=2) for _ in range(2)]
    assert len(one.samples) and [len(list(chunks)) for chunks in two]
    if {runtime!r} == "torch":
        assert tts.engine.side.config.max_threads == (None if {in_thread} else 2)
    assert torch.get_num_threads() == 2
os._exit(0)
"""


@pytest.mark.parametrize(
    ("parent_loads", "in_thread", "runtime"),
    [(True, False, "torch"), (False, True, "torch"), (True, False, "auto")],
)
def test_a_forked_child_loads_a_model_of_its_own_and_speaks(
    parent_loads: bool, in_thread: bool, runtime: str
) -> None:
    code = FORKS.format(parent_loads=parent_loads, in_thread=in_thread, runtime=runtime)
    run = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=STUCK_S, check=False
    )
    assert run.returncode == 0, run.stderr


def test_a_process_that_was_not_forked_keeps_its_threads() -> None:
    assert not forked.forked()
    before = torch.get_num_threads()
    with forked.one_thread() as threads:
        assert threads is None
        assert torch.get_num_threads() == before


def test_only_the_thread_that_was_forked_computes_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forked, "forked", lambda: True)
    torch.set_num_threads(3)
    with forked.one_thread() as threads:
        assert (threads, torch.get_num_threads()) == (3, 1)
    assert torch.get_num_threads() == 3
    others: list[int | None] = []

    def other() -> None:
        with forked.one_thread() as threads:
            others.append(threads)

    thread = threading.Thread(target=other)
    thread.start()
    thread.join()
    assert others == [None]


KNOWS = """
import os, subprocess, sys
from stentor.engine.running.forked import forked

if "again" in sys.argv:
    os._exit(forked())
first = forked()
child = os.fork()
if child:
    os._exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
program = subprocess.run([sys.executable, *sys.orig_argv[1:], "again"]).returncode
os._exit(first + 2 * forked() + 4 * program)
"""


def test_a_child_knows_that_it_was_forked_and_a_program_that_it_runs_does_not() -> None:
    assert subprocess.run([sys.executable, "-c", KNOWS], check=False).returncode == 2

"""Runs `stentor batch` again and again, each time until it is killed at one of its writes. In a process of its own.

python killed.py JSON, with a list of {"words": command line, "kills": seeds}. Each run is a fork of this process, which
SIGKILL ends at a write that the seed chooses, half of the times in the middle of it. A last run is not killed. Prints for
each the exit code of the last run, and how many were killed.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet  # noqa: F401  these are imported once, for all forks

import stentor.batch.speaker  # noqa: F401
from stentor.cli import main
from tests.batch import runs

MOST = 30  # writes of one run
WATCHED = ("write", "fsync", "replace", "unlink", "ftruncate")


class Killer:
    """Ends the process at its n-th write to a disk."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.left = self.random.randint(1, MOST)
        self.lock = threading.Lock()
        for name in WATCHED:
            setattr(os, name, self.watched(name, getattr(os, name)))

    def watched(self, name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            with self.lock:
                self.left -= 1
                if self.left == 0:
                    if self.random.random() < 0.5 and name != "write":
                        with contextlib.suppress(OSError):  # such as a file that is not there
                            original(*arguments, **options)
                    elif name == "write":
                        handle, data = arguments
                        original(handle, bytes(data)[: self.random.randint(0, len(data))])
                    os.kill(os.getpid(), signal.SIGKILL)
            return original(*arguments, **options)

        return call


def forked(words: Sequence[str], seed: int | None) -> int:
    """Run the command in a fork. Its exit code, or minus the signal that ended it."""
    child = os.fork()
    if child == 0:
        code = 99
        try:
            if seed is not None:
                Killer(seed)
            code = main(list(words))
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def all_kills(words: Sequence[str], kills: Sequence[int]) -> dict[str, Any]:
    codes = []
    for seed in kills:
        codes.append(forked(words, seed))
        folder = Path(words[2])
        if (folder / "manifest.jsonl").exists():
            whole = folder / "manifest.jsonl"
            data = whole.read_bytes()
            torn = data[: data.rfind(b"\n") + 1]
            (folder / "seen.jsonl").write_bytes(torn)
            check_listed(folder, [json.loads(line) for line in torn.splitlines()])
    return {"killed": codes.count(-signal.SIGKILL), "codes": codes, "last": forked(words, None)}


def check_listed(folder: Path, rows: list[dict[str, Any]]) -> None:
    """Check that everything listed is complete, at any moment."""
    held = runs.audio(folder)
    ids = [row["id"] for row in rows]
    assert len(ids) == len(set(ids))
    for row in rows:
        assert runs.hashlib.sha256(held[row["id"]]).hexdigest() == row["sha256"], row["id"]


if __name__ == "__main__":
    sys.stdout.flush()
    out = os.dup(1)
    os.dup2(2, 1)  # what the command prints is not the result
    found = [all_kills(job["words"], job["kills"]) for job in json.loads(sys.argv[1])]
    os.write(out, json.dumps(found).encode())

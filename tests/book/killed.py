"""Runs `stentor book` again and again, each time until it is killed at one of its writes. In a process of its own.

python killed.py WORDS KILLS [FIRST], with the words of the command as JSON. The killer of a batch's tests ends each run.
Prints the codes of the runs as JSON, the last of which is not killed.
"""

from __future__ import annotations

import json
import os
import sys

import stentor.batch.speaker  # these are imported once, for all forks
import stentor.book.command  # noqa: F401
from tests.batch.killed import forked

if __name__ == "__main__":
    words = json.loads(sys.argv[1])
    first = int(sys.argv[3]) if len(sys.argv) > 3 else 0
    out = os.dup(1)
    os.dup2(2, 1)  # what the command prints is not the result
    codes = [forked(words, first + seed) for seed in range(int(sys.argv[2]))]
    codes.append(forked(words, None))
    os.write(out, json.dumps(codes).encode())

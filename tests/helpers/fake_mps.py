"""A program that behaves as `nvidia-cuda-mps-control` of driver 580 does, without a GPU, and records what it does.

It is a script on PATH. Its default pipe folder and its record are in the folder of the script.
"""

from __future__ import annotations

import sys
from pathlib import Path

from stentor.host.machine import MPS_CONTROL

SCRIPT = """#!{python} -IS
import os, socket, sys
from pathlib import Path

home = Path(__file__).parent
pipe = Path(os.environ.get("CUDA_MPS_PIPE_DIRECTORY") or home / "nvidia-mps")


def note(*words):
    with (home / "record").open("a") as file:
        file.write(" ".join(map(str, words)) + "\\n")


def serve():
    if (home / "problem").exists():
        print((home / "problem").read_text())
        sys.exit(1)
    (pipe / "control").unlink(missing_ok=True)
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(str(pipe / "control"))
    listening.listen()
    (pipe / "nvidia-cuda-mps-control.pid").write_text(str(os.getpid()))
    note("daemon", os.getpid(), pipe, os.environ.get("CUDA_VISIBLE_DEVICES", "-"))
    while True:
        connection, _ = listening.accept()
        line = connection.makefile().readline().strip()
        if line.startswith("quit"):
            note(line)
            if (home / "stuck").exists():
                continue
            (pipe / "nvidia-cuda-mps-control.pid").unlink()
            sys.exit(0)
        connection.sendall(b"4723\\n")
        connection.close()


def ask():
    for line in sys.stdin:
        connection = socket.socket(socket.AF_UNIX)
        try:
            connection.connect(str(pipe / "control"))
        except OSError:
            print("Cannot find MPS control daemon process")
            sys.exit(1)
        connection.sendall(line.encode())
        print(connection.makefile().read(), end="")


if sys.argv[1:] == ["-f"]:
    serve()
else:
    ask()
"""


class FakeMps:
    """The program in a folder, and what it has recorded."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        program = folder / MPS_CONTROL
        program.write_text(SCRIPT.format(python=sys.executable))
        program.chmod(0o755)

    @property
    def record(self) -> list[list[str]]:
        """The words of each line: `daemon PID PIPE VISIBLE_DEVICES` for a start, and `quit ...`."""
        path = self.folder / "record"
        if not path.exists():
            return []
        return [line.split() for line in path.read_text().splitlines()]

    @property
    def daemons(self) -> list[tuple[int, Path, str]]:
        """Process, pipe folder and visible devices of every daemon that was started."""
        return [(int(w[1]), Path(w[2]), w[3]) for w in self.record if w[0] == "daemon"]

    def fail(self, problem: str) -> None:
        """Have every daemon end at its start with this line."""
        (self.folder / "problem").write_text(problem)

    def stick(self) -> None:
        """Have daemons ignore `quit`."""
        (self.folder / "stuck").touch()

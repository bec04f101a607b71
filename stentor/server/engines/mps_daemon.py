"""The process that runs a CUDA MPS control daemon for one server:
`python -m stentor.server.engines.mps_daemon`, with the daemon's folder on its standard input.

Its standard input is a socket to the server. It ends the daemon when that closes, also if the
server was killed.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

from stentor.host.machine import MPS_CONTROL

PREFIX = "stentor-mps-"
START_SECONDS = 20.0
POLL_SECONDS = 0.02
COMMAND_SECONDS = 10.0
CLIENT_SECONDS = 5  # for engines to end before the daemon ends them
EXIT_SECONDS = 15.0  # for the daemon to end once it was ordered to


def variables(folder: Path) -> dict[str, str]:
    """Environment variables of the daemon in this folder, and of its clients."""
    return {
        "CUDA_MPS_PIPE_DIRECTORY": str(folder / "pipe"),
        "CUDA_MPS_LOG_DIRECTORY": str(folder / "log"),
    }


def command(line: str, environment: Mapping[str, str], seconds: float = COMMAND_SECONDS) -> bool:
    """Send a command to the daemon of this environment. Returns whether there is one."""
    try:
        answer = subprocess.run(
            [MPS_CONTROL],
            input=f"{line}\n".encode(),
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=seconds,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return answer.returncode == 0


def answers(environment: Mapping[str, str]) -> bool:
    """Whether a daemon runs in the pipe folder of this environment, by default /tmp/nvidia-mps."""
    return command("get_server_list", environment)


# -- folders --


def create_folder() -> tuple[Path, int]:
    """Create a private folder for a daemon. Returns it and the descriptor that locks it.

    The lock lasts as long as a process has the descriptor: the server or the process of this
    module."""
    unlocked = Path(tempfile.mkdtemp(prefix=f"new-{PREFIX}"))
    lock = os.open(unlocked, os.O_RDONLY)
    fcntl.flock(lock, fcntl.LOCK_EX)
    folder = unlocked.with_name(unlocked.name.removeprefix("new-"))
    unlocked.rename(folder)  # only a locked folder has a name that `remove_stale` looks for
    for name in ("pipe", "log"):
        (folder / name).mkdir(mode=0o700)
    return folder, lock


def remove_stale() -> None:
    """Remove this user's folders whose processes are gone, and end daemons that run in them."""
    for folder in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError):  # it is in use, or not a folder of this user
            lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                if os.fstat(lock).st_uid == os.getuid():
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    command("quit -t 1", {**os.environ, **variables(folder)})
                    shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(lock)


# -- the process --


def main() -> None:
    """Run a daemon until the server is gone. Reports an empty line once it runs, or the problem."""
    for number in (signal.SIGINT, signal.SIGTERM):  # engines still run then. The daemon inherits it
        signal.signal(number, signal.SIG_IGN)
    server = socket.socket(fileno=os.dup(0))
    folder = Path(server.makefile().readline().rstrip("\n"))
    environment = {**os.environ, **variables(folder)}

    output = folder / "log" / "output"
    with output.open("wb") as file:
        daemon = subprocess.Popen(
            [MPS_CONTROL, "-f"],
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            env=environment,
            process_group=0,
        )
    problem = ""
    if not _starts(daemon, environment):
        lines = output.read_text(errors="replace").splitlines() or ["it does not answer"]
        problem = lines[-1]

    with contextlib.suppress(OSError):  # the server is gone
        server.sendall(f"{problem}\n".encode())
        server.recv(1)
    _end(daemon, environment)
    shutil.rmtree(folder, ignore_errors=True)


def _starts(daemon: subprocess.Popen[bytes], environment: Mapping[str, str]) -> bool:
    deadline = time.monotonic() + START_SECONDS
    while daemon.poll() is None and time.monotonic() < deadline:
        if answers(environment):
            return True
        time.sleep(POLL_SECONDS)
    return False


def _end(daemon: subprocess.Popen[bytes], environment: Mapping[str, str]) -> None:
    if daemon.poll() is None:
        command(f"quit -t {CLIENT_SECONDS}", environment, EXIT_SECONDS)
    try:
        daemon.wait(EXIT_SECONDS)
    except subprocess.TimeoutExpired:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(daemon.pid, signal.SIGKILL)
        daemon.wait()


if __name__ == "__main__":
    main()

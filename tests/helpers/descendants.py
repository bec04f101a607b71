"""The processes of a server that runs as a process of its own, found by their parent in /proc."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
from pathlib import Path

ENGINE, API = "stentor.server.engines.process", "stentor.server.main"
"""Modules that a server runs in processes of their own."""


def children(pid: int, module: str = "") -> list[int]:
    """Processes that `pid` has started and that have not ended, the oldest first. module: of those that run it."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended meanwhile
            state, parent, began = _stat(int(entry.name))
            if (
                parent == pid
                and state not in "ZX"
                and module.encode() in (entry / "cmdline").read_bytes()
            ):
                found.append((began, int(entry.name)))
    return [child for _, child in sorted(found)]


def engines(pid: int) -> list[int]:
    """The engines of a server, the longest running first."""
    return children(pid, ENGINE)


def alive(pid: int) -> bool:
    """Whether a process runs or is stopped. One that has ended may wait for whoever adopted it."""
    try:
        return _stat(pid)[0] not in "ZX"
    except OSError:
        return False


def stopped(pid: int) -> bool:
    """Whether SIGSTOP has reached a process."""
    return _stat(pid)[0] == "T"


def kill(pid: int, signal: int = signal.SIGKILL) -> None:
    """Send a process a signal. Nothing happens where it has ended."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal)


def _stat(pid: int) -> tuple[str, int, int]:
    """State, parent and time of start."""
    words = (
        Path(f"/proc/{pid}/stat")
        .read_text(encoding="ascii", errors="replace")
        .rpartition(")")[2]
        .split()
    )
    return words[0], int(words[1]), int(words[19])


def owner(pids: list[int], client: socket.socket) -> int | None:
    """Find which of these processes has accepted a connection over IPv4, None as long as none has."""
    ours, theirs = client.getsockname()[1], client.getpeername()[1]
    ends = f":{theirs:04X}", f":{ours:04X}"
    for line in Path("/proc/net/tcp").read_text(encoding="ascii").splitlines()[1:]:
        words = line.split()
        if words[1].endswith(ends[0]) and words[2].endswith(ends[1]):
            return next((pid for pid in pids if f"socket:[{words[9]}]" in _files(pid)), None)
    return None


def _files(pid: int) -> list[str]:
    """Targets of a process's descriptors."""
    found = []
    with contextlib.suppress(OSError):
        for entry in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                found.append(str(entry.readlink()))
    return found

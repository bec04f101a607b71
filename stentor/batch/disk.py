"""Writing so that a crash leaves either the old or the new: aside, synced, renamed."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_NO_LINK = 0 if os.name == "nt" else os.O_NOFOLLOW


def write_all(handle: int, data: bytes) -> None:
    """Write all of `data` to an open file."""
    view = memoryview(data)
    while view:
        view = view[os.write(handle, view) :]


def append(path: Path, data: bytes) -> None:
    """Add `data` at the end of a file of the run's own. OSError for a link."""
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | _NO_LINK, 0o666)
    try:
        write_all(handle, data)
    finally:
        os.close(handle)


@contextmanager
def replaced(path: Path, aside: Path | None = None) -> Iterator[int]:
    """An open file that takes the place of `path` when it is complete, and lasts then. aside: its
    name until then."""
    aside = aside or path.with_name(path.name + ".part")
    aside.unlink(missing_ok=True)  # of a run that was killed, or a link, which must not be followed
    handle = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    try:
        yield handle
        os.fsync(handle)
    except BaseException:
        aside.unlink()
        raise
    finally:
        os.close(handle)
    move(aside, path)
    sync_folder(path.parent)


def move(source: Path, target: Path) -> None:
    """Rename a file over another on the same file system. `sync_folder` makes it last."""
    os.replace(source, target)


def sync_folder(folder: Path) -> None:
    """Make renames in a folder outlast a loss of power, where the system can do that."""
    if os.name == "nt":
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def written_aside(path: Path) -> Iterator[Path]:
    """The path of a file that a library writes, and which takes the place of `path` when it is
    complete, and lasts then."""
    aside = path.with_name(path.name + ".part")
    aside.unlink(missing_ok=True)
    try:
        yield aside
        with aside.open("r+b") as file:
            os.fsync(file.fileno())
    except BaseException:
        aside.unlink(missing_ok=True)
        raise
    move(aside, path)
    sync_folder(path.parent)

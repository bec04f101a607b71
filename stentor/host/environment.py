"""Mends of an environment in which a process was started without standard streams or a home
folder."""

from __future__ import annotations

import os
import stat
import sys
import tempfile
from pathlib import Path


def open_standard_streams() -> None:
    """Open the null device in place of standard streams that are closed, as services and `2>&-`
    leave them.

    The next file that is opened would otherwise get the number of a closed stream, and the messages
    of C libraries.
    """
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            null = os.open(os.devnull, os.O_RDWR)  # the lowest free number, which is this one
            os.set_inheritable(null, True)
    if sys.stdin is None:
        sys.stdin = os.fdopen(0, encoding="utf-8", closefd=False)
    if sys.stdout is None:
        sys.stdout = os.fdopen(1, "w", encoding="utf-8", closefd=False)
    if sys.stderr is None:
        sys.stderr = os.fdopen(2, "w", encoding="utf-8", closefd=False)


def ensure_home() -> None:
    """Set HOME to a folder of this user where there is none: in containers the user may have no
    entry and no HOME.

    Libraries look for their caches in it, some as they are imported, and fail where there is none.
    """
    try:
        Path.home()
    except RuntimeError:
        os.environ["HOME"] = str(_private_folder())


def _private_folder() -> Path:
    folder = Path(tempfile.gettempdir()) / f"stentor-home-{os.getuid()}"
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        status = folder.lstat()
    except OSError:
        return Path(tempfile.mkdtemp(prefix="stentor-home-"))
    # caches hold programs: nobody else may have made the folder, or write to it
    private = stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid()
    if private and not status.st_mode & 0o077:
        return folder
    return Path(tempfile.mkdtemp(prefix="stentor-home-"))

"""Triton's launchers of kernels, which one thread at a time makes.

A launcher is a module in C. Triton gives the same name to all of them, and when Python loads one for the second time it
returns the module that has this name, whichever was the last, with the functions of the one that was asked for. So of
two threads that load launchers one may get the other's, which takes other arguments.

This module does not import Triton.
"""

from __future__ import annotations

import threading
from functools import cache
from typing import Any

_LOADING = threading.Lock()


def make_launchers_alone() -> None:
    """From now on one thread of this process at a time makes a launcher, where Triton has a GPU."""
    from triton.backends import backends
    from triton.runtime import driver

    if backends["nvidia"].driver.is_active():
        driver.active.launcher_cls = _alone(driver.active.launcher_cls)


@cache
def _alone(launcher: type[Any]) -> type[Any]:
    """A driver's class of launchers with the lock. Of such a class it is the class itself."""
    if issubclass(launcher, _Alone):
        return launcher
    return type("AloneLauncher", (_Alone, launcher), {})


class _Alone:
    """Goes before a class of launchers."""

    def __init__(self, *args: Any) -> None:
        with _LOADING:
            super().__init__(*args)

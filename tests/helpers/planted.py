"""Code that runs first in each engine's process that a server starts, such as what makes a load hang."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from tests.helpers.child import ROOT

ONLY_THERE = """import sys
if "stentor.server.engines.process" in sys.orig_argv:
    exec(compile({code!r}, "planted", "exec"))
"""


LOADS_FOR_EVER = """
import os, sys, threading
from stentor import registry

def load(*given):
    print("loads in process", os.getpid(), file=sys.stderr, flush=True)
    threading.Event().wait()

registry.load = load
"""


def serve_command(voices: Path) -> list[str]:
    """`stentor serve` of the toy at a free port, as `planted` is meant for."""
    flags = ["--port", "0", "--voices-dir", str(voices)]
    return [sys.executable, "-m", "stentor", "serve", "dummy:toy", *flags]


def planted(folder: Path, code: str) -> dict[str, str]:
    """Variables with which a server is to be started. Its engines' processes have its search path."""
    (folder / "sitecustomize.py").write_text(ONLY_THERE.format(code=code), encoding="utf-8")
    path = os.pathsep.join([str(folder), str(ROOT), os.environ.get("PYTHONPATH", "")])
    return {**os.environ, "PYTHONPATH": path}

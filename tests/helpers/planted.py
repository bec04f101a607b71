"""Code that runs first in each engine's process that a server starts, such as what makes a load hang."""

from __future__ import annotations

import os
from pathlib import Path

from tests.helpers.child import ROOT

ONLY_THERE = """import sys
if "stentor.server.engines.process" in sys.orig_argv:
    exec(compile({code!r}, "planted", "exec"))
"""


def planted(folder: Path, code: str) -> dict[str, str]:
    """Variables with which a server is to be started. Its engines' processes have its search path."""
    (folder / "sitecustomize.py").write_text(ONLY_THERE.format(code=code), encoding="utf-8")
    path = os.pathsep.join([str(folder), str(ROOT), os.environ.get("PYTHONPATH", "")])
    return {**os.environ, "PYTHONPATH": path}

"""Programs that need other packages than the tests: run by another Python, or by Node.

scripts/clients.py installs both where they are looked for.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers.patience import STUCK_S

CLIENTS = Path(sys.prefix) / "clients"
INSTALL = "python scripts/clients.py --install"
PLUGINS = os.pathsep.join(
    map(str, (Path(__file__).parents[2] / "integrations").iterdir())
)  # as if they were installed


def run_python(module: str, program: Path, *words: str, cwd: Path | None = None) -> str:
    """Output of a program, run by a Python that has the module. The test is skipped if there is none."""
    return run([python_with(module), str(program), *words], cwd)


def run_node(program: Path, *words: str, cwd: Path) -> str:
    """Output of a program, run in a folder by Node with the packages of the clients. The test is skipped without them."""
    modules = CLIENTS / "node_modules"
    node = modules / ".bin" / "node"
    if not node.is_file():
        pytest.skip(f"Node's clients are not installed: {INSTALL}")
    here = cwd / program.name
    if program != here:
        shutil.copy(program, here)
    (cwd / "node_modules").symlink_to(modules)
    return run([str(node), str(here), *words], cwd)


def python_with(module: str) -> str:
    """This Python, or one of the clients', that has a module. The test is skipped if none has it."""
    if has(module):
        return sys.executable
    check = "import importlib.util as u, sys; sys.exit(u.find_spec(sys.argv[1]) is None)"
    for other in CLIENTS.glob("*/bin/python"):
        if (
            subprocess.run(
                [other, "-c", check, module], check=False, capture_output=True
            ).returncode
            == 0
        ):
            return str(other)
    pytest.skip(f"{module} is not installed: {INSTALL}")


def has(module: str) -> bool:
    """Whether this Python has a module."""
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False


def run(words: list[str], cwd: Path | None = None) -> str:
    """Output of a program. Its errors are shown if it fails."""
    plain = {
        k: v
        for k, v in os.environ.items()
        if k.lower() not in ("http_proxy", "https_proxy", "all_proxy")
    }
    env = {
        **plain,
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        "AI_SDK_LOG_WARNINGS": "false",
        "PYTHONPATH": PLUGINS,
    }
    done = subprocess.run(
        words, cwd=cwd, env=env, capture_output=True, text=True, timeout=STUCK_S, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout

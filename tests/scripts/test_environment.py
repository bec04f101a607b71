"""scripts/environment makes .venv. A stand-in for Python writes down what would be installed."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from types import ModuleType

import pytest

SCRIPTS = Path(__file__).parents[2] / "scripts"
STAND_IN = """#!/bin/sh
here=$(cd "$(dirname "$0")" && pwd)
case "$*" in
    "-m venv .venv") mkdir -p .venv/bin && cp "$0" .venv/bin/python ;;
    *find_spec*) test -f .venv/torch ;;
    *torch_index.py*) echo "the stand-in" >&2; echo "$INDEX" ;;
    *"--index-url broken"*) echo "$*" >>log; exit 1 ;;
    "-m pip"*) echo "$*" >>log; case "$*" in *torch==*) touch .venv/torch ;; esac ;;
esac
"""
QUIET = "-m pip --quiet --disable-pip-version-check install"


@pytest.fixture(scope="module")
def torch_index() -> ModuleType:
    spec = importlib.util.spec_from_file_location("torch_index", SCRIPTS / "torch_index.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    (tmp_path / "scripts").mkdir()
    shutil.copy(SCRIPTS / "environment", tmp_path / "scripts")
    (tmp_path / "pyproject.toml").write_text("[project]\n")
    (tmp_path / "python").write_text(STAND_IN)
    (tmp_path / "python").chmod(0o755)
    return tmp_path


def made(tree: Path, *extras: str, index: str = "") -> tuple[list[str], list[str]]:
    """Arguments that pip got, and the lines of progress."""
    env = {**os.environ, "PYTHON": str(tree / "python"), "INDEX": index}
    done = subprocess.run(
        [tree / "scripts/environment", *extras], env=env, capture_output=True, text=True, check=True
    )
    asked = tree / "log"
    lines = asked.read_text().splitlines() if asked.exists() else []
    asked.unlink(missing_ok=True)
    return [line.removeprefix(QUIET).strip() for line in lines], done.stderr.splitlines()


def test_torch_comes_from_the_index_that_was_chosen_and_every_step_has_a_line(tree: Path):
    asked, told = made(tree, "server", "torch", index="https://index/cpu")
    assert asked == [
        "--retries 0 --timeout 15 --index-url https://index/cpu torch==2.13.0",
        "-e .[server,torch]",
    ]
    for line, words in zip(
        told, ("1 of 3", "2 of 3: torch 2.13.0 from the stand-in", "3 of 3", "ready"), strict=True
    ):
        assert words in line


def test_an_index_that_fails_leaves_the_plain_pin(tree: Path):
    asked, _ = made(tree, "torch", index="broken")
    assert asked == [
        "--retries 0 --timeout 15 --index-url broken torch==2.13.0",
        "torch==2.13.0",
        "-e .[torch]",
    ]


def test_the_built_in_voice_and_its_server_get_no_torch(tree: Path):
    assert made(tree)[0] == ["-e ."]
    assert made(tree, "server")[0] == ["-e .[server]"]


def test_what_is_installed_is_not_installed_again(tree: Path):
    made(tree, "server", "torch")
    assert made(tree, "server", "torch") == ([], [])
    assert made(tree, "dev")[0] == ["-e .[dev]", "--no-deps distillmos==0.9.1 xls-r-sqa==0.1.0"]
    (tree / "pyproject.toml").write_text("[project] # with other dependencies\n")
    assert made(tree, "server", "torch")[0] == ["-e .[server,torch]"]


@pytest.mark.parametrize("script", ["quickstart", "test", "check"])
def test_every_script_makes_its_environment_with_the_one_script(script: str):
    text = (SCRIPTS / script).read_text()
    assert "\nscripts/environment" in text
    assert "pip install" not in text


def test_ci_calls_the_scripts_and_installs_no_package_itself():
    text = (SCRIPTS.parent / ".ci" / "run").read_text()
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    assert lines[-12:] == [
        "system_packages &",
        "scripts/environment dev",
        "clients &",
        "scripts/check",
        "wait",
        ".venv/bin/python scripts/image_check.py --seconds 1200 &",
        "image=$!",
        "scripts/test --all && tested=0 || tested=$?",
        'wait "$image"',
        '[ "$tested" = 0 ]',
        "scripts/environment dev ray",
        "timeout --kill-after=500 3300 .venv/bin/python scripts/replica_tests.py",
    ]
    assert "pip install" not in text


@pytest.mark.parametrize(
    ("configuration", "own"),
    [
        ("", False),
        (":env:.cert='/etc/x'\nglobal.timeout='60'", False),
        (":env:.find-links='/wheels'", True),
        (":env:.index-url='http://mirror/simple'", True),
        ("global.extra-index-url='http://mirror/simple'", True),
        ("install.no-index='true'", True),
    ],
)
def test_an_environment_that_names_its_own_index_wins(
    torch_index: ModuleType, configuration: str, own: bool
):
    assert torch_index.own_index(configuration) is own


def test_the_build_is_that_of_the_newest_cuda_that_the_driver_runs(torch_index: ModuleType):
    table = "| NVIDIA-SMI 570.1  Driver Version: 570.1  CUDA Version: 12.8 |"
    assert torch_index.driver_cuda(table) == 128
    assert torch_index.driver_cuda("NVIDIA-SMI has failed") is None
    assert (
        torch_index.choose("2.13.0", 128, lambda at: at.endswith(("cu126", "cu130")), "x")[0]
        == "x/cu126"
    )
    assert torch_index.choose("2.13.0", None, lambda at: True, "x")[0] == "x/cpu"
    assert torch_index.choose("2.13.0", 110, lambda at: True, "x")[0] == ""


class Index(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200 if self.path == "/cpu/torch/" else 404)
        self.end_headers()
        self.wfile.write(b"<a>torch-2.13.0%2Bcpu-cp311-cp311-linux_x86_64.whl</a>")

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def index() -> Iterator[str]:
    with HTTPServer(("127.0.0.1", 0), Index) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_an_index_is_taken_if_it_answers_and_has_the_version(
    torch_index: ModuleType, index: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    assert (
        torch_index.choose("2.13.0", None, torch_index.listed("2.13.0"), index)[0] == f"{index}/cpu"
    )
    assert torch_index.choose("2.14.0", None, torch_index.listed("2.14.0"), index)[0] == ""
    assert torch_index.choose("2.13.0", 130, torch_index.listed("2.13.0"), index)[0] == ""
    address, why = torch_index.choose(
        "2.13.0", None, torch_index.listed("2.13.0"), "http://127.0.0.1:1"
    )
    assert address == ""
    assert "does not answer" in why

"""Packages that tools/gpu_packages.py carries, and what it leaves out. pip is replaced: there is no network."""

from __future__ import annotations

import importlib.util
import json
import tarfile
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def packages() -> ModuleType:
    spec = importlib.util.spec_from_file_location(
        "gpu_packages", ROOT / "tools" / "gpu_packages.py"
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Pip:
    """Answers `--dry-run` with the packages `found`, and installs a module, a test and a header for each other call."""

    def __init__(self, *found: str) -> None:
        self.found, self.calls = found, []

    def __call__(self, *arguments: str) -> None:
        self.calls.append(arguments)
        if "--dry-run" in arguments:
            report = {
                "install": [{"metadata": {"name": name, "version": "1.0"}} for name in self.found]
            }
            Path(arguments[arguments.index("--report") + 1]).write_text(json.dumps(report))
            return
        site = Path(arguments[arguments.index("--target") + 1])
        for file in ("pkg/__init__.py", "pkg/tests/test_it.py", "pkg/core.h", "single.py"):
            (site / file).parent.mkdir(parents=True, exist_ok=True)
            (site / file).touch()


def test_extras_that_name_extras_are_followed(packages: ModuleType) -> None:
    names = {packages.plain(r) for r in packages.requirements(["cuda", "ray"])}
    assert {"torch", "tokenizers", "triton", "soundfile", "ray", "fastapi"} <= names
    assert "stentor" not in names
    assert "aiohttp" not in names


def test_what_is_there_is_neither_asked_for_nor_carried(
    packages: ModuleType,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    pip = Pip("soundfile", "cffi", "Typing_Extensions")
    out = tmp_path / "site.tar.xz"
    monkeypatch.setattr(packages, "pip", pip)
    monkeypatch.setattr(
        "sys.argv", ["x", str(out), "--extra", "--there", "torch", "typing-extensions"]
    )
    packages.main()
    resolved, installed = pip.calls
    assert not [a for a in resolved if a.startswith("torch")]
    assert [a for a in resolved if a.startswith("soundfile")]
    assert [a for a in installed if "==" in a] == ["soundfile==1.0", "cffi==1.0"]
    with tarfile.open(out) as tar:
        assert {n for n in tar.getnames() if n.endswith((".py", ".h"))} == {
            "./pkg/__init__.py",
            "./single.py",
        }
    assert capsys.readouterr().out.splitlines()[-1] == 'python -c "import pkg, single"'


@pytest.mark.parametrize(
    ("path", "left_out"),
    [
        ("pkg/tests/data.json", True),
        ("tests.py", False),
        ("pkg/core.pyx", True),
        ("ray/jars/ray_dist.jar", True),
        ("ray/serve/api.py", False),
        ("pkg/native.cpython-312-x86_64-linux-gnu.so", False),
    ],
)
def test_tests_headers_and_sources_of_extensions_stay_behind(
    packages: ModuleType, path: str, left_out: bool
) -> None:
    assert packages.unused(Path(path)) is left_out

"""Families of installed packages: found without being imported, listed with their origin, refused where names clash."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

import stentor
from stentor import InvalidRequest
from stentor.models import new_family
from stentor.models.families import SEAM
from tests.helpers.patience import STUCK_S
from tests.helpers.server_live import process

ROOT = Path(stentor.__file__).parents[1]


def pip(*arguments: str) -> None:
    command = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", *arguments]
    process = subprocess.run(command, capture_output=True, text=True, timeout=STUCK_S, check=False)
    assert process.returncode == 0, process.stdout + process.stderr


def environment(*sites: Path) -> dict[str, str]:
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(map(str, (ROOT, *sites))),
        "OMP_NUM_THREADS": "1",
    }


def python(*arguments: str, sites: tuple[Path, ...] = (), code: int = 0) -> str:
    command = [sys.executable, *arguments]
    process = subprocess.run(
        command,
        env=environment(*sites),
        capture_output=True,
        text=True,
        timeout=STUCK_S,
        check=False,
    )
    assert process.returncode == code, process.stdout + process.stderr
    return process.stdout + process.stderr


def install(folder: Path, site: Path) -> None:
    """Build the package's wheel and install it into a folder, without a network."""
    wheels = site.parent / f"wheels-{folder.name}"
    offline = ("--no-index", "--no-deps")
    pip("wheel", *offline, "--no-build-isolation", "--wheel-dir", str(wheels), str(folder))
    pip("install", *offline, "--target", str(site), *map(str, wheels.glob("*.whl")))


def declare(site: Path, distribution: str, name: str, package: str, source: str | None) -> None:
    """An installed package as far as finding a family takes it: an entry point, and the source of its facts."""
    facts = site / f"{distribution.replace('-', '_')}-1.0.dist-info"
    facts.mkdir(parents=True)
    (facts / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.0\n")
    (facts / "entry_points.txt").write_text(f"[stentor.families]\n{name} = {package}\n")
    if source is not None:
        (site / package).mkdir()
        (site / package / "__init__.py").write_text(source)


def facts(seam: int = SEAM, dummy: str = "other") -> str:
    names = f"ARCHITECTURES = ('{dummy}',)\nDUMMIES = ('{dummy}',)\n"
    return names + f"FILES = ()\nTENSORS = ()\nFOLDERS = {{}}\nUNUSED_FILES = ()\nSEAM = {seam}\n"


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The toy as a package of its own."""
    folder = tmp_path_factory.mktemp("package") / "echo"
    new_family.write("echo", folder)
    return folder


@pytest.fixture(scope="module")
def site(package: Path) -> Path:
    """Where it is installed."""
    folder = package.parent / "site"
    install(package, folder)
    return folder


@pytest.fixture(scope="module")
def served(site: Path) -> Iterator[str]:
    with process(env=environment(site), model=("dummy:echo",)) as (_, url):
        yield url


def test_a_package_passes_its_own_tests_where_it_is_installed(package: Path, site: Path):
    output = python(
        "-m", "pytest", "-q", "-p", "no:cacheprovider", str(package / "tests"), sites=(site,)
    )
    assert "7 passed" in output


def test_the_example_package_passes_its_own_tests(tmp_path: Path):
    """CSM, at parity with transformers (examples/csm)."""
    install(ROOT / "examples" / "csm", tmp_path / "site")
    tests = str(ROOT / "examples" / "csm" / "tests")
    output = python(
        "-m", "pytest", "-q", "-rs", "-p", "no:cacheprovider", tests, sites=(tmp_path / "site",)
    )
    assert re.search(r"^(12 passed, 1 skipped|13 passed)", output, re.MULTILINE), output


def test_doctor_names_the_family_with_its_origin_and_speaks_with_it(site: Path):
    output = python("-m", "stentor", "doctor", "--model", "dummy:echo", sites=(site,))
    assert "families  echo (from stentor-echo 0.1.0)\n" in output
    assert ", toy, vibevoice, voxcpm2 (from stentor)\n" in output
    assert "speech    dummy:echo: load" in output


def test_a_server_lists_the_family_with_its_origin_and_speaks_with_it(served: str):
    with urllib.request.urlopen(f"{served}/v1/models", timeout=STUCK_S) as answer:
        (model,) = [m for m in json.load(answer)["data"] if m["id"] == "dummy:echo"]
    assert (model["family"], model["origin"]) == ("echo", "stentor-echo 0.1.0")
    body = json.dumps({"input": "Hello.", "response_format": "wav", "max_frames": 8}).encode()
    request = urllib.request.Request(
        f"{served}/v1/audio/speech", body, {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=STUCK_S) as answer:
        assert answer.read(4) == b"RIFF"


def test_nothing_of_a_package_is_imported_before_its_model_is_asked_for(site: Path):
    code = """
import sys
from stentor import TTS
from stentor.models import families
assert families.named("echo").origin == "stentor-echo 0.1.0"
TTS("dummy:toy", memory_gb=0.01).close()
assert not any(name.startswith("stentor_echo") for name in sys.modules)
TTS("dummy:echo", memory_gb=0.01).close()
assert "stentor_echo.builder" in sys.modules
"""
    python("-c", code, sites=(site,))


def test_a_removed_package_takes_its_family_with_it():
    output = python("-m", "stentor", "say", "--model", "dummy:echo", "Hello.", code=2)
    assert "dummy:echo' is not known; known: dummy:" in output


def test_names_that_clash_are_refused_and_others_work(tmp_path: Path):
    declare(tmp_path, "first", "first", "first_family", facts(dummy="same"))
    declare(tmp_path, "second", "second", "second_family", facts(dummy="same"))
    declare(tmp_path, "third", "toy", "third_family", facts(dummy="third"))
    for model, brought in (
        ("dummy:same", "'first' of first 1.0 and 'second' of second 1.0"),
        ("dummy:third", "'toy' of stentor and 'toy' of third 1.0"),
    ):
        output = python(
            "-m", "stentor", "say", "--model", model, "Hello.", sites=(tmp_path,), code=1
        )
        assert f"{model}: the families {brought} clash; uninstall one of them" in output
    output = python(
        "-m", "stentor", "doctor", "--model", "dummy:cosyvoice4", sites=(tmp_path,), code=2
    )
    assert "refused, because names clash: same: first 1.0, second 1.0" in output


@pytest.mark.parametrize(
    ("package", "source", "problem"),
    [
        ("gone_family", None, "there is no package gone_family"),
        ("acme.tts", None, "acme.tts is not at the top level"),
        (
            "old_family",
            facts(SEAM + 1),
            f"written for version {SEAM + 1} of the families' interface, and stentor has {SEAM}",
        ),
        ("bare_family", "ARCHITECTURES = ()\n", "bare_family has no DUMMIES"),
        ("wrong_family", "raise SystemExit(3", "was never closed"),
        ("made_family", facts() + "DUMMIES = [d for d in 'ab']\n", "DUMMIES must be written out"),
        (
            "odd_family",
            facts() + "ARCHITECTURES = 'odd'\n",
            "ARCHITECTURES must be a tuple of strings",
        ),
    ],
)
def test_a_family_that_cannot_be_used_is_named_with_the_reason(
    tmp_path: Path, package: str, source: str | None, problem: str
):
    declare(tmp_path, "broken", "broken", package, source)
    output = python(
        "-m", "stentor", "say", "--model", "dummy:broken", "Hello.", sites=(tmp_path,), code=2
    )
    assert "family broken of broken 1.0 cannot be used: " in output
    assert problem in output


def test_a_family_whose_code_cannot_be_imported_is_named(tmp_path: Path):
    declare(tmp_path, "half", "half", "half_family", facts(dummy="half"))
    (tmp_path / "half_family" / "builder.py").write_text(
        "import nothing_of_that_name\n", encoding="utf-8"
    )
    output = python(
        "-m", "stentor", "say", "--model", "dummy:half", "Hello.", sites=(tmp_path,), code=1
    )
    assert (
        "family half of half 1.0: half_family.builder cannot be imported: ModuleNotFoundError: No module named"
        in output
    )


@pytest.mark.parametrize(
    ("name", "field"), [("Big", "NAME"), ("toy", "NAME"), ("a-b", "NAME"), ("good", "DIR")]
)
def test_what_no_package_can_be_made_of_is_refused(tmp_path: Path, name: str, field: str):
    (tmp_path / "file").touch()
    with pytest.raises(InvalidRequest) as raised:
        new_family.write(name, tmp_path)
    assert raised.value.param == field

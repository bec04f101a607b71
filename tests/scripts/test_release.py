"""Contents of a release: notes from the changelog, and a wheel that works without the tree."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path
from types import ModuleType

import pytest
import yaml

import stentor

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def release_notes() -> ModuleType:
    spec = importlib.util.spec_from_file_location(
        "release_notes", ROOT / "scripts" / "release_notes.py"
    )
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_notes_are_the_section_of_the_version(release_notes: ModuleType):
    changelog = (
        "# Changelog\n\n## [Unreleased]\n\n- new\n\n## [0.1.0] - 2026-01-01\n\n### Added\n- old\n"
    )
    assert release_notes.notes(changelog, "0.1.0") == "### Added\n- old\n"
    assert release_notes.notes(changelog, "0.2.0") == "- new\n"
    with pytest.raises(SystemExit, match=r"nothing about 0\.2\.0"):
        release_notes.notes("# Changelog\n", "0.2.0")


def test_this_tree_has_notes_for_its_version(release_notes: ModuleType):
    assert release_notes.tree_version() == stentor.__version__
    assert release_notes.notes(
        (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), stentor.__version__
    )


def test_the_wheel_holds_the_voice_and_the_page_and_runs_without_the_tree(tmp_path: Path):
    pytest.importorskip("hatchling")
    make = f"from hatchling.build import build_wheel; print(build_wheel({str(tmp_path)!r}))"
    done = subprocess.run(
        [sys.executable, "-c", make], cwd=ROOT, capture_output=True, text=True, check=True
    )
    wheel = tmp_path / done.stdout.split()[-1]
    assert wheel.name == f"stentor-{stentor.__version__}-py3-none-any.whl"
    with zipfile.ZipFile(wheel) as held:
        names = set(held.namelist())
        held.extractall(tmp_path / "site")
    tree = {
        str(p.relative_to(ROOT))
        for p in (ROOT / "stentor").rglob("*")
        if p.is_file() and "__pycache__" not in p.parts
    }
    assert tree <= names
    assert {p.split("/")[0] for p in names} == {
        "stentor",
        wheel.name.removesuffix("-py3-none-any.whl") + ".dist-info",
    }
    run = (
        "from stentor.cli import main; import stentor; print(stentor.__file__); main(['--version'])"
    )
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "site")}
    said = subprocess.run(
        [sys.executable, "-c", run],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert said.stdout.split() == [
        str(tmp_path / "site/stentor/__init__.py"),
        "stentor",
        stentor.__version__,
    ]


def test_the_sdist_holds_the_sources_and_no_checkpoint_but_what_ships(tmp_path: Path):
    pytest.importorskip("hatchling")
    make = f"from hatchling.build import build_sdist; print(build_sdist({str(tmp_path)!r}))"
    done = subprocess.run(
        [sys.executable, "-c", make], cwd=ROOT, capture_output=True, text=True, check=True
    )
    with tarfile.open(tmp_path / done.stdout.split()[-1]) as held:
        names = {name.partition("/")[2] for name in held.getnames()}
    assert {
        "README.md",
        "pyproject.toml",
        "docs/serving.md",
        "tests/conftest.py",
        "scripts/test",
    } <= names
    weights = {
        name
        for name in names
        if Path(name).suffix in (".safetensors", ".npz", ".npy", ".bin", ".pt")
    }
    assert {str(Path(name).parent) for name in weights} == {
        "stentor/assets/aligner",
        "stentor/assets/voice",
    }
    assert [name for name in names if name.startswith("benchmarks/results/")] == []


@pytest.fixture(scope="module")
def project_urls() -> ModuleType:
    spec = importlib.util.spec_from_file_location(
        "project_urls", ROOT / "scripts" / "project_urls.py"
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_release_names_its_repository_in_each_package(project_urls: ModuleType, tmp_path: Path):
    repository = "https://example.org/somebody/stentor"
    for name in project_urls.PROJECTS:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    project_urls.main(repository, tmp_path)
    for name in project_urls.PROJECTS:
        before = tomllib.loads((ROOT / name).read_text(encoding="utf-8"))
        after = tomllib.loads((tmp_path / name).read_text(encoding="utf-8"))
        urls = after["project"].pop("urls")
        assert after == before
        assert set(urls) >= {"Homepage", "Source", "Issues", "Changelog"}
        assert all(url.startswith(repository) for url in urls.values())
    with pytest.raises(SystemExit, match="already"):
        project_urls.main(repository, tmp_path)
    with pytest.raises(SystemExit, match="no https"):
        project_urls.main("somebody/stentor", tmp_path)


def test_the_release_workflow_publishes_what_the_tree_has(project_urls: ModuleType):
    workflow = yaml.safe_load(
        (ROOT / ".github" / "workflows" / "release.yml").read_text(encoding="utf-8")
    )
    jobs = workflow["jobs"]
    names = {
        tomllib.loads((ROOT / name).read_text(encoding="utf-8"))["project"]["name"]
        for name in project_urls.PROJECTS
    }
    assert {*jobs["publish"]["strategy"]["matrix"]["package"]} == names
    assert jobs["publish"]["permissions"] == {"id-token": "write"}
    assert "secrets." not in str(jobs["publish"])
    uploads = {
        step["with"]["name"] for step in jobs["build"]["steps"] if "upload" in step.get("uses", "")
    }
    assert names <= uploads
    for image in jobs["image"]["strategy"]["matrix"]["include"]:
        assert (ROOT / image["file"]).is_file()

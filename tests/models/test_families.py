"""Every family is laid out alike, so that a reader finds a thing at the first guess."""

import importlib
import inspect
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from stentor import model_names
from stentor.models.config_reader import ConfigReader

EVERY = {"__init__.py", "config.py", "loader.py", "dummy.py", "spec.py", "model.py"}
WITH_FILES = EVERY | {"prompt.py", "tokenizer.py"}
"""Of families that are loaded from released directories."""

families = pytest.mark.parametrize("family", model_names.families(), ids=lambda f: f.__name__.rpartition(".")[2])


def files(family: ModuleType) -> set[str]:
    return {p.name for p in Path(family.__path__[0]).glob("*.py")}


def is_released(family: ModuleType) -> bool:
    """The toy, which has no files to load, is not."""
    return "toy" not in family.ARCHITECTURES


def test_more_than_one_family_is_released():
    assert sum(is_released(f) for f in model_names.families()) >= 3


@families
def test_a_family_has_the_files_that_every_family_has(family: ModuleType):
    assert EVERY - files(family) == set()
    if is_released(family):
        assert WITH_FILES - files(family) == set()
        assert any(name.startswith("codec") for name in files(family))


@families
def test_a_family_is_loaded_and_made_by_functions_of_one_signature(family: ModuleType):
    loader, dummy = (importlib.import_module(f"{family.__name__}.{name}") for name in ("loader", "dummy"))
    assert list(inspect.signature(loader.load).parameters) == ["path", "raw", "device", "dtype", "options"]
    assert list(inspect.signature(dummy.make).parameters) == ["name", "device", "dtype", "options"]


def test_finding_the_families_imports_none_of_their_modules():
    code = "import sys; from stentor import model_names; model_names.families(); print(*sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=300)
    loaded = [m for m in run.stdout.split() if m.startswith("stentor.models.") and m.count(".") > 2]
    assert loaded == []


def test_released_configurations_are_read_by_the_one_reader():
    for family in filter(is_released, model_names.families()):
        config = importlib.import_module(f"{family.__name__}.config")
        assert config.ConfigReader is ConfigReader

"""Every family is laid out alike, so that a reader finds a thing at the first guess."""

import importlib
import inspect
import subprocess
import sys

import pytest

from stentor.models.config_reader import ConfigReader
from stentor.models.families import Family
from stentor.models.families import families as every_family
from tests.helpers.released import MODELS, released

EVERY = {"__init__.py", "config.py", "builder.py", "released.json", "spec.py", "model.py"}
WITH_FILES = EVERY | {"prompt.py"}
"""Files of families that are loaded from released directories."""

OWN = [f for f in every_family() if f.package.startswith("stentor.models.")]
families = pytest.mark.parametrize("family", OWN, ids=lambda f: f.name)


def files(family: Family) -> set[str]:
    return {p.name for p in (MODELS / family.name).iterdir()}


def uses_shared(family: Family, part: str) -> bool:
    """Whether it imports this part from a module that several families share, such as
    `calm_codec`."""
    sources = [path.read_text(encoding="utf-8") for path in (MODELS / family.name).glob("*.py")]
    shared = [path.stem for path in MODELS.glob(f"*_{part}.py")]
    return any(f"stentor.models.{name} " in source for name in shared for source in sources)


def is_released(family: Family) -> bool:
    """The toy, which has no files to load, is not."""
    return family.name != "toy"


def test_more_than_one_family_is_released():
    assert sum(is_released(f) for f in OWN) >= 3


@families
def test_a_family_has_the_files_that_every_family_has(family: Family):
    assert EVERY - files(family) == set()
    if is_released(family):
        assert WITH_FILES - files(family) == set()
        assert "tokenizer.py" in files(family) or uses_shared(family, "tokenizer")
        own_codec = any(name.startswith("codec") for name in files(family))
        assert own_codec or uses_shared(family, "codec")


@families
def test_a_family_is_built_by_a_function_of_one_signature(family: Family):
    builder = importlib.import_module(f"{family.package}.builder")
    assert list(inspect.signature(builder.build).parameters) == [
        "source",
        "device",
        "dtype",
        "options",
    ]


@families
def test_every_model_without_files_is_a_release_with_configuration_files(family: Family):
    """Other releases may be there too: of folders on the Hub that have no description."""
    assert family.dummies
    for name in family.dummies:
        assert released(family.name, name).files


def test_finding_the_families_imports_none_of_their_modules():
    code = (
        "import sys; from stentor.models.families import families; families(); print(*sys.modules)"
    )
    run = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=300
    )
    loaded = [m for m in run.stdout.split() if m.startswith("stentor.models.") and m.count(".") > 2]
    assert loaded == []


def test_released_configurations_are_read_by_the_one_reader():
    for family in filter(is_released, OWN):
        config = importlib.import_module(f"{family.package}.config")
        assert config.ConfigReader is ConfigReader

"""Interface for families from other packages: it is named, enough for the example, and changes with its version only."""

from __future__ import annotations

import json
from pathlib import Path

from stentor.models import new_family
from stentor.models.families import SEAM
from tests.helpers.seam import ROOT, STORED, broken, imports, interface, modules


def test_nothing_of_the_interface_is_removed_or_changed_without_another_version():
    """After a change that is meant, raise stentor.models.families.SEAM and run `python -m tests.helpers.seam`."""
    stored = json.loads(STORED.read_text(encoding="utf-8"))
    assert stored["version"] == SEAM
    assert broken(stored["modules"], interface()) == []


def test_a_change_that_breaks_a_package_is_seen():
    stored = {"m": {"f": ["a", "b="], "gone": [], "C.g": ["self"]}}
    present = {"m": {"f": ["a", "c", "d="], "C.g": ["self", "more="]}}
    assert broken(stored, present) == [
        "m.f: parameter b= is gone",
        "m.f: parameter c is new and has no default",
        "m.gone is gone",
    ]


def test_the_example_and_the_template_import_nothing_else(tmp_path: Path):
    new_family.write("echo", tmp_path / "echo")
    for folder in (ROOT / "examples" / "csm", tmp_path / "echo"):
        assert (
            imports(folder)
            - {*modules(), "stentor.TTS", "stentor.InvalidRequest", "stentor.Reference"}
            == set()
        )

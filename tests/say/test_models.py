"""`stentor models`: what there is, and what this machine has of it."""

from __future__ import annotations

import json
from pathlib import Path

import huggingface_hub.constants
import pytest

from stentor.cli import main
from stentor.models import families, model_names
from stentor.models.families import Family, Release
from stentor.say import models as listing


def test_every_family_of_the_package_lists_what_is_published():
    without = [f.name for f in families.families() if not f.releases and f.origin == families.OWN]
    assert set(without) <= {"toy", "kokoro"}


def test_every_id_that_is_listed_is_a_name_that_a_model_may_have():
    for family in families.families():
        for id in family.releases:
            model_names.check(id)


def test_the_table_and_the_json_list_the_same_models(capsys: pytest.CaptureFixture[str]):
    assert main(["models"]) == 0
    table = capsys.readouterr().out
    assert main(["models", "--json"]) == 0
    models = json.loads(capsys.readouterr().out)
    assert models[0]["here"] == "in the package"
    assert table.startswith("model ")
    assert all(model["name"] in table for model in models)
    assert max(map(len, table.splitlines())) < 200


def test_what_has_been_downloaded_is_told_with_its_size(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    blobs = tmp_path / "models--openbmb--VoxCPM2" / "blobs"
    blobs.mkdir(parents=True)
    with (blobs / "weights").open("wb") as file:
        file.truncate(3 * 2**30)
    main(["models"])
    lines = capsys.readouterr().out.splitlines()
    line = next(line for line in lines if "downloaded (3.0 GiB)" in line)
    assert line.startswith("openbmb/VoxCPM2")


RELEASE = Release("English", "speech", 10.0, "MIT")


@pytest.mark.parametrize(
    ("on_cpu", "gpu_gib", "torch", "graph", "expected"),
    [
        (True, None, True, "", "runs on the CPU"),
        (False, None, True, "", "needs a GPU: slow on the CPU"),
        (False, 24.0, True, "", "runs on the GPU"),
        (False, 12.0, True, "", "too large for this GPU (12 GiB free)"),
        (True, None, False, "", "needs torch: "),
        (True, None, False, "model.onnx", "needs torch, or a folder with model.onnx"),
    ],
)
def test_the_state_of_a_model_depends_on_the_machine(
    on_cpu: bool,
    gpu_gib: float | None,
    torch: bool,
    graph: str,
    expected: str,
):
    machine = listing._Machine()
    machine._gpu_gib = gpu_gib
    machine._has_torch = torch
    family = Family("x", "x", "x", on_cpu=on_cpu, graph=graph)
    assert machine.state(family, "nobody/nothing", RELEASE).startswith(expected)

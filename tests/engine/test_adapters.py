"""Adapters by name: slots are taken, kept while anybody holds an adapter, and used again."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from stentor import registry
from stentor.engine.adapters import Adapters
from stentor.engine.running.adapter_writer import AdapterWriter
from stentor.engine.running.device import Device
from stentor.errors import CheckpointError, InvalidRequest
from tests.helpers.adapters import TINY, make


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return make(tmp_path, 1, rank=2)


@pytest.fixture
def adapters() -> Adapters:
    return of_model(TINY, max_loras=2, max_lora_rank=2)


def of_model(model: str | Path, **options: int) -> Adapters:
    slots = registry.load(model, torch.device("cpu"), None, options).adapters
    return Adapters(slots, AdapterWriter(slots, Device("cpu")))


def test_the_slot_of_an_unloaded_adapter_is_free_when_its_last_holder_lets_go(
    adapters: Adapters, folder: Path
) -> None:
    adapters.load("a", folder)
    adapters.load("b", folder)
    held = adapters.named("a")
    assert held.number != adapters.named("b").number
    adapters.unload("a")
    with pytest.raises(
        InvalidRequest, match="all 2 slots are taken, 1 of them by requests that run with unloaded"
    ):
        adapters.load("c", folder)
    number = held.number
    del held
    adapters.load("c", folder)
    assert adapters.named("c").number == number
    assert list(adapters.loaded) == ["b", "c"]


def test_an_adapter_of_a_model_that_was_unloaded_is_ours_of_that_name(
    adapters: Adapters, folder: Path
) -> None:
    others = of_model(TINY, max_loras=2)
    for name in ("a", "b"):
        others.load(name, folder)
    adapters.load("b", folder)
    assert adapters.current(None) is None
    assert adapters.current(adapters.named("b")) is adapters.named("b")
    assert adapters.current(others.named("b")) is adapters.named("b")
    with pytest.raises(InvalidRequest, match="'a' is not loaded"):
        adapters.current(others.named("a"))


def test_names_are_unique_and_unknown_ones_are_told_what_is_loaded(
    adapters: Adapters, folder: Path
) -> None:
    adapters.load("a", folder)
    with pytest.raises(InvalidRequest, match="'a' is loaded already"):
        adapters.load("a", folder)
    for name, says in (
        ("b", "is not loaded; loaded: a"),
        ("", "is not loaded"),
        (3, "must be the name of a loaded"),
    ):
        with pytest.raises(InvalidRequest, match=says):
            adapters.named(name)
    with pytest.raises(InvalidRequest, match="'b' is not loaded"):
        adapters.unload("b")
    with pytest.raises(InvalidRequest, match="must be a string that is not empty"):
        adapters.load(" ", folder)


def test_a_load_that_fails_takes_no_slot_and_no_name(
    adapters: Adapters, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(CheckpointError, match="no such file"):
        adapters.load("a", tmp_path / "nowhere")
    with pytest.raises(InvalidRequest, match="path: must be a path, got NoneType"):
        adapters.load("a", None)  # type: ignore[arg-type]
    with pytest.raises(CheckpointError, match="above max_lora_rank 2"):
        adapters.load("a", make(tmp_path / "large", 1, rank=3))

    def full(number: int, weights: object) -> None:
        raise torch.OutOfMemoryError("no memory")

    with monkeypatch.context() as patch:
        patch.setattr(adapters.slots, "write", full)
        with pytest.raises(torch.OutOfMemoryError):
            adapters.load("a", folder)
    assert not adapters.loaded
    for name in ("a", "b"):
        adapters.load(name, folder)


def test_a_model_without_slots_says_which_option_makes_them(folder: Path) -> None:
    plain = of_model("dummy:toy")
    with pytest.raises(
        InvalidRequest, match="loaded without slots for adapters: give loras or max_loras"
    ):
        plain.load("a", folder)

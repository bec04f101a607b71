"""CPUs and memory in a container: what its control group allows is what stentor counts with."""

from __future__ import annotations

import ast
import os
from pathlib import Path

import pytest
import torch

import stentor
from stentor.config import EngineConfig
from stentor.engine.memory import plan_memory
from stentor.engine.running.device import Device
from stentor.engine.sizes import GIB
from stentor.host import machine
from stentor.models.toy.model import Toy

MEMORY = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


@pytest.fixture
def group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The control group of this process, inside another one. It has no limits yet, and the machine has 16 CPUs."""
    own = tmp_path / "sys" / "pod" / "container"
    own.mkdir(parents=True)
    told = tmp_path / "cgroup"
    told.write_text("4:memory:/old\n0::/pod/container\n")
    monkeypatch.setattr(machine, "GROUPS", tmp_path / "sys")
    monkeypatch.setattr(machine, "OWN_GROUP", told)
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(16)))
    return own


def test_without_limits_all_counts_that_the_machine_has(group: Path) -> None:
    (group / "cpu.max").write_text("max 100000\n")
    (group / "memory.max").write_text("max\n")
    assert (machine.cpus(), machine.memory()) == (16, MEMORY)


@pytest.mark.parametrize(
    ("quota", "counted"), [("250000 100000", 3), ("10000 100000", 1), ("6400000 100000", 16)]
)
def test_a_quota_of_cpus_counts_rounded_up(group: Path, quota: str, counted: int) -> None:
    (group / "cpu.max").write_text(quota)
    assert machine.cpus() == counted


def test_the_least_limit_of_all_groups_around_counts(group: Path) -> None:
    (group / "cpu.max").write_text("400000 100000")
    (group.parent / "cpu.max").write_text("200000 100000")
    (group / "memory.max").write_text(f"{MEMORY // 2}\n")
    (group.parent / "memory.max").write_text(f"{MEMORY // 3}\n")
    assert (machine.cpus(), machine.memory()) == (2, MEMORY // 3)


def test_without_control_groups_affinity_counts(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(machine, "OWN_GROUP", tmp_path / "none")
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {3, 5})
    assert (machine.cpus(), machine.memory()) == (2, MEMORY)


def test_an_engine_has_no_more_threads_than_its_container_has_cpus(
    group: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """OpenMP would start one for each of the machine, which then wait for each other's share of the quota."""
    taken: set[int] = set()
    monkeypatch.setattr(torch, "get_num_threads", lambda: 16)
    monkeypatch.setattr(torch, "set_num_threads", taken.add)

    def threads(**settings: int) -> set[int]:
        taken.clear()
        with stentor.TTS("dummy:toy", memory_gb=0.01, **settings):
            return set(taken)

    assert (threads(), threads(max_threads=6), threads(threads=9)) == (set(), {6}, {9})
    (group / "cpu.max").write_text("300000 100000")
    assert (threads(), threads(max_threads=6), threads(max_threads=2), threads(threads=9)) == (
        {3},
        {3},
        {2},
        {9},
    )


def test_pages_on_a_cpu_leave_memory_for_the_rest(group: Path) -> None:
    def pages(**settings: float) -> float:
        model = Toy(0, torch.float32, torch.device("cpu"))
        found = plan_memory(model, EngineConfig(**settings), Device("cpu"))
        return found.pages * found.page_bytes

    mib = GIB / 1024
    (group / "memory.max").write_text(str(4 * 1024 * 1024))
    assert 0.9 * mib < pages() <= mib
    assert 1.4 * mib < pages(memory_gb=1.5 / 1024) <= 1.5 * mib  # was asked for
    (group / "memory.max").write_text("max")
    assert mib < pages() <= GIB


def test_nobody_else_counts_cpus() -> None:
    root = Path(stentor.__file__).parent
    names = ("cpu_count", "process_cpu_count", "sysconf")
    found = {
        path.relative_to(root).as_posix()
        for path in root.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Attribute) and node.attr in names
    }
    assert found == {"host/machine.py"}

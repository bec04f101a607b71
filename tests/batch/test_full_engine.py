"""The engine is kept full across items."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from stentor.engine.engine import Engine
from stentor.engine.scheduling.scheduler import Scheduler
from tests.batch.runs import CUT, TOY, speak
from tests.helpers.patience import STUCK_S

SLOTS, ITEMS = 4, 30


class Gate:
    """Holds an engine before each step until it has an item for each slot, or all items.

    A run that gave it the next items only after the last had ended would never open it.
    """

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.given, self.changed = 0, threading.Condition()
        submit, step = Engine.submit, Engine._step

        def counted(engine: Engine, *arguments: Any, **options: Any) -> Any:
            stream = submit(engine, *arguments, **options)
            with self.changed:
                self.given += 1
                self.changed.notify()
            return stream

        def held(engine: Engine) -> None:
            with self.changed:
                full = self.changed.wait_for(lambda: self.full(engine), timeout=STUCK_S)
            assert full, f"{self.given} given, {engine.stats}"
            step(engine)

        patch.setattr(Engine, "submit", counted)
        patch.setattr(Engine, "_step", held)

    def full(self, engine: Engine) -> bool:
        return self.given == ITEMS or self.given - engine.stats.finished >= SLOTS


def test_steps_have_a_row_for_each_slot_until_the_last_items(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate, rows, plan = Gate(monkeypatch), list[int](), Scheduler.plan

    def counted(self: Scheduler, now: float) -> Any:
        made = plan(self, now + 1.0)  # no prefill waits for others, however short a step is
        if made.decode and gate.given < ITEMS:
            rows.append(len(made.decode))
        return made

    monkeypatch.setattr(Scheduler, "plan", counted)
    items = [
        {"text": "x" * (1 + n % 7), "max_frames": 3 + n % 5, "retries": 1} for n in range(ITEMS)
    ]
    assert speak(tmp_path, items, toy=(*TOY[:2], "--max-num-seqs", str(SLOTS))) == CUT
    assert gate.given == ITEMS
    assert rows == [SLOTS] * len(rows)
    assert len(rows) >= 8

"""Return of freed memory to the system."""

from __future__ import annotations

import asyncio
import ctypes
import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from stentor.server import memory
from stentor.server.config import ServerConfig
from stentor.server.engines.client import EngineClient
from stentor.server.engines.lifecycle import OwnedEngine
from stentor.server.limits import LIMITS
from stentor.server.model_hosts import ModelHost
from tests.helpers import virtual_time


def resident_mb() -> float:
    found = re.search(r"RssAnon:\s*(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None
    return int(found[1]) / 1024


@pytest.mark.skipif(
    getattr(ctypes.CDLL(None), "malloc_trim", None) is None, reason="this C library is not glibc"
)
def test_memory_that_is_free_between_blocks_in_use_goes_back() -> None:
    blocks = [np.ones(8192) for _ in range(3200)]  # 64 KiB each, below what is mapped by itself
    before = resident_mb()
    del blocks[:-1]
    memory.trim()
    assert before - resident_mb() > 150


async def at_once(work: Callable[[], object]) -> object:
    return work()


def test_a_model_that_runs_has_free_memory_given_back_now_and_then(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    trims: list[float] = []

    async def main(loop: virtual_time.VirtualTimeLoop) -> None:
        monkeypatch.setattr(
            asyncio, "to_thread", at_once
        )  # a thread takes real time, which the clock does not see
        monkeypatch.setattr(memory, "trim", lambda: trims.append(loop.time()))
        host = ModelHost("toy", ServerConfig(), lambda code: None)
        engine = OwnedEngine(host, 0, lambda *_: pytest.fail("loaded"), asyncio.Lock())
        client = EngineClient("toy", 0, lambda *_: None)
        engine.process = SimpleNamespace(client=client, ended=loop.create_future())  # type: ignore[assignment]
        watch = asyncio.create_task(engine._watch())
        await asyncio.sleep(3.5 * LIMITS.trim_seconds)
        watch.cancel()
        await asyncio.gather(watch, return_exceptions=True)

    virtual_time.run(main)
    assert len(trims) == 3

"""What a server does before it is ready."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import stentor
from stentor.models.base import ModelSpec
from stentor.server import warm_up
from stentor.server.http import json_text


@pytest.fixture(scope="module")
def spec() -> ModelSpec:
    with stentor.TTS("dummy:toy", device="cpu") as tts:
        return tts.spec


@pytest.mark.parametrize("rate", [16_000, 24_000, 44_100])
@pytest.mark.parametrize("seconds", [(0.5, 60.0), (3.0, 10.0), (0.1, 0.4)])
def test_the_first_reference_is_read_as_a_client_sends_it(
    spec: ModelSpec, rate: int, seconds: tuple[float, float]
) -> None:
    """A file is decoded that needs to be resampled, whatever rate the model takes, and a short part of it is encoded."""
    found = warm_up.noise(replace(spec, reference_rate=rate, reference_seconds=seconds), 1.0)
    assert found.rate != rate
    assert not found.kept
    assert len(found.samples) == int(min(max(seconds[0], 1.0), seconds[1]) * found.rate)
    assert 0.05 < np.abs(found.samples).max() <= 1.0


def test_a_body_is_read_in_the_threads_that_read_those_of_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[str, str]] = []

    def watched(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any) -> Any:
            seen.append((real.__name__, threading.current_thread().name))
            return real(*args)

        return call

    for module, name in ((warm_up, "_body"), (json_text, "loads"), (warm_up, "from_base64"), (warm_up, "decode")):
        monkeypatch.setattr(module, name, watched(getattr(module, name)))
    with ExitStack() as stack:
        pools = [stack.enter_context(ThreadPoolExecutor(1, name)) for name in ("parse", "hold", "decode")]
        asyncio.run(warm_up.read_as_sent(*pools))
    assert seen == [("_body", "asyncio_0"), ("loads", "parse_0"), ("from_base64", "hold_0"), ("decode", "decode_0")]

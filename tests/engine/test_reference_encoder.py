"""Reference audio is encoded once, and nobody waits for the audio of others."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch

from stentor.engine.device import Device
from stentor.engine.reference_encoder import ENCODINGS, NotEncoded, ReferenceEncoder
from stentor.models.base import SpeechModel

SECONDS = 60  # after which a test has hung


def audio(value: float) -> np.ndarray:
    return np.full(4, value, np.float32)


def encoder(encode: Callable[[float], None]) -> ReferenceEncoder:
    """An encoder whose family doubles the samples, after it has called `encode` with the first of them."""

    def model_encode(wav: torch.Tensor, role: str) -> dict[str, torch.Tensor]:
        encode(float(wav[0]))
        return {"frames": 2 * wav}

    return ReferenceEncoder(cast(SpeechModel, SimpleNamespace(encode=model_encode)), Device("cpu"), 3)


class Gate:
    """Encodings wait here until the test lets them go."""

    def __init__(self, *values: float) -> None:
        self.values = values
        self.entered, self.going = threading.Semaphore(0), threading.Event()
        self.encoded: list[float] = []

    def __call__(self, value: float) -> None:
        self.encoded.append(value)
        self.entered.release()
        if value in self.values:
            assert self.going.wait(SECONDS)

    def wait(self, count: int = 1) -> None:
        for _ in range(count):
            assert self.entered.acquire(timeout=SECONDS)


def test_what_is_cached_does_not_wait_for_audio_that_is_encoded() -> None:
    gate = Gate(2.0)
    made = encoder(gate)
    made.encode(audio(1), "reference")
    gate.wait()
    with ThreadPoolExecutor(2) as pool:
        slow = pool.submit(made.encode, audio(2), "reference")
        gate.wait()
        quick = pool.submit(made.encode, audio(1), "reference")
        try:
            assert quick.result(SECONDS / 2)["frames"].tolist() == [2.0] * 4
            assert not slow.done()
        finally:
            gate.going.set()
    assert slow.result()["frames"].tolist() == [4.0] * 4


def test_different_references_are_encoded_side_by_side() -> None:
    gate = Gate(*range(ENCODINGS))
    made = encoder(gate)
    with ThreadPoolExecutor(ENCODINGS) as pool:
        found = [pool.submit(made.encode, audio(i), "reference") for i in range(ENCODINGS)]
        try:
            gate.wait(ENCODINGS)  # all are inside
        finally:
            gate.going.set()
    assert [f.result()["frames"][0] for f in found] == [2.0 * i for i in range(ENCODINGS)]


def test_one_reference_that_many_ask_for_at_once_is_encoded_once() -> None:
    gate = Gate(1.0)
    made = encoder(gate)
    with ThreadPoolExecutor(4) as pool:
        found: list[Future[Any]] = [pool.submit(made.encode, audio(1), "reference") for _ in range(8)]
        gate.wait()
        gate.going.set()
    assert [f.result()["frames"][0] for f in found] == [2.0] * 8
    assert gate.encoded == [1.0]


def test_a_failure_reaches_all_who_wait_and_the_next_call_tries_again() -> None:
    calls: list[float] = []
    going = threading.Event()

    def fail_once(value: float) -> None:
        calls.append(value)
        if len(calls) == 1:
            assert going.wait(SECONDS)
            raise torch.OutOfMemoryError("no room")

    made = encoder(fail_once)
    with ThreadPoolExecutor(1) as pool:
        failing = pool.submit(made.encode, audio(1), "reference")
        going.set()
        with pytest.raises(torch.OutOfMemoryError):
            failing.result(SECONDS)
    assert made.encode(audio(1), "reference")["frames"].tolist() == [2.0] * 4
    assert calls == [1.0, 1.0]


def test_roles_have_their_own_features_and_a_look_up_never_encodes() -> None:
    gate = Gate()
    made = encoder(gate)
    with pytest.raises(NotEncoded):
        made.cached(audio(1), "reference")
    assert not gate.encoded
    made.encode(audio(1), "reference")
    assert made.cached(audio(1), "reference")["frames"].tolist() == [2.0] * 4
    with pytest.raises(NotEncoded):
        made.cached(audio(1), "prompt")

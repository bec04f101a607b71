"""Streams while replicas are lost, replaced and taken away. The full figure: benchmarks/replicas/rolling.py."""

from __future__ import annotations

import argparse

import pytest

from benchmarks.replicas import rolling
from tests.helpers.replicas import NEEDS_RAY

pytestmark = [
    NEEDS_RAY,
    pytest.mark.slow,  # minutes: every replica that goes drains for 30 s
]


def test_only_the_streams_of_a_lost_device_break() -> None:
    row = rolling.measure(
        argparse.Namespace(
            streams=100, clients=8, replicas=2, longest=900.0, slots=4, frames=50, step_ms=10.0
        )
    )
    lost, updates = row["lost"], row["updates"]
    assert lost["streams"] - lost["complete"] <= lost["streams of the lost device"]
    assert updates["complete"] == updates["streams"] >= 100

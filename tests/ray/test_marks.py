"""Replicas mark audio as the plain server does."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest

from stentor.output.marks import comment
from tests.helpers.patience import STUCK_S
from tests.helpers.replicas import NEEDS_RAY, replicas
from tests.helpers.server_live import pcm
from tests.helpers.watermarks import tone

pytestmark = NEEDS_RAY


def test_a_replica_has_the_package_of_the_watermark_and_says_what_has_made_the_audio(
    tmp_path: Path,
) -> None:
    flags = ("--voices-dir", str(tmp_path), "--memory-gb", "0.01", "--threads", "1", "--provenance")
    with replicas(1, *flags, "--watermark", "tests.helpers.watermarks:Tone") as running:
        ask = {"input": "Hello there.", "response_format": "pcm", "seed": 7, "max_frames": 20}
        answer = httpx.post(
            f"{running.url}/v1/audio/speech", json=ask, timeout=STUCK_S, trust_env=False
        )
    assert answer.headers["x-provenance"] == comment("dummy:toy")
    samples = pcm(answer.content)
    mark = tone(len(samples))
    assert samples @ mark / (mark @ mark) == pytest.approx(1, abs=0.1)

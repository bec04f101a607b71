"""Which replica gets a request: affinity by a header."""

from __future__ import annotations

import importlib.util
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from tests.helpers.replicas import replicas

pytestmark = [
    pytest.mark.skipif(
        importlib.util.find_spec("ray") is None, reason="ray is not installed: pip install 'stentor[ray]'"
    ),
    pytest.mark.xdist_group("ray"),  # one cluster at a time
]

HEADER = "x-session-id"
SMALL = ("--max-num-seqs", "2", "--memory-gb", "0.01", "--threads", "1", "--no-guard")


def metrics(url: str, **headers: str) -> str:
    return httpx.get(url + "/metrics", headers=headers, timeout=60, trust_env=False).text


def replica_of(url: str, session: str) -> str:
    found = re.search(r'replica="(\w+)"', metrics(url, **{HEADER: session}))
    assert found is not None
    return found[1]


def test_requests_of_a_session_go_to_one_replica(tmp_path: Path) -> None:
    sessions = [f"voice-{i}" for i in range(12)]
    with replicas(2, "--session-header", HEADER, "--voices-dir", str(tmp_path), *SMALL) as url:
        first = {name: replica_of(url, name) for name in sessions}
        with ThreadPoolExecutor(4) as pool:  # at once: the load divides nothing
            for _ in range(4):
                assert dict(zip(sessions, pool.map(lambda name: replica_of(url, name), sessions), strict=True)) == first
        assert len(set(first.values())) == 2  # the others have other replicas
        spoken = [
            httpx.post(
                url + "/v1/audio/speech",
                json={"input": "Hello.", "max_new_tokens": 4},
                headers={HEADER: "voice-0"},
                timeout=60,
                trust_env=False,
            ).status_code
            for _ in range(6)
        ]
        assert spoken == [200] * 6
        page = metrics(url, **{HEADER: "voice-0"})
        counted = [line for line in page.splitlines() if line.startswith("stentor:requests_success_total")]
        assert sum(float(line.split()[-1]) for line in counted) >= 6

"""Balance of replicas: affinity by a header, and a number that follows the load."""

from __future__ import annotations

import asyncio
import re
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from benchmarks.replicas import streams
from tests.helpers.patience import STUCK_S, until
from tests.helpers.replicas import NEEDS_RAY, replicas

pytestmark = NEEDS_RAY

HEADER = "x-session-id"
SMALL = ("--max-num-seqs", "8", "--memory-gb", "0.01", "--threads", "1", "--no-guard")


def metrics(url: str, **headers: str) -> str:
    return httpx.get(url + "/metrics", headers=headers, timeout=STUCK_S, trust_env=False).text


def replica_of(url: str, session: str) -> str:
    found = re.search(r'replica="(\w+)"', metrics(url, **{HEADER: session}))
    assert found is not None
    return found[1]


def test_requests_of_a_session_go_to_one_replica(tmp_path: Path) -> None:
    sessions = [f"voice-{i}" for i in range(12)]
    with replicas(2, "--session-header", HEADER, "--voices-dir", str(tmp_path), *SMALL) as running:
        url = running.url
        seen: list[dict[str, str]] = [{}]

        def settled() -> bool:
            """The proxy may still learn of a replica when the first is ready, which changes whose a session is."""
            seen.append({name: replica_of(url, name) for name in sessions})
            # some sessions have other replicas
            return seen[-1] == seen[-2] and len(set(seen[-1].values())) == 2

        assert until(settled)
        first = seen[-1]
        with ThreadPoolExecutor(4) as pool:  # at once: the load divides nothing
            for _ in range(4):
                assert (
                    dict(
                        zip(
                            sessions,
                            pool.map(lambda name: replica_of(url, name), sessions),
                            strict=True,
                        )
                    )
                    == first
                )
        spoken = [
            httpx.post(
                url + "/v1/audio/speech",
                json={"input": "Hello.", "max_new_tokens": 4},
                headers={HEADER: "voice-0"},
                timeout=STUCK_S,
                trust_env=False,
            ).status_code
            for _ in range(6)
        ]
        assert spoken == [200] * 6
        page = metrics(url, **{HEADER: "voice-0"})
        counted = [
            line for line in page.splitlines() if line.startswith("stentor:requests_success_total")
        ]
        assert sum(float(line.split()[-1]) for line in counted) >= 6


@pytest.mark.slow  # a replica is taken away after 120 s without load, and drains for 30 s
def test_the_number_of_replicas_follows_the_load(tmp_path: Path) -> None:
    with replicas(2, "--voices-dir", str(tmp_path), *SMALL, follows_load=True) as running:
        url = running.url

        def names() -> set[str]:
            with ThreadPoolExecutor(4) as pool:
                pages = list(pool.map(lambda _: metrics(url), range(8)))
            return {found[1] for page in pages if (found := re.search(r'replica="(\w+)"', page))}

        assert len(names()) == 1
        many, over = threading.Event(), threading.Event()
        with ThreadPoolExecutor(2) as pool:
            heavy = pool.submit(
                lambda: asyncio.run(
                    streams.load(url, 24, streams.toy(100), lambda n: not many.is_set())
                )
            )
            light = pool.submit(
                lambda: asyncio.run(
                    streams.load(url, 1, streams.toy(20), lambda n: not over.is_set())
                )
            )
            try:
                assert until(lambda: len(names()) == 2)
                many.set()
                spoken = heavy.result()
                assert until(lambda: len({n for _ in range(4) for n in names()}) == 1)
            finally:
                many.set()
                over.set()
            spoken += light.result()
    assert len(spoken) > 10
    assert {s.fault for s in spoken} == {""}

"""Replicas of the server as the `live` of tests: what a client can do works, what reaches into the process skips.

STENTOR_TEST_URL is the address, STENTOR_TEST_VOICES the folder of uploaded voices. scripts/replica_tests.py starts the
replicas and runs the tests against them.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

import httpx
import pytest

from tests.helpers.patience import STUCK_S
from tests.helpers.server_live import Live, until

URL, VOICES = "STENTOR_TEST_URL", "STENTOR_TEST_VOICES"
FIRST_PORT, PORTS = 30000, 16  # of replicas, counted up by Ray
INSIDE = "looks into the server's process"
PATCHES = ("monkeypatch", "caplog")  # fixtures that change or read the process of the tests
CHUNKS = "replicas answer HTTP/1.0 in chunks: Serve has connections of its own"
OTHERWISE = {  # what replicas do in another way, by test. docs/scaling.md says so
    "test_an_answer_has_no_chunks_and_is_the_same[stream]": CHUNKS,
    "test_an_answer_has_no_chunks_and_is_the_same[events]": CHUNKS,
}


def why_not(item: pytest.Item) -> str | None:
    """Why a test of `live` cannot run against replicas. None: it can."""
    used = [name for name in PATCHES if name in getattr(item, "fixturenames", ())]
    if used:
        return f"{INSIDE} ({', '.join(used)})"
    return OTHERWISE.get(item.name)


class Remote(Live):
    """Replicas behind their proxy. They run already."""

    def __init__(self, url: str, http: httpx.Client) -> None:
        self.url, self.http = url, http

    def __getattr__(self, name: str) -> NoReturn:
        """`server`, `loop`: of a process that is not this one."""
        if name.startswith("__"):
            raise AttributeError(name)
        pytest.skip(f"{INSIDE} ({name})")

    @property
    def voices_folder(self) -> Path:
        """The folder that all replicas share."""
        return Path(os.environ[VOICES])

    def idle(self, seconds: float = STUCK_S) -> bool:
        """Whether no replica has a request, within some time."""
        return until(lambda: not (self.sum_of("num_requests_running") or self.sum_of("num_requests_waiting")), seconds)

    def metrics_pages(self) -> list[str]:
        """Each replica answers at a port of its own."""
        found = []
        for port in range(FIRST_PORT, FIRST_PORT + PORTS):
            try:
                answer = httpx.get(f"http://127.0.0.1:{port}/metrics", timeout=10, trust_env=False)
            except httpx.ConnectError:
                continue
            if 'replica="' in answer.text:
                found.append(answer.text)
        return found or super().metrics_pages()  # a plain server


@contextmanager
def remote(url: str) -> Iterator[Remote]:
    """Replicas at an address."""
    with httpx.Client(base_url=url, timeout=STUCK_S, trust_env=False) as http:
        yield Remote(url, http)

"""Replicas of the server as the `live` of tests: what a client can do works, what reaches into the process skips.

STENTOR_TEST_URL is the address. scripts/replica_tests.py starts the replicas and runs the tests against them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

import httpx
import pytest

from tests.helpers.patience import STUCK_S
from tests.helpers.server_live import Live, until

URL = "STENTOR_TEST_URL"
FIRST_PORT, PORTS = 30000, 16  # of replicas, counted up by Ray
INSIDE = "looks into the server's process"


class Remote(Live):
    """Replicas behind their proxy. They run already."""

    def __init__(self, url: str, http: httpx.Client) -> None:
        self.url, self.http = url, http

    def __getattr__(self, name: str) -> NoReturn:
        """`server`, `loop`: of a process that is not this one."""
        if name.startswith("__"):
            raise AttributeError(name)
        pytest.skip(f"{INSIDE} ({name})")

    def idle(self, seconds: float = STUCK_S) -> bool:
        """Whether no replica has a request, within some time."""
        return until(lambda: not (self.sum_of("num_requests_running") or self.sum_of("num_requests_waiting")), seconds)

    def sum_of(self, start: str) -> float:
        """The sum over all replicas of the metrics whose names begin so. Each answers at a port of its own."""
        lines = [line for page in self._pages() for line in page.splitlines()]
        return sum(float(line.split()[-1]) for line in lines if line.startswith("stentor:" + start))

    def _pages(self) -> list[str]:
        found = []
        for port in range(FIRST_PORT, FIRST_PORT + PORTS):
            try:
                answer = httpx.get(f"http://127.0.0.1:{port}/metrics", timeout=10, trust_env=False)
            except httpx.ConnectError:
                continue
            if 'replica="' in answer.text:
                found.append(answer.text)
        return found or [self.http.get("/metrics").text]  # a plain server


@contextmanager
def remote(url: str) -> Iterator[Remote]:
    """Replicas at an address."""
    with httpx.Client(base_url=url, timeout=STUCK_S, trust_env=False) as http:
        yield Remote(url, http)

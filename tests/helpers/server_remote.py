"""Replicas of the server as the `live` of tests: what a client can do works, what reaches into the process skips.

STENTOR_TEST_URL is the address, STENTOR_TEST_PORT the port of the first replica, STENTOR_TEST_VOICES the folder of
uploaded voices. STENTOR_TEST_VOICE says that they speak with the built-in voice. scripts/replica_tests.py starts the
replicas and runs the tests against them.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

import httpx
import pytest

from tests.helpers.patience import STUCK_S, until
from tests.helpers.server_live import Live

URL, PORT, VOICES, VOICE = (
    "STENTOR_TEST_URL",
    "STENTOR_TEST_PORT",
    "STENTOR_TEST_VOICES",
    "STENTOR_TEST_VOICE",
)
PORTS = 16  # from the first replica's, counted up by Ray
INSIDE = "looks into the server's process"
PATCHES = ("monkeypatch", "caplog")  # fixtures that change or read the process of the tests
CHUNKS = "replicas answer HTTP/1.0 in chunks: Serve has connections of its own"
OTHERWISE = {  # what replicas do in another way, by test. docs/scaling.md says so
    "test_an_answer_has_no_chunks_and_is_the_same[stream]": CHUNKS,
    "test_an_answer_has_no_chunks_and_is_the_same[events]": CHUNKS,
    "test_first_bytes_come_before_the_speech_is_finished": "/health is that of one replica",
    "test_a_seed_gives_the_same_bytes_in_one_piece_and_nearly_in_several_or_streamed": "each replica fills a prefix "
    "cache of its own, so tests/ray asks each one",
    "test_the_page_speaks_without_underrun_shows_its_figures_and_can_be_stopped": "the page is a plain server's",
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
        return until(
            lambda: (
                not (self.sum_of("num_requests_running") or self.sum_of("num_requests_waiting"))
            ),
            seconds,
        )

    def metrics_pages(self) -> list[str]:
        return [
            httpx.get(f"{url}/metrics", timeout=STUCK_S, trust_env=False).text
            for url in each_process(self.url)
        ]


def each_process(url: str) -> list[str]:
    """Addresses of the replicas, each at a port of its own. That of a plain server is `url`."""
    first = os.environ.get(PORT)
    return [url] if first is None else at_own_ports(int(first))


def at_own_ports(first: int) -> list[str]:
    """Addresses of the replicas that listen from a port on."""
    return [f"http://127.0.0.1:{port}" for port in range(first, first + PORTS) if _listens(port)]


def _listens(port: int) -> bool:
    with socket.socket() as s:
        return s.connect_ex(("127.0.0.1", port)) == 0


@contextmanager
def remote(url: str) -> Iterator[Remote]:
    """Replicas at an address."""
    with httpx.Client(base_url=url, timeout=STUCK_S, trust_env=False) as http:
        yield Remote(url, http)

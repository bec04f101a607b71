"""The built-in voice on replicas: what it says, and when, does not depend on the process that speaks."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from stentor.api import DEFAULT_VOICE
from tests.helpers import server_remote
from tests.helpers.patience import STUCK_S
from tests.helpers.replicas import NEEDS_RAY, replicas
from tests.helpers.server_live import process

pytestmark = [
    NEEDS_RAY,
    pytest.mark.skipif(
        not (DEFAULT_VOICE / "config.json").is_file(),
        reason="the built-in voice is not in this build: docs/training.md",
    ),
]

ASK = {"input": "Good morning, dear harbour.", "response_format": "pcm"}
SEEDS = (5, 6)


@dataclass(frozen=True)
class Addresses:
    """proxy: of all replicas. each: of each one, at a port of its own."""

    proxy: str
    each: list[str]


@pytest.fixture(scope="module")
def there(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Addresses]:
    """Replicas: those of scripts/replica_tests.py where it runs this, else two."""
    if server_remote.VOICE in os.environ:
        url = os.environ[server_remote.URL]
        yield Addresses(url, server_remote.each_process(url))
        return
    flags = (
        "--voices-dir",
        str(tmp_path_factory.mktemp("voices")),
        "--memory-gb",
        "0.1",
        "--threads",
        "1",
    )
    with replicas(2, *flags, models=()) as running:
        yield Addresses(running.url, running.each)


def get(url: str, path: str) -> httpx.Response:
    return httpx.get(url + path, timeout=STUCK_S, trust_env=False)


def speech(url: str, **body: Any) -> httpx.Response:
    answer = httpx.post(
        f"{url}/v1/audio/speech", json={**ASK, **body}, timeout=STUCK_S, trust_env=False
    )
    answer.raise_for_status()
    return answer


def test_audio_of_a_seed_is_that_of_the_plain_server(there: Addresses, tmp_path: Path) -> None:
    with process("--voices-dir", str(tmp_path), "--memory-gb", "0.1", model=()) as (_, plain):
        wanted = [speech(plain, seed=seed).content for seed in SEEDS]
    assert wanted[0] != wanted[1]
    for url in there.each:
        assert [speech(url, seed=seed).content for seed in SEEDS] == wanted


def test_a_seed_gives_the_same_bytes_at_each_replica_once_its_prompt_is_cached(
    there: Addresses,
) -> None:
    """The first answer of a replica may differ by rounding: it computes the prompt that later ones find."""
    longer = {"input": "Good morning. How are you?", "split_granularity": "none", "seed": 5}
    answers = [[speech(url, **longer).content for _ in range(3)] for url in there.each]
    assert len({later for _, *each in answers for later in each}) == 1


def test_any_replica_tells_the_words_of_a_request(there: Addresses) -> None:
    """Their times were found by one replica, and are asked for at each, and through the proxy."""
    spoken = [speech(url, seed=5, word_timestamps=True) for url in there.each]
    words = [answer.json()["words"] for answer in spoken]
    assert [word["word"] for word in words[0]] == ["Good", "morning,", "dear", "harbour."]
    assert words == [words[0]] * len(words)
    ids = [answer.headers["x-request-id"] for answer in spoken]
    paths = [f"/v1/audio/speech/{id}/timestamps?format=json" for id in ids]
    asked = [(url, path) for url in (*there.each, *[there.proxy] * 4) for path in paths]
    with ThreadPoolExecutor(4) as pool:
        told = [answer.json()["words"] for answer in pool.map(lambda ask: get(*ask), asked)]
    assert told == [words[0]] * len(asked)

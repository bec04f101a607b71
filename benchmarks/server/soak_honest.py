"""Honest clients of a long soak, in a process of their own, so that only the server can make them wait.

Run by soak.py: python benchmarks/server/soak_honest.py URL CLIENTS SEED LSB
It prints one JSON line per event. The first says which answers the server gives when nothing else runs. Then there is
one line per request: when it began (time.monotonic), how long it took until its last byte, its status, and whether its
audio was right. It ends when its standard input does.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import sys
import time
from typing import Any

import aiohttp
import numpy as np

TEXTS = (
    "Hello there, you.",
    "One is here. Two is here.",
    "A longer sentence that says nothing at all, slowly.",
)
SEEDS = (1, 2)
PAUSE_S = 0.5  # on average, between two requests of a client
LAG_S = 0.05  # between two looks at how late this process's own event loop is

Answers = dict[tuple[str, int], np.ndarray]


def ask(text: str, seed: int) -> dict[str, Any]:
    """The body of a request whose answer depends on nothing else."""
    return {
        "input": text,
        "seed": seed,
        "response_format": "pcm",
        "guard": False,
        "split_granularity": "none",
    }


async def answers(url: str, http: aiohttp.ClientSession) -> Answers:
    """Answers of the server to each text and seed, one after another."""
    found: Answers = {}
    for text in TEXTS:
        for seed in SEEDS:
            async with http.post(
                url + "/v1/audio/speech", json={**ask(text, seed), "stream": False}
            ) as answer:
                found[text, seed] = np.frombuffer(await answer.read(), "<i2").astype(int)
    return found


def session() -> aiohttp.ClientSession:
    """One connection per request, so that a request is timed with its connection."""
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, force_close=True), timeout=aiohttp.ClientTimeout(60)
    )


def say(**event: Any) -> None:
    print(json.dumps(event), flush=True)


async def client(
    url: str, http: aiohttp.ClientSession, right: Answers, seed: int, lsb: float
) -> None:
    """Streams, timed from their connection to their last byte, with pauses."""
    choice = random.Random(seed)
    while True:
        await asyncio.sleep(choice.expovariate(1 / PAUSE_S))
        what, begin = choice.choice(list(right)), time.monotonic()
        try:
            async with http.post(
                url + "/v1/audio/speech", json={**ask(*what), "stream_format": "audio"}
            ) as answer:
                data = await answer.read()
                seconds = time.monotonic() - begin
        except (aiohttp.ClientError, TimeoutError) as e:
            say(begin=begin, status=0, error=type(e).__name__)
            continue
        got = (
            np.frombuffer(data[: len(data) // 2 * 2], "<i2").astype(int)
            if answer.status == 200
            else right[what]
        )
        same = len(got) == len(right[what]) and bool(np.abs(got - right[what]).max() <= lsb)
        say(begin=round(begin, 4), seconds=round(seconds, 4), status=answer.status, right=same)


async def lag() -> None:
    """Tell how late this process's event loop was, once a second."""
    while True:
        worst = 0.0
        for _ in range(int(1 / LAG_S)):
            due = time.monotonic() + LAG_S
            await asyncio.sleep(LAG_S)
            worst = max(worst, time.monotonic() - due)
        say(at=round(time.monotonic(), 2), lag=round(worst, 4))


async def main(url: str, clients: int, seed: int, lsb: float) -> None:
    async with session() as http:
        right = await answers(url, http)
        say(ready=time.monotonic())
        tasks = [
            asyncio.create_task(client(url, http, right, 1000 * seed + i, lsb))
            for i in range(clients)
        ]
        tasks.append(asyncio.create_task(lag()))
        await asyncio.to_thread(sys.stdin.read)
        for task in tasks:
            task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.gather(*tasks)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])))

"""Clients of replicas: streams of raw PCM without a pause, each judged by how it ended."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import aiohttp

PATH = "/v1/audio/speech"
FRAME_BYTES = 12  # of PCM of the toy model
LONGEST_S = 120.0


@dataclass(frozen=True)
class Stream:
    """One stream. Times in seconds: began and ended of the monotonic clock, first from its begin to the first audio."""

    began: float
    ended: float
    first: float | None
    status: int  # 0: the connection failed
    bytes: int
    fault: str  # empty: complete

    @property
    def complete(self) -> bool:
        return not self.fault


def body(frames: int, text: str = "Hello there.") -> dict[str, Any]:
    """A request of so many frames of the toy model."""
    form = {"stream_format": "audio", "response_format": "pcm", "guard": False}
    return {"input": text, **form, "max_new_tokens": frames, "min_frames": frames}


async def speak(session: aiohttp.ClientSession, url: str, frames: int) -> Stream:
    """Ask for a stream and read it to its end."""
    began, first, size, status, fault = time.monotonic(), None, 0, 0, ""
    try:
        async with session.post(url + PATH, json=body(frames)) as answer:
            status = answer.status
            async for part in answer.content.iter_any():
                first, size = first or time.monotonic() - began, size + len(part)
    except (aiohttp.ClientError, TimeoutError, OSError) as e:
        fault = repr(e)[:200]
    if not fault and (status != 200 or size != frames * FRAME_BYTES):
        fault = f"status {status}, {size} bytes of {frames * FRAME_BYTES}"
    return Stream(began, time.monotonic(), first, status, size, fault)


async def load(url: str, clients: int, frames: int, going: Callable[[int], bool]) -> list[Stream]:
    """Clients that stream one after another while going(streams begun) says so. A fault costs its client 0.2 s."""
    done: list[Stream] = []
    begun = 0

    async def client(session: aiohttp.ClientSession) -> None:
        nonlocal begun
        while going(begun):
            begun += 1
            done.append(await speak(session, url, frames))
            if not done[-1].complete:
                await asyncio.sleep(0.2)

    timeout = aiohttp.ClientTimeout(total=LONGEST_S)
    connector = aiohttp.TCPConnector(limit=0, force_close=True)  # every stream is balanced anew
    async with aiohttp.ClientSession(
        connector=connector, timeout=timeout, trust_env=False
    ) as session:
        await asyncio.gather(*(client(session) for _ in range(clients)))
    return done


async def talk(url: str, going: Callable[[], bool]) -> list[dict[str, Any]]:
    """A WebSocket client that has a sentence spoken every second. Connects again when it is closed. Each connection:
    its sentences and the close code."""
    told: list[dict[str, Any]] = []
    async with aiohttp.ClientSession(trust_env=False) as session:
        while going():
            sentences = 0
            try:
                async with session.ws_connect(url + PATH + "/stream") as ws:
                    await ws.send_json(
                        {"type": "session.config", "response_format": "pcm", "max_new_tokens": 30}
                    )
                    while going() and await _sentence(ws):
                        sentences += 1
                        await asyncio.sleep(1)
                told.append({"sentences": sentences, "close_code": ws.close_code})
            except (aiohttp.ClientError, OSError) as e:
                told.append({"sentences": sentences, "fault": repr(e)[:100]})
                await asyncio.sleep(0.5)
    return told


async def _sentence(ws: aiohttp.ClientWebSocketResponse) -> bool:
    """Whether a sentence was spoken to its end."""
    await ws.send_json({"type": "input.text", "text": "Hello there."})
    await ws.send_json({"type": "input.done"})
    async for message in ws:
        if message.type == aiohttp.WSMsgType.TEXT and json.loads(message.data)["type"] in (
            "session.done",
            "error",
        ):
            return True
    return False


def milliseconds(values: Sequence[float]) -> dict[str, float]:
    """Median and 95th percentile of seconds, in milliseconds."""
    ordered = sorted(values)
    marks = {"p50": 0.5, "p95": 0.95}
    return {
        name: round(1e3 * ordered[min(len(ordered) - 1, int(q * len(ordered)))], 1)
        for name, q in marks.items()
    }

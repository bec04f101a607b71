"""Clients of servers: streams without a pause, each judged by how it ended."""

from __future__ import annotations

import asyncio
import base64
import itertools
import json
import multiprocessing
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal, Self

import aiohttp

PATH = "/v1/audio/speech"
FRAME_BYTES = 12  # of PCM of the toy model
LONGEST_S = 120.0
PAUSE_S = 0.2  # of a client after a fault
ELSEWHERE = ("not_ready", "shutting_down")  # errors after which another server is tried

Outcome = Literal["audio", "error", "broken", "refused", "wrong"]
"""How a stream ended: with all of its audio, with an error of the server that has a code, in the
middle, before there was a connection, or as if complete with another amount of audio."""


@dataclass(frozen=True)
class Speech:
    """A request and the bytes of PCM of its complete answer."""

    body: Mapping[str, Any]
    size: int


@dataclass(frozen=True)
class Stream:
    """One stream. Times in seconds: began and ended of the monotonic clock, first from its begin to
    the first audio."""

    began: float
    ended: float
    first: float | None
    status: int  # 0: the connection failed
    bytes: int
    outcome: Outcome
    fault: str  # empty: complete
    model: str = ""

    @property
    def complete(self) -> bool:
        return not self.fault


def toy(frames: int, text: str = "Hello there.") -> Speech:
    """A request of so many frames of the toy model, as raw PCM."""
    form = {"stream_format": "audio", "response_format": "pcm", "guard": False}
    body = {"input": text, **form, "max_new_tokens": frames, "min_frames": frames}
    return Speech(body, frames * FRAME_BYTES)


class _Answer:
    """The bytes of audio in an answer, as they come, and the code of an error in it."""

    def __init__(self, events: bool) -> None:
        self.size = 0
        self.error = ""
        self._events = events
        self._rest = b""

    def feed(self, part: bytes) -> None:
        if not self._events:
            self.size += len(part)
            return
        *events, self._rest = (self._rest + part).split(b"\n\n")
        for event in events:
            _, _, data = event.partition(b"data: ")
            if data:
                self._read(json.loads(data))

    def _read(self, event: Mapping[str, Any]) -> None:
        match event["type"]:
            case "speech.audio.delta":
                self.size += len(base64.b64decode(event["audio"]))
            case "speech.audio.error":
                self.error = event["error"]["code"]


async def speak(session: aiohttp.ClientSession, url: str, speech: Speech) -> Stream:
    """Request a stream and read it to its end."""
    began = time.monotonic()
    first = None
    status = 0
    lost: Exception | None = None
    answer = _Answer(speech.body.get("stream_format") == "sse")
    try:
        async with session.post(url + PATH, json=speech.body) as response:
            status = response.status
            if status != 200:
                answer.error = _code(await response.read())
            async for part in response.content.iter_any():
                answer.feed(part)
                if answer.size and first is None:
                    first = time.monotonic() - began
    except (aiohttp.ClientError, TimeoutError, OSError) as e:
        lost = e

    outcome, fault = _judge(answer, status, speech.size, lost)
    model = speech.body.get("model", "")
    return Stream(began, time.monotonic(), first, status, answer.size, outcome, fault, model)


def _judge(answer: _Answer, status: int, size: int, lost: Exception | None) -> tuple[Outcome, str]:
    if answer.error:
        return "error", answer.error
    if isinstance(lost, aiohttp.ClientConnectorError):
        return "refused", type(lost).__name__
    if lost is not None:
        return "broken", type(lost).__name__
    if status != 200 or answer.size != size:
        return "wrong", f"status {status}, {answer.size} bytes of {size}"
    return "audio", ""


def _code(body: bytes) -> str:
    """The code of an error of the server. Empty for another answer."""
    try:
        return str(json.loads(body)["error"]["code"])
    except (ValueError, LookupError, TypeError):
        return ""


async def load(
    urls: str | Sequence[str],
    clients: int,
    speeches: Speech | Sequence[Speech],
    going: Callable[[int], bool],
    first: int = 0,
) -> list[Stream]:
    """Streams of clients, one after another of each client, while going(streams begun) is true.

    Client i, counted from `first`, requests speech i. With several servers it begins with server i,
    and what a server refuses goes to the next one, as by a proxy in front of them. A fault costs
    its client PAUSE_S."""
    if isinstance(urls, str):
        urls = [urls]
    if isinstance(speeches, Speech):
        speeches = [speeches]
    streams: list[Stream] = []
    count = 0

    async def client(session: aiohttp.ClientSession, number: int) -> None:
        nonlocal count
        servers = itertools.cycle([*urls[number % len(urls) :], *urls[: number % len(urls)]])
        speech = speeches[number % len(speeches)]
        while going(count):
            count += 1
            for _ in urls:
                stream = await speak(session, next(servers), speech)
                if stream.outcome != "refused" and stream.fault not in ELSEWHERE:
                    break
            streams.append(stream)
            if not stream.complete:
                await asyncio.sleep(PAUSE_S)

    timeout = aiohttp.ClientTimeout(total=LONGEST_S)
    connector = aiohttp.TCPConnector(limit=0, force_close=True)  # every stream is balanced anew
    async with aiohttp.ClientSession(
        connector=connector, timeout=timeout, trust_env=False
    ) as session:
        await asyncio.gather(*(client(session, first + i) for i in range(clients)))
    return streams


class Crowd:
    """Clients in processes of their own, from `with` to its end, after which `streams` has all of
    their streams."""

    def __init__(
        self, urls: Sequence[str], clients: int, processes: int, speeches: Sequence[Speech]
    ) -> None:
        context = multiprocessing.get_context("spawn")
        self.streams: list[Stream] = []
        self._over = context.Event()
        self._results = context.Queue()
        self._processes = [
            context.Process(
                target=_clients,
                args=(urls, range(first, last), speeches, self._over, self._results),
            )
            for first, last in pairwise(clients * i // processes for i in range(processes + 1))
        ]

    def __enter__(self) -> Self:
        for process in self._processes:
            process.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for _ in self._processes:
            self.streams += self._results.get(timeout=LONGEST_S)
        for process in self._processes:
            process.join()


def _clients(
    urls: Sequence[str], numbers: range, speeches: Sequence[Speech], over: Any, results: Any
) -> None:
    streams = load(urls, len(numbers), speeches, lambda _: not over.is_set(), numbers.start)
    results.put(asyncio.run(streams))


async def talk(url: str, going: Callable[[], bool]) -> list[dict[str, Any]]:
    """A WebSocket client that has a sentence spoken every second. Connects again when it is closed.
    Returns the sentences and the close code of each connection."""
    connections: list[dict[str, Any]] = []
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
                connections.append({"sentences": sentences, "close_code": ws.close_code})
            except (aiohttp.ClientError, OSError) as e:
                connections.append({"sentences": sentences, "fault": repr(e)[:100]})
                await asyncio.sleep(0.5)
    return connections


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

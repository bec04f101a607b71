"""Clients of a soak that attack: silent and dripping connections, large and wrong bodies, hostile audio.

Each takes the `Soak` that counts. Used by soak.py for long runs.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import aiohttp

if TYPE_CHECKING:
    from soak import Soak

HEAD = b"POST /v1/audio/speech HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 5000\r\n"


async def _connected(run: Soak, data: bytes, drips: int) -> None:
    """Send `data`, then a byte now and then, and leave."""
    at = urlsplit(run.url)
    reader, writer = await asyncio.open_connection(at.hostname, at.port)
    with contextlib.suppress(ConnectionError):
        writer.write(data)
        for _ in range(drips):
            await asyncio.sleep(run.random.uniform(0.2, 1.0))
            writer.write(b" ")
            await writer.drain()
    writer.close()
    del reader


async def silent(run: Soak) -> None:
    await _connected(run, b"", 0)
    run.counts["silent"] += 1


async def half_head(run: Soak) -> None:
    await _connected(run, HEAD[: run.random.randrange(1, len(HEAD))], 3)
    run.counts["half head"] += 1


async def dripping_body(run: Soak) -> None:
    await _connected(run, HEAD + b"\r\n{", 5)
    run.counts["dripping body"] += 1


async def heavy_json(run: Soak) -> None:
    data = b'{"input": "x", "extra_params": [' + b"[]," * 300_000 + b"[]]}"
    async with run.post(data=data, headers={"Content-Type": "application/json"}) as answer:
        if answer.status not in (400, 413, 422, 429):
            run.problems.append(f"heavy json: {answer.status}")
        elif len(await answer.read()) > 4000:
            run.problems.append("heavy json: its error is long")
    run.counts["heavy json"] += 1


async def surrogate(run: Soak) -> None:
    """Text that is no Unicode, in fields whose names reach messages and metrics."""
    body = json.dumps(
        {"input": "\ud800 x", "extra_params": {"\udfff": 1}, f"field{run.random.random()}": 1}
    )
    async with run.post(data=body.encode(), headers={"Content-Type": "application/json"}) as answer:
        await answer.read()
    async with run.http.get(run.url + "/metrics") as answer:
        if answer.status != 200:
            run.problems.append(f"metrics: {answer.status} after a surrogate")
    run.counts["surrogate"] += 1


async def letters(run: Soak) -> None:
    """One word that no dictionary has, as long as a text may be."""
    text = run.random.choice("q9$,.") * 500
    body = {"input": text, "max_frames": 3, "split_granularity": "none", "response_format": "pcm"}
    async with run.post(json=body) as answer:
        await answer.read()
    run.counts["letters"] += 1


async def foreign(run: Soak) -> None:
    """From a page of another origin, or of none that can be read."""
    origin = run.random.choice(("http://elsewhere.example", "http://[", "null"))
    form = aiohttp.FormData({"name": "foreign", "consent": "soak"})
    form.add_field("audio_sample", b"RIFF", filename="v.wav", content_type="audio/wav")
    async with run.post("/v1/audio/voices", data=form, headers={"Origin": origin}) as answer:
        if answer.status == 200:
            run.problems.append(f"foreign: an upload of {origin} was taken")
    run.counts["foreign"] += 1


HOSTILE = (silent, half_head, dripping_body, heavy_json, surrogate, letters, foreign)

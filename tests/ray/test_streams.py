"""The clients of benchmarks/replicas judge streams by how they ended. Against one server: no Ray is needed."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from benchmarks.replicas import streams
from tests.helpers.server_live import serving

FRAMES = 20


def test_streams_are_complete_or_have_an_outcome_with_its_reason(tmp_path: Path) -> None:
    left = iter([True, True, False, False])
    raw = streams.toy(FRAMES)
    events = replace(raw, body={**raw.body, "stream_format": "sse"})
    longer = replace(raw, size=raw.size + 1)
    with serving(tmp_path) as live:
        complete = load(live.url, 4, [raw, events])
        wrong = load(live.url, 1, longer)
        absent = load(live.url + "/nowhere", 1, raw)
        connections = asyncio.run(streams.talk(live.url, lambda: next(left)))
        with socket.socket() as unused:
            unused.bind(("127.0.0.1", 0))
            nobody = f"http://127.0.0.1:{unused.getsockname()[1]}"
            refused = load(nobody, 1, raw)
            elsewhere = load([nobody, live.url], 2, raw)
    assert [(s.outcome, s.bytes) for s in (*complete, *elsewhere)] == [("audio", raw.size)] * 6
    assert [s.outcome for s in (*wrong, *absent, *refused)] == ["wrong", "error", "refused"]
    assert [(s.complete, s.status) for s in (*absent, *refused)] == [(False, 404), (False, 0)]
    assert [c["sentences"] for c in connections] == [1]
    assert streams.milliseconds([s.first or 0 for s in complete])["p50"] > 0


def load(
    urls: str | Sequence[str], count: int, speeches: streams.Speech | Sequence[streams.Speech]
) -> list[streams.Stream]:
    """So many streams of as many clients."""
    return asyncio.run(streams.load(urls, count, speeches, lambda number: number < count))

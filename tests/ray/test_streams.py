"""The clients of benchmarks/replicas judge streams by how they ended. Against one server: no Ray is needed."""

from __future__ import annotations

import asyncio
from pathlib import Path

from benchmarks.replicas import streams
from tests.helpers.server_live import serving

FRAMES = 20


def test_streams_are_complete_or_say_what_is_wrong(tmp_path: Path) -> None:
    left = iter([True, True, False, False])
    with serving(tmp_path) as live:
        done = asyncio.run(streams.load(live.url, 2, FRAMES, lambda begun: begun < 4))
        refused = asyncio.run(
            streams.load(live.url + "/nowhere", 1, FRAMES, lambda begun: begun < 1)
        )
        told = asyncio.run(streams.talk(live.url, lambda: next(left)))
    lost = asyncio.run(
        streams.load(live.url, 1, FRAMES, lambda begun: begun < 1)
    )  # nobody listens any more
    assert [(s.fault, s.bytes) for s in done] == [("", FRAMES * streams.FRAME_BYTES)] * 4
    assert [(s.complete, s.status) for s in (*refused, *lost)] == [(False, 404), (False, 0)]
    assert [t["sentences"] for t in told] == [1]
    assert streams.milliseconds([s.first or 0 for s in done])["p50"] > 0

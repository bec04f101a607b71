"""A model that is idle is unloaded, and loaded again for the next request. None is lost, nothing grows.

A hundred times, with what is taken afterwards: python -m tests.server.test_idle_unload 100
"""

from __future__ import annotations

import asyncio
import gc
import os
import sys
import tempfile
import threading
import weakref
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

import stentor
from stentor.server.config import ServerConfig
from stentor.server.errors import ApiError
from stentor.server.limits import Limits
from stentor.server.residency import Residency
from tests.helpers import virtual_time
from tests.helpers.patience import STUCK_S, until
from tests.helpers.server_live import Live, count, pcm, raw, serving, toy
from tests.helpers.ws_talk import talk

BODY = {
    "input": "Hello there, you.",
    "seed": 7,
    "response_format": "pcm",
    "max_frames": 8,
    "guard": False,
}
TALK = {"response_format": "pcm", "max_frames": 8, "guard": False}
SOON = 0.05  # seconds of --idle-unload-seconds, so that a test unloads as often as it likes


def phase(live: Live) -> str:
    return live.server.hosts.all[0].phase


def unloaded(live: Live) -> bool:
    return until(lambda: phase(live) == "unloaded")


Load = Callable[[str, str | None], Callable[[], stentor.TTS]]


class Gate:
    """How models are made here: each load waits until the gate is open."""

    def __init__(self, model: Load | None = None) -> None:
        self.model = model or toy()
        self.open, self.made, self.waiting = threading.Event(), [], threading.Event()
        self.open.set()

    def load(self, name: str, model: str | None) -> Callable[[], stentor.TTS]:
        def make() -> stentor.TTS:
            self.waiting.set()
            assert self.open.wait(STUCK_S)
            tts = self.model(name, model)()
            self.made.append(weakref.ref(tts.engine))
            return tts

        return make


OUTCOMES = ("stentor.server.speech.outcomes.Outcome", "stentor.speech.timing.SegmentTiming")
"""Count what a server keeps of its last requests (`LIMITS.outcomes` of them)."""


def objects() -> Counter[str]:
    """Objects of stentor and torch that are reachable, by type, but for outcomes of requests."""
    gc.collect()
    kinds = (f"{type(o).__module__}.{type(o).__qualname__}" for o in gc.get_objects())
    return Counter(
        kind for kind in kinds if kind.startswith(("stentor.", "torch.")) and kind not in OUTCOMES
    )


def taken() -> dict[str, int]:
    """Resources of the process: threads, descriptors, pages of anonymous memory, and what Python holds."""
    anonymous = next(
        line
        for line in Path("/proc/self/status").read_text().splitlines()
        if line.startswith("RssAnon")
    )
    return {
        "threads": threading.active_count(),
        "descriptors": len(os.listdir("/proc/self/fd")),
        "KiB": int(anonymous.split()[1]),
        "objects": objects().total(),
        "blocks": sys.getallocatedblocks(),
    }


class Grown(NamedTuple):
    """Resources before and after, unloads, engines that are still in memory, and objects that are more."""

    before: dict[str, int]
    after: dict[str, int]
    unloads: float
    still: int
    more: Counter[str]


def cycle(live: Live, gate: Gate, pool: ThreadPoolExecutor, expected: bytes, times: int) -> None:
    """Unload and load again. All requests arrive while it is away, so each cycle takes as many connections."""
    for _ in range(times):
        assert unloaded(live)
        gate.open.clear()
        answers = [pool.submit(live.speech, **BODY) for _ in range(4)]
        assert until(lambda: live.server.hosts.all[0].residency.waiting == 4)
        gate.open.set()
        for answer in answers:
            assert answer.result().status_code == 200
            # a batch rounds differently
            assert np.abs(pcm(answer.result().content) - pcm(expected)).max() < 1e-3


def again_and_again(
    folder: Path, times: int, load: Load | None = None, model: str | None = "dummy:toy"
) -> Grown:
    gate = Gate(load)
    with (
        serving(folder, load=gate.load, model=model, idle_unload_seconds=SOON) as live,
        ThreadPoolExecutor(4) as pool,
    ):
        expected = live.speech(**BODY).content
        cycle(live, gate, pool, expected, times // 4)
        assert unloaded(live)
        before, held = taken(), objects()
        cycle(live, gate, pool, expected, times)
        assert unloaded(live)
        settled = until(
            lambda: not objects() - held
        )  # the server may be about to let go of the last answers
        more = Counter() if settled else objects() - held
        after, unloads = taken(), count(live, "model_unloads_total")
        still = sum(engine() is not None for engine in gate.made)
    return Grown(before, after, unloads, still, more)


@pytest.mark.slow
def test_unloading_and_loading_again_loses_no_request_and_grows_by_nothing(tmp_path: Path) -> None:
    before, after, unloads, still, more = again_and_again(tmp_path, 4)
    assert unloads >= 4 + 1
    assert still == 0
    assert more == Counter()
    assert after["threads"] <= before["threads"] + 2  # of pools that have not all their threads yet


def test_what_is_said_of_a_model_that_is_not_in_memory(tmp_path: Path) -> None:
    with serving(tmp_path, idle_unload_seconds=SOON) as live:
        assert unloaded(live)
        model = live.http.get("/v1/models").json()["data"][0]
        assert (model["phase"], model["resident"], model["sample_rate"]) == ("unloaded", False, 600)
        ready = live.http.get("/ready")
        assert (ready.status_code, ready.json()) == (200, {"ready": True, "phase": "unloaded"})
        assert live.http.get("/health").status_code == 200
        assert (count(live, "model_resident"), count(live, "engine_up")) == (0, 1)
        assert live.speech(**BODY, temperature=-9).status_code == 400
        assert live.speech(**BODY).status_code == 200
        assert count(live, "model_loads_total") >= 2


def test_a_request_that_waits_for_its_model_ends_with_its_client_or_its_server(
    tmp_path: Path,
) -> None:
    gate = Gate()
    with (
        serving(tmp_path, load=gate.load, idle_unload_seconds=SOON) as live,
        ThreadPoolExecutor(1) as pool,
    ):
        assert unloaded(live)
        gate.open.clear()
        waits = live.server.hosts.all[0].residency
        with raw(live, BODY):
            assert until(lambda: waits.waiting == 1)
        assert until(lambda: waits.waiting == 0)
        answer = pool.submit(live.speech, **BODY)
        assert until(lambda: waits.waiting == 1)
        live.end()
        assert (answer.result().status_code, answer.result().json()["error"]["code"]) == (
            503,
            "shutting_down",
        )
        gate.open.set()


def test_a_session_whose_client_leaves_while_it_waits_for_its_model_frees_its_place(
    tmp_path: Path,
) -> None:
    gate = Gate()
    with serving(tmp_path, load=gate.load, idle_unload_seconds=SOON, ws_max_sessions=1) as live:
        assert unloaded(live)
        gate.open.clear()
        waits, sessions = live.server.hosts.all[0].residency, live.server.metrics.sessions
        waits.limits = Limits(load_seconds=10 * STUCK_S)  # it does not end by itself
        with talk(live, configure=False) as ws:
            ws.send("session.config", **TALK)
            ws.send("input.text", text="Hello there. ")
            assert until(lambda: waits.waiting == 1)
        assert until(lambda: waits.waiting == 0 and not sessions)
        with talk(live, configure=False) as ws:
            ws.send("session.config", **TALK)
            ws.send("input.text", text="Hello there. ")
            ws.send("input.done")
            assert until(lambda: waits.waiting == 1)
            gate.open.set()
            events, audio = ws.until("session.done", "error")
        assert (events[0]["type"], events[-1]["type"]) == ("session.configured", "session.done")
        assert audio


def test_a_session_that_is_open_counts_as_use_only_while_it_speaks(tmp_path: Path) -> None:
    gate = Gate()
    with (
        serving(tmp_path, load=gate.load, idle_unload_seconds=SOON) as live,
        talk(live, **TALK) as ws,
    ):
        _, first = ws.say("Hello there. ")
        assert unloaded(live)
        gc.collect()
        assert all(engine() is None for engine in gate.made)  # the session holds none of it
        events, second = ws.say("Hello there. ")
        assert events[-1]["type"] == "session.done"
        assert first
        assert second
        ws.send("input.text", text="An utterance that is not complete. And")
        ws.until("audio.done")
        assert unloaded(live)
        events, _ = ws.say(" this is the rest.")
        assert events[-1]["type"] == "session.done"


def test_a_request_that_comes_during_the_unload_is_served_after_the_next_load(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    closing, go = threading.Event(), threading.Event()
    plain = stentor.TTS.close

    def slow_close(tts: stentor.TTS) -> None:
        closing.set()
        assert go.wait(STUCK_S)
        plain(tts)

    monkeypatch.setattr(stentor.TTS, "close", slow_close)
    with serving(tmp_path, idle_unload_seconds=SOON) as live, ThreadPoolExecutor(1) as pool:
        assert closing.wait(STUCK_S)
        assert phase(live) == "unloading"
        answer = pool.submit(live.speech, **BODY)
        assert until(lambda: live.server.hosts.all[0].residency.waiting == 1)
        go.set()
        assert answer.result().status_code == 200


def test_requests_beyond_the_limits_of_a_load_get_503_with_retry_after() -> None:
    refused: list[tuple[float, ApiError]] = []

    async def main(loop: virtual_time.VirtualTimeLoop) -> None:
        residency = Residency(Limits(load_seconds=10.0, load_waiting=2))
        residency.loaded(3.4)
        began = loop.time()

        async def request() -> None:
            try:
                await residency.wait("toy", lambda: True)
            except ApiError as e:
                refused.append((loop.time() - began, e))

        await asyncio.gather(*(request() for _ in range(3)))
        assert residency.waiting == 0

    virtual_time.run(main)
    assert [seconds for seconds, _ in refused] == [0.0, 10.0, 10.0]
    assert {(e.status, e.code, e.headers["Retry-After"]) for _, e in refused} == {
        (503, "model_loading", "4")
    }


def test_a_request_waits_while_a_load_that_failed_is_tried_again(tmp_path: Path) -> None:
    loads: list[int] = []

    def load(name: str, model: str | None) -> Callable[[], stentor.TTS]:
        def make() -> stentor.TTS:
            loads.append(1)
            if len(loads) == 2:
                raise stentor.EngineError("no memory")
            return toy()(name, model)()

        return make

    with serving(tmp_path, load=load, idle_unload_seconds=SOON, warmup=False) as live:
        assert unloaded(live)
        assert live.speech(**BODY).status_code == 200
        assert len(loads) == 3


def test_a_model_that_cannot_be_loaded_again_is_tried_again_and_then_lost(tmp_path: Path) -> None:
    given_up: list[int] = []
    loads: list[int] = []

    def load(name: str, model: str | None) -> Callable[[], stentor.TTS]:
        def make() -> stentor.TTS:
            loads.append(1)
            if len(loads) > 1:
                raise stentor.EngineError("no memory")
            return toy()(name, model)()

        return make

    with serving(tmp_path, load=load, give_up=given_up.append, idle_unload_seconds=SOON) as live:
        assert unloaded(live)
        answer = live.speech(**BODY)
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "not_ready")
        assert until(lambda: given_up == [70])


@pytest.mark.parametrize("seconds", [0, -1.0])
def test_idle_seconds_must_be_above_zero(seconds: float) -> None:
    with pytest.raises(stentor.InvalidRequest, match="idle_unload_seconds: must be above 0"):
        ServerConfig(idle_unload_seconds=seconds)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as made:
        found: Any = again_and_again(Path(made), int(sys.argv[1]))
    print(
        "before {}\nafter  {}\nunloads {:g}, engines still in memory {}, more objects {}".format(
            *found
        )
    )

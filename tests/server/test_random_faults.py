"""Whatever clients do and devices fail, the server answers afterwards and holds what it held before.

A seeded script of requests, disconnects, uploads, deletes, WebSocket sessions and planted faults, against a server in
this process. What happens is the same every time. How it falls together is not, and nothing here depends on it.
"""

from __future__ import annotations

import contextlib
import os
import random
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from websockets.exceptions import ConnectionClosed

from tests.helpers.faults import SITES, Faults
from tests.helpers.invariants import check
from tests.helpers.patience import until
from tests.helpers.server_live import Live, raw, serving, tone_wav, toy
from tests.helpers.ws_talk import talk

ACTIONS = 30
POOLS = 12  # threads of pools, which have a bound and fill with time
HONEST = {
    "input": "One is here. Two is here.",
    "seed": 3,
    "response_format": "pcm",
    "guard": False,
    "max_frames": 20,
}


class Rogues:
    """Clients of a server, and its device."""

    def __init__(self, live: Live, seed: int) -> None:
        self.live, self.random, self.faults = live, random.Random(seed), Faults()
        self.faults.plant(live.tts.engine)
        self.sockets: list[socket.socket] = []
        self.voices = 0
        self.actions: list[Callable[[], None]] = [
            self.speech, self.speech, self.stream, self.stream, self.leave, self.batch, self.malformed,
            self.upload, self.delete, self.session, self.rude_session, self.run_out_of_memory, self.run_out_of_memory,
        ]  # fmt: skip

    @property
    def names(self) -> list[str]:
        """Names of all voices that it has tried to upload."""
        return [f"v{i}" for i in range(1, self.voices + 1)]

    def _post(self, path: str = "/v1/audio/speech", **how: Any) -> httpx.Response:
        return self.live.http.post(path, **how)

    def _long(self) -> dict[str, Any]:
        how = self.random.choice(({}, {"stream_format": "audio"}, {"stream_format": "sse"}))
        return {**HONEST, "min_frames": 120, "max_frames": 120, **how}

    def speech(self) -> None:
        voice = {"voice": f"v{self.voices}"} if self.voices and self.random.random() < 0.5 else {}
        self._post(json={**HONEST, **voice})

    def stream(self) -> None:
        """A client that will read later, or never."""
        self.sockets.append(raw(self.live, self._long()))

    def leave(self) -> None:
        if self.sockets:
            self.sockets.pop(self.random.randrange(len(self.sockets))).close()

    def batch(self) -> None:
        self._post("/v1/audio/speech/batch", json={"items": [HONEST] * 3})

    def malformed(self) -> None:
        data = self.random.choice(
            (b"", b"{", b'{"input": 5}', self.random.randbytes(50), b"[" * 5000)
        )
        assert (
            self._post(content=data, headers={"Content-Type": "application/json"}).status_code
            == 400
        )

    def upload(self) -> None:
        self.voices += 1
        wav = (
            tone_wav(hz=100.0 + self.voices)
            if self.random.random() < 0.7
            else self.random.randbytes(2000)
        )
        data, files = (
            {"name": f"v{self.voices}", "consent": "yes"},
            {"audio_sample": ("v.wav", wav, "audio/wav")},
        )
        self._post("/v1/audio/voices", data=data, files=files)

    def delete(self) -> None:
        status = self.live.http.delete(
            f"/v1/audio/voices/v{self.random.randint(0, self.voices)}"
        ).status_code
        assert status in (200, 404)

    def session(self) -> None:
        with talk(self.live, max_frames=20) as client:
            client.say("One is here. ", "Two is here.")

    def rude_session(self) -> None:
        """Says anything, and leaves in the middle."""
        with (
            contextlib.suppress(ConnectionClosed),
            talk(self.live, min_frames=60, max_frames=60) as client,
        ):
            for _ in range(self.random.randint(1, 5)):
                kind = self.random.choice(
                    ("input.text", "input.text", "input.done", "response.cancel", "nonsense")
                )
                client.send(kind, **({"text": "One. Two, "} if kind == "input.text" else {}))

    def run_out_of_memory(self) -> None:
        self.faults.armed = self.random.choice(SITES), self.random.randrange(20)

    def lose_the_device(self) -> None:
        """The engine ends, and the server starts another."""
        restarts = self.live.server.hosts.all[0].restarts
        self.faults.dead = True
        with contextlib.suppress(httpx.HTTPError):
            self._post(json=HONEST)
        assert until(lambda: self.live.server.hosts.all[0].restarts > restarts)
        assert until(lambda: self.live.http.get("/ready").status_code == 200)
        self.faults = Faults()
        self.faults.plant(self.live.tts.engine)

    def go_home(self) -> None:
        self.faults.armed = None
        for s in self.sockets:
            s.close()
        for name in self.names:
            self.live.http.delete(f"/v1/audio/voices/{name}")


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
def test_the_server_answers_and_holds_nothing_after_random_clients_and_faults(
    tmp_path: Path, seed: int
) -> None:
    with serving(tmp_path, toy(slots=3, max_queue=8), max_active_requests=16) as live:
        before = live.speech(**HONEST)
        assert before.status_code == 200
        files, threads = descriptors(), threading.active_count()
        rogues = Rogues(live, seed)
        for i in range(ACTIONS):
            rogues.lose_the_device() if i == ACTIONS // 2 else rogues.random.choice(
                rogues.actions
            )()
        rogues.go_home()
        assert live.idle()
        check(live.tts.engine.scheduler)
        assert live.http.get("/ready").status_code == 200
        assert live.speech(**HONEST).content == before.content
        assert until(lambda: descriptors() <= files + 1), (files, descriptors())
        assert until(lambda: threading.active_count() <= threads + POOLS), threading.enumerate()
        assert not [v for v in live.voice_names() if v in rogues.names]
        assert not list(tmp_path.glob("**/*.safetensors"))
        assert not live.server.metrics.live

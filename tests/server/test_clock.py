"""A clock that is set ahead and back by months, while a server answers: nothing ends early, and nothing waits."""

from __future__ import annotations

import itertools
import time
from pathlib import Path

import pytest

from tests.helpers.server_live import assert_same_speech, serving, tone_wav
from tests.helpers.ws_talk import talk

MONTHS = 1e7  # seconds
ASKED = {
    "input": "Hello there, you. And one more sentence.",
    "seed": 5,
    "response_format": "pcm",
    "guard": False,
}


def test_a_clock_that_jumps_ends_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    times, real, calls = itertools.cycle((0.0, MONTHS, -MONTHS)), time.time, []

    def jumping() -> float:
        calls.append(next(times))
        return real() + calls[-1]

    with serving(tmp_path, request_timeout=30, ws_idle_seconds=30, idle_unload_seconds=30) as live:
        before = live.speech(**ASKED)
        monkeypatch.setattr(time, "time", jumping)
        with talk(live) as session:
            for _ in range(3):
                files = {"audio_sample": ("v.wav", tone_wav(), "audio/wav")}
                stored = live.http.post(
                    "/v1/audio/voices", data={"name": "anna", "consent": "yes"}, files=files
                )
                assert stored.status_code == 200, stored.text
                assert_same_speech(live.speech(**ASKED).content, before.content)
                assert live.speech(**ASKED, voice="anna").status_code == 200
                assert live.http.delete("/v1/audio/voices/anna").status_code == 200
            events, audio = session.say("Hello there. ")
        assert events[-1]["type"] == "session.done"
        assert audio
        assert live.http.get("/ready").status_code == 200
        assert live.idle()
    assert calls  # voices tell when they were stored

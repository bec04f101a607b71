"""A request is validated once, and its reference audio is resampled once, however many segments its text has."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from pathlib import Path

import pytest

from stentor import audio, request
from tests.helpers.server_live import Live, serving, tone_wav
from tests.helpers.ws_talk import talk

RATE = 8000  # of the reference; the toy model's own is 600
REFERENCE = base64.b64encode(tone_wav(rate=RATE)).decode()
TEXT = "One is here. Two is here. Three is here. Four is here."
ASK = {"seed": 5, "response_format": "pcm", "guard": False, "max_frames": 8}


class Calls:
    """How often requests were validated, and the rates from which audio was resampled."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.built = 0
        self.resampled: list[int] = []
        build, resample = request.build, audio.resample

        def counted_build(*args, **fields):
            self.built += 1
            return build(*args, **fields)

        def counted_resample(samples, source, target):
            if source != target:
                self.resampled.append(source)
            return resample(samples, source, target)

        patch.setattr(request, "build", counted_build)
        patch.setattr(audio, "resample", counted_resample)


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[Live]:
    """A server of its own, so that only the test's requests are counted."""
    with serving(tmp_path) as running:
        yield running


@pytest.fixture
def calls(alone: Live, monkeypatch: pytest.MonkeyPatch) -> Calls:
    return Calls(monkeypatch)


@pytest.mark.parametrize(
    "how", [{}, {"stream": True}, {"stream_format": "sse"}], ids=["whole", "streamed", "sse"]
)
def test_a_request_of_several_segments_is_validated_and_its_reference_resampled_once(
    alone: Live, calls: Calls, how: dict
) -> None:
    answer = alone.speech(
        input=TEXT, split_granularity="sentence", ref_audio=REFERENCE, **ASK, **how
    )
    assert answer.status_code == 200
    usage = alone.http.get(f"/v1/audio/speech/{answer.headers['x-request-id']}").json()
    assert len(usage["segments"]) == 4
    assert (calls.built, calls.resampled) == (1, [RATE])


def test_without_a_reference_nothing_is_resampled(alone: Live, calls: Calls) -> None:
    assert alone.speech(input=TEXT, split_granularity="sentence", **ASK).status_code == 200
    assert (calls.built, calls.resampled) == (1, [])


def test_a_session_is_validated_once_for_all_of_its_utterances(alone: Live, calls: Calls) -> None:
    with talk(alone, ref_audio=REFERENCE, max_frames=8) as client:
        for _ in range(2):
            events, audio_bytes = client.say(TEXT)
            assert events[-1]["type"] == "session.done"
            assert audio_bytes
    assert (calls.built, calls.resampled) == (1, [RATE])


def test_a_reference_that_is_silent_is_refused_before_anything_runs(
    alone: Live, calls: Calls
) -> None:
    silent = base64.b64encode(tone_wav()[:44] + bytes(8000)).decode()
    answer = alone.speech(input=TEXT, ref_audio=silent, **ASK)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "ref_audio")
    assert alone.http.get(f"/v1/audio/speech/{answer.headers['x-request-id']}").status_code == 404
    assert alone.tts.engine.health().stats.submitted == 2  # the warm-up

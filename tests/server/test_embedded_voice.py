"""The embedded voice on a CPU, in a real server process, with real clients: the openai SDK and a browser.

Few and short sentences, since the voice takes more than half as long as it speaks.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import httpx
import numpy as np
import openai
import pytest

from stentor.api import DEFAULT_VOICE
from tests.helpers import chromium_page
from tests.helpers.chromium_page import opened
from tests.helpers.patience import STUCK_S
from tests.helpers.server_live import decoded, pcm, until

pytestmark = pytest.mark.skipif(
    not (DEFAULT_VOICE / "config.json").is_file(), reason="the embedded voice is not in this build: docs/training.md"
)
FORMATS = ("mp3", "opus", "aac", "flac", "wav", "pcm")
SHORT, LONGER = "Good morning.", "Every boat in the harbour waited for the wind that day."
ASK = {"model": "stentor", "voice": "default"}


@pytest.fixture
def client(embedded_voice: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{embedded_voice}/v1", api_key="any", max_retries=0) as made:
        yield made


def samples_of(format: str, data: bytes) -> np.ndarray:
    return pcm(data) if format == "pcm" else decoded(data)[0]


@pytest.mark.parametrize("format", FORMATS)
def test_whole_and_streamed_answers_hold_the_same_speech(client: openai.OpenAI, format: str) -> None:
    ask = {**ASK, "input": SHORT, "response_format": format}
    whole = client.audio.speech.create(**ask, extra_body={"seed": 5})
    with client.audio.speech.with_streaming_response.create(
        **ask, extra_body={"seed": 5, "stream_format": "audio"}
    ) as answer:
        rate = int(answer.headers["x-sample-rate"])
        parts = list(answer.iter_bytes())
    a, b = samples_of(format, whole.content), samples_of(format, b"".join(parts))
    if format == "mp3":
        b = b[1105 : 1105 + len(a)]  # a whole file says how much of its beginning is the encoder's delay
    assert 0.4 < len(a) / rate < 4
    assert np.abs(a).max() > 0.02
    assert len(a) == len(b)
    assert np.corrcoef(a, b)[0, 1] > 0.99


def test_first_bytes_come_before_the_speech_is_finished(client: openai.OpenAI, embedded_voice: str) -> None:
    with client.audio.speech.with_streaming_response.create(
        **ASK, input=f"{LONGER} " * 10, response_format="pcm", extra_body={"seed": 5, "stream_format": "audio"}
    ) as answer:
        parts = answer.iter_bytes()
        assert next(parts)
        assert (
            httpx.get(f"{embedded_voice}/health", timeout=STUCK_S, trust_env=False).json()["models"]["stentor"][
                "running"
            ]
            == 1
        )
        assert next(parts)


def test_errors_name_the_field(client: openai.OpenAI) -> None:
    for wrong, param in (
        ({"speed": 9.0}, "speed"),
        ({"input": " "}, "input"),
    ):
        with pytest.raises(openai.BadRequestError) as bad:
            client.audio.speech.create(**{**ASK, "input": SHORT, **wrong})
        assert bad.value.param == param
    with pytest.raises(openai.NotFoundError):
        client.audio.speech.create(model="whisper-1", voice="alloy", input=SHORT)


def test_what_openais_clients_send_is_spoken_and_what_is_in_vain_is_named(client: openai.OpenAI) -> None:
    ask = {"model": "tts-1", "voice": "alloy", "input": SHORT}
    assert client.audio.speech.with_raw_response.create(**ask).headers.get("x-ignored") is None
    answer = client.audio.speech.with_raw_response.create(**ask, instructions="Whisper.")
    assert answer.headers["x-ignored"] == "instructions"


def test_its_voices_differ_and_one_that_it_lacks_is_refused(client: openai.OpenAI) -> None:
    ask = {"model": "stentor", "input": SHORT, "response_format": "pcm", "extra_body": {"seed": 5}}
    spoken = [client.audio.speech.create(**ask, voice=v).content for v in ("heart", "george", "bm_george")]
    assert spoken[0] != spoken[1] == spoken[2]
    with pytest.raises(openai.BadRequestError, match="known: default, heart, emma, eric, fenrir, george"):
        client.audio.speech.create(**ask, voice="nobody")


def test_leaving_a_stream_cancels_it(client: openai.OpenAI, embedded_voice: str) -> None:
    with client.audio.speech.with_streaming_response.create(
        **ASK, input=f"{LONGER} " * 10, response_format="pcm", extra_body={"stream_format": "audio"}
    ) as answer:
        next(answer.iter_bytes())
    told = f"/v1/audio/speech/{answer.headers['x-request-id']}"
    with httpx.Client(base_url=embedded_voice, timeout=STUCK_S, trust_env=False) as http:
        assert until(lambda: http.get(told).json().get("status") == "cancelled")
        assert until(lambda: http.get("/health").json()["models"]["stentor"]["running"] == 0)


@pytest.mark.skipif(chromium_page.BINARY is None, reason="no Chromium on this machine")
def test_the_page_speaks_without_underrun_shows_its_figures_and_can_be_stopped(
    embedded_voice: str, tmp_path: Path
) -> None:
    state = "document.body.dataset.state"
    with opened(tmp_path) as page:
        page.open(embedded_voice, "document.readyState == 'complete' && !document.getElementById('speak').disabled")
        assert page.eval("[...document.querySelectorAll('#modes label')].some(e => e.offsetParent)") is False
        page.fill(input=LONGER, seed=5, wait=30)  # heard once all of it has come: on a busy machine it may come slowly
        page.click("#speak")
        page.until(f"!['idle', 'waiting', 'speaking'].includes({state})")
        print("first audio", page.text("ttfp"), "made at", page.text("rtf"))
        assert (page.eval(state), page.text("underruns")) == ("done", "0")
        assert re.fullmatch(r"\d+ ms|\d+\.\d s", page.text("ttfp"))
        assert re.fullmatch(r"\d+\.\d+×", page.text("rtf"))
        page.fill(input=f"{LONGER} " * 5, wait=0)
        page.click("#speak")
        page.until(f"{state} == 'speaking'")
        page.click("#stop")
        assert page.eval(state) == "stopped"
        assert page.problems == []

"""The built-in voice on a CPU, in a real server process, with real clients: the openai SDK and a browser.

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
from tests.helpers.patience import STUCK_S, until
from tests.helpers.server_live import samples_of

pytestmark = pytest.mark.skipif(
    not (DEFAULT_VOICE / "config.json").is_file(),
    reason="the built-in voice is not in this build: docs/training.md",
)
FORMATS = ("mp3", "opus", "aac", "flac", "wav", "pcm", "ulaw", "alaw")
SHORT, LONGER = "Good morning.", "Every boat in the harbour waited for the wind that day."
ASK = {"model": "stentor", "voice": "default"}
LIT = """
  window.lit = new Set();
  setInterval(() => { for (const word of CSS.highlights.get('current')) window.lit.add(word.toString()); }, 20);
"""


@pytest.fixture
def client(embedded_voice: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{embedded_voice}/v1", api_key="any", max_retries=0) as made:
        yield made


def test_a_script_that_the_voice_does_not_read_is_named_and_left_out(client: openai.OpenAI) -> None:
    ask = {**ASK, "response_format": "pcm", "extra_body": {"seed": 5}}
    answer = client.audio.speech.with_raw_response.create(**ask, input="Hello 你好 world.")
    assert answer.headers["x-ignored"] == 'input="%E4%BD%A0%E5%A5%BD"'
    plain = client.audio.speech.with_raw_response.create(**ask, input="Hello world.")
    assert "x-ignored" not in plain.headers
    assert answer.content == plain.content
    ask["extra_body"] = {"seed": 5, "split_granularity": "sentence", "stream": False}
    several = client.audio.speech.with_raw_response.create(
        **ask, input="Hello 你好 world. Yes."
    )  # side by side
    assert several.headers["x-ignored"] == answer.headers["x-ignored"]


@pytest.mark.parametrize("format", FORMATS)
def test_whole_and_streamed_answers_hold_the_same_speech(
    client: openai.OpenAI, format: str
) -> None:
    ask = {**ASK, "input": SHORT, "response_format": format}
    whole = client.audio.speech.create(**ask, extra_body={"seed": 5, "stream": False})
    with client.audio.speech.with_streaming_response.create(
        **ask, extra_body={"seed": 5, "stream_format": "audio"}
    ) as answer:
        rate = int(answer.headers["x-sample-rate"])
        parts = list(answer.iter_bytes())
    a, b = samples_of(format, whole.content), samples_of(format, b"".join(parts))
    if format == "mp3":
        b = b[
            1105 : 1105 + len(a)
        ]  # a whole file says how much of its beginning is the encoder's delay
    assert 0.4 < len(a) / rate < 4
    assert np.abs(a).max() > 0.02
    assert len(a) == len(b)
    assert np.corrcoef(a, b)[0, 1] > 0.99


def test_a_seed_gives_the_same_bytes_in_one_piece_and_nearly_in_several_or_streamed(
    client: openai.OpenAI,
) -> None:
    """Pieces share batches and a stream has chunks, whose make-up depends on timing: docs/serving/requests.md, Seeds.

    The first request computes the pages of its prompt, and those behind it find them in the prefix cache.
    """

    def spoken(granularity: str, stream: bool = False) -> bytes:
        more = {"seed": 5, "split_granularity": granularity, "stream": stream}
        ask = {
            **ASK,
            "input": "Good morning. How are you?",
            "response_format": "pcm",
            "extra_body": more,
        }
        return client.audio.speech.create(**ask).content

    spoken("none")
    assert len({spoken("none") for _ in range(2)}) == 1
    ways = [("sentence", False)] * 3, [("none", False), ("none", True)]
    for same in ways:
        first, *others = (np.frombuffer(spoken(*way), "<i2").astype(int) for way in same)
        for other in others:
            assert len(other) == len(first)
            assert np.abs(other - first).max() <= 65


def test_first_bytes_come_before_the_speech_is_finished(
    client: openai.OpenAI, embedded_voice: str
) -> None:
    """The speech is longer than what sockets and the server hold for a client that does not read:
    it cannot be finished, however late this process is."""
    with client.audio.speech.with_streaming_response.create(
        **ASK, input=f"{LONGER} " * 120, response_format="pcm", extra_body={"seed": 5}
    ) as answer:
        parts = answer.iter_bytes()
        assert next(parts)
        outcome = f"{embedded_voice}/v1/audio/speech/{answer.headers['x-request-id']}"
        found = httpx.get(outcome, timeout=STUCK_S, trust_env=False).json()
        assert found["status"] == "running"
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


def test_what_openais_clients_send_is_spoken_and_what_is_in_vain_is_named(
    client: openai.OpenAI,
) -> None:
    ask = {"model": "tts-1", "voice": "alloy", "input": SHORT}
    assert client.audio.speech.with_raw_response.create(**ask).headers.get("x-ignored") is None
    answer = client.audio.speech.with_raw_response.create(**ask, instructions="Whisper.")
    assert answer.headers["x-ignored"] == "instructions"


def test_its_voices_differ_and_one_that_it_lacks_is_refused(client: openai.OpenAI) -> None:
    ask = {"model": "stentor", "input": SHORT, "response_format": "pcm", "extra_body": {"seed": 5}}
    spoken = [
        client.audio.speech.create(**ask, voice=v).content for v in ("heart", "george", "bm_george")
    ]
    assert spoken[0] != spoken[1] == spoken[2]
    with pytest.raises(
        openai.BadRequestError, match="known: default, heart, emma, eric, fenrir, george, kore"
    ):
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
        page.open(
            embedded_voice,
            "document.readyState == 'complete' && !document.getElementById('speak').disabled",
        )
        assert (
            page.eval("[...document.querySelectorAll('#modes label')].some(e => e.offsetParent)")
            is False
        )
        voices = page.eval("[...document.getElementById('voice').options].map(o => o.text)")
        assert voices[:2] == ["Heart, American woman", "Emma, British woman"]
        page.fill(
            input=LONGER, seed=5, wait=30
        )  # heard once all of it has come: on a busy machine it may come slowly
        page.eval(LIT)
        page.click("#speak")
        page.until(f"!['idle', 'waiting', 'speaking'].includes({state})")
        print("first audio", page.text("ttfp"), "made at", page.text("rtf"))
        assert (page.eval(state), page.text("underruns")) == ("done", "0")
        lit = page.eval("[...window.lit]")
        assert len(lit) > 3
        assert lit == [
            word for word in dict.fromkeys(LONGER.split()) if word in lit
        ]  # one after another
        assert re.fullmatch(r"\d+ ms|\d+\.\d s", page.text("ttfp"))
        assert re.fullmatch(r"\d+\.\d+×", page.text("rtf"))
        page.fill(input=f"{LONGER} " * 5, wait=0)
        page.click("#speak")
        page.until(f"{state} == 'speaking'")
        page.click("#stop")
        assert page.eval(state) == "stopped"
        assert page.problems == []

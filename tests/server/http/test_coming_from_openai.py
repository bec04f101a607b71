"""docs/coming_from_openai.md: programs written for OpenAI's speech models go on, whatever is served."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, get_args

import openai
import pytest
from openai.types.audio.speech_create_params import Voice
from openai.types.audio.speech_model import SpeechModel

from stentor.speech.client_names import OPENAI_VOICES
from tests.helpers.server_live import Live

ADDRESS = "OPENAI_BASE_URL"


@pytest.fixture
def client(live: Live, monkeypatch: pytest.MonkeyPatch) -> Iterator[openai.OpenAI]:
    """A client whose program names no address."""
    monkeypatch.setenv(ADDRESS, f"{live.url}/v1")
    monkeypatch.setenv("OPENAI_API_KEY", "any")
    with openai.OpenAI(max_retries=0) as made:
        yield made


def literals(annotation: Any) -> set[str]:
    """The strings in an annotation."""
    parts = get_args(annotation)
    if not parts:
        return set()
    return {p for p in parts if isinstance(p, str)}.union(*(literals(p) for p in parts))


@pytest.mark.parametrize("model", sorted(literals(SpeechModel)))
def test_every_speech_model_of_the_sdk_is_spoken_for(client: openai.OpenAI, model: str) -> None:
    answer = client.audio.speech.with_raw_response.create(
        model=model, voice="nova", input="I stay."
    )
    assert answer.headers["content-type"] == "audio/mpeg"
    assert "x-ignored" not in answer.headers


def test_the_voices_of_the_sdk_are_names_here() -> None:
    assert literals(Voice) == {*OPENAI_VOICES}


@pytest.mark.parametrize("voice", OPENAI_VOICES)
def test_every_voice_of_the_sdk_speaks(client: openai.OpenAI, voice: str) -> None:
    answer = client.audio.speech.create(model="tts-1", voice=voice, input="I stay.")
    assert answer.content

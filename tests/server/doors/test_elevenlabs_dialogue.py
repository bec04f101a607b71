"""ElevenLabs' dialogues, driven by its SDK."""

from __future__ import annotations

import base64
from typing import Any

import numpy as np
import pytest
from elevenlabs.client import ElevenLabs
from elevenlabs.core.api_error import ApiError
from elevenlabs.types import DialogueInput

from tests.helpers.server_live import Live

# Not so short that the toy runs on: a whole answer tries a run-on again, and a stream cannot.
LINES = [
    DialogueInput(text="Did you hear that? ", voice_id="low"),
    DialogueInput(text="What did you hear?", voice_id="high"),
    DialogueInput(text=" Nothing at all.", voice_id="low"),
]
TEXT = "".join(line.text for line in LINES)
PCM = "pcm_24000"


@pytest.fixture
def client(live: Live) -> ElevenLabs:
    return ElevenLabs(base_url=live.url, api_key="any")


def options(**more: Any) -> dict[str, Any]:
    return {"inputs": LINES, "output_format": PCM, "seed": 3, **more}


def near(one: bytes, other: bytes) -> bool:
    """Whether two streams of PCM are the same but for the rounding of a resampler's pieces."""
    steps = np.frombuffer(one, "<i2").astype(int) - np.frombuffer(other, "<i2")
    return bool(np.abs(steps).max() <= 1)


def test_a_dialogue_sounds_the_same_whole_streamed_and_with_times(client: ElevenLabs) -> None:
    dialogue = client.text_to_dialogue
    whole = b"".join(dialogue.convert(**options()))
    assert len(whole) > 1000
    assert near(b"".join(dialogue.stream(**options())), whole)
    timed = dialogue.convert_with_timestamps(**options())
    assert near(base64.b64decode(timed.audio_base_64), whole)
    parts = list(dialogue.stream_with_timestamps(**options()))
    assert near(b"".join(base64.b64decode(part.audio_base_64) for part in parts), whole)
    for answers in ([timed], parts):
        characters = [c for a in answers if a.alignment for c in a.alignment.characters]
        assert "".join(characters) == TEXT
        starts = [
            t for a in answers if a.alignment for t in a.alignment.character_start_times_seconds
        ]
        assert starts == sorted(starts)


def test_each_voice_of_a_dialogue_has_its_times_and_places(client: ElevenLabs) -> None:
    timed = client.text_to_dialogue.convert_with_timestamps(**options())
    segments = timed.voice_segments
    assert [s.voice_id for s in segments] == ["low", "high", "low"]
    assert [s.dialogue_input_index for s in segments] == [0, 1, 2]
    spoken = [TEXT[s.character_start_index : s.character_end_index] for s in segments]
    assert [text.strip() for text in spoken] == [line.text.strip() for line in LINES]
    times = [t for s in segments for t in (s.start_time_seconds, s.end_time_seconds)]
    assert times == sorted(times)


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"inputs": []}, "inputs"),
        ({"inputs": [DialogueInput(text="Hi.", voice_id="nobody")]}, "inputs.0.voice_id"),
        ({"inputs": [*LINES, DialogueInput(text=" ", voice_id="low")]}, "inputs.3.text"),
        ({"model_id": "nobody"}, "model_id"),
        ({"output_format": "mp3_1_1"}, "output_format"),
    ],
)
def test_what_is_wrong_with_a_dialogue_is_named(
    client: ElevenLabs, change: dict[str, Any], param: str
) -> None:
    with pytest.raises(ApiError) as e:
        b"".join(client.text_to_dialogue.convert(**options(**change)))
    assert e.value.status_code in (400, 404)
    assert e.value.body["detail"]["param"] == param


def test_what_a_dialogue_does_not_use_is_named(live: Live) -> None:
    body = {
        "inputs": [{"text": "Hi.", "voice_id": "low", "mood": "sad"}],
        "settings": {"stability": 0.5},
        "previous_text": "Before.",
    }
    answer = live.http.post("/v1/text-to-dialogue?output_format=pcm_24000", json=body)
    assert answer.status_code == 200
    named = answer.headers["X-Ignored"]
    for name in ("inputs.0.mood", "settings.stability", "previous_text"):
        assert name in named

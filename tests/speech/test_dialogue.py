"""Several voices in one answer, by the Python API."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from stentor import TTS, InvalidRequest, Reference
from stentor.models.base import Prompt
from stentor.models.info import SpeechRequest
from stentor.speech.subtitles import srt, vtt
from tests.helpers.patience import until

TONE = (np.sin(np.arange(3000) / 20) * 0.5).astype(np.float32)
SHORT = {"max_frames": 5, "min_frames": 5, "seed": 1}


@pytest.fixture(scope="module")
def tts() -> Iterator[TTS]:
    with TTS("dummy:toy", memory_gb=0.01) as made:
        yield made


@pytest.fixture
def asked(tts: TTS, monkeypatch: pytest.MonkeyPatch) -> list[SpeechRequest]:
    """The requests whose prompts are made."""
    found: list[SpeechRequest] = []
    prompt = tts._model.prompt

    def noted(request: SpeechRequest, encoded: Any) -> Prompt:
        found.append(request)
        return prompt(request, encoded)

    monkeypatch.setattr(tts._model, "prompt", noted)
    return found


SCRIPT = [
    {"voice": "low", "text": "Did you hear that?"},
    {"voice": "HIGH", "text": "Hear what? Oh.", "pause": 1.5},
    {"text": "They went on."},
]


def test_each_turn_is_spoken_in_its_voice_with_the_pauses_of_the_script(
    tts: TTS, asked: list[SpeechRequest]
) -> None:
    speech = tts.generate(script=SCRIPT, **SHORT, retries=1, voice="high")
    assert [(r.voice, r.text) for r in asked] == [
        ("low", "Did you hear that?"), ("high", "Hear what? Oh."), ("high", "They went on.")
    ]  # fmt: skip
    hop = tts.spec.hop
    seconds = 5 * hop / tts.sample_rate
    starts = [0, seconds + 0.25, 2 * seconds + 1.75]
    assert [s.start for s in speech.segments] == pytest.approx(starts)
    assert [(s.voice, s.turn, s.start_char, s.end_char) for s in speech.segments] == [
        ("low", 0, 0, 18), ("HIGH", 1, 0, 14), (None, 2, 0, 13)
    ]  # fmt: skip
    assert len(speech.samples) == round((3 * seconds + 1.75) * tts.sample_rate)
    alone = tts.generate("Did you hear that?", voice="low", retries=1, **SHORT)
    np.testing.assert_allclose(speech.samples[: 4 * hop], alone.samples[: 4 * hop], atol=1e-5)


def test_marks_in_a_text_are_the_same_dialogue(tts: TTS) -> None:
    text = "[voice: low] Did you hear that? [voice: HIGH] Hear what? Oh. [pause 1.5s] [voice: low] They went on."
    by_marks = tts.generate(text, retries=1, **SHORT)
    script = [*SCRIPT[:2], {"voice": "low", "text": "They went on."}]
    by_script = tts.generate(script=script, retries=1, **SHORT)
    np.testing.assert_allclose(by_marks.samples, by_script.samples, atol=1e-5)
    assert [text[s.start_char : s.end_char] for s in by_marks.segments] == [
        s.text for s in by_marks.segments
    ]
    streamed = list(tts.stream(text, **SHORT))
    assert sum(len(c.samples) for c in streamed) == len(by_marks.samples)
    assert [s for c in streamed for s in c.segments] == list(by_marks.segments)


def test_a_list_and_asyncio_take_dialogues_too(tts: TTS) -> None:
    text = "[voice: low] One. [voice: high] Two."
    whole = tts.generate(text, retries=1, **SHORT)
    first, _ = tts.generate([text, "Three."], retries=1, **SHORT)
    assert first.segments == whole.segments
    awaited = asyncio.run(tts.agenerate(script=[{"voice": "low", "text": "One."}, {"voice": "high", "text": "Two."}], retries=1, **SHORT))  # fmt: skip
    np.testing.assert_allclose(awaited.samples, whole.samples, atol=1e-5)


def test_names_stand_for_references_in_every_family_that_takes_them(
    tts: TTS, asked: list[SpeechRequest]
) -> None:
    voices = {"Anna": Reference((TONE, 6000)), "ben": "low"}
    script = [
        {"voice": "anna", "text": "One."},
        {"voice": "Ben", "text": "Two."},
        {"voice": "ANNA", "text": "Three."},
    ]
    speech = tts.generate(script=script, voices=voices, retries=1, **SHORT)
    assert [(r.voice, r.reference is not None) for r in asked] == [
        (None, True),
        ("low", False),
        (None, True),
    ]
    assert [s.voice for s in speech.segments] == ["anna", "Ben", "ANNA"]


def test_subtitles_say_who_speaks(tts: TTS) -> None:
    segments = tts.generate(
        script=SCRIPT[:2], retries=1, split_granularity="sentence", **SHORT
    ).segments
    assert [line for line in srt(segments).splitlines() if line and "-->" not in line and not line.isdigit()] == [
        "low: Did you hear that?", "HIGH: Hear what? Oh."
    ]  # fmt: skip
    assert "<v low>Did you hear that?" in vtt(segments)
    assert "<v HIGH>Hear what?" in vtt(segments)


def test_names_are_safe_in_subtitles(tts: TTS) -> None:
    voices = {"<i>a&b": "low"}
    (segment,) = tts.generate(
        script=[{"voice": "<i>a&b", "text": "Hi."}], voices=voices, retries=1, **SHORT
    ).segments
    assert "<v &lt;i&gt;a&amp;b>Hi." in vtt([segment])


WRONG: list[tuple[Any, dict[str, Any], str]] = [
    (
        None,
        {"script": [{"voice": "nobody", "text": "Hi."}]},
        "script[0].voice: 'nobody' is not known; known: low, high",
    ),
    ("[voice: nobody] Hi.", {}, "text: 'nobody' is not known; known: low, high"),
    ("Hi.", {"script": [{"text": "Hi."}]}, "script: stands for text: give one of them"),
    (None, {"script": [{"text": "[pause 1s]"}]}, "script[0].text: has no words besides its marks"),
    (None, {"script": "Hi."}, "script: must be a list of turns, got str"),
    ("Hi.", {"voices": ["low"]}, "voices: must be a mapping of names to references, got list"),
    ("Hi.", {"voices": {3: "low"}}, "voices: has a name that is no string, or is empty: 3"),
    ("Hi.", {"voices": {"a": 3}}, "voices[a]: must be a Reference or the name of a voice, got int"),
    ("Hi.", {"voices": {"a": Reference("none.wav")}}, "voices[a]: "),
    ("[voice: a] Hi.", {"voices": {"a": "nobody"}}, "text: 'nobody' is not known"),
    (
        None,
        {"script": [{"voice": "low", "text": "x" * 600}], "split_granularity": "none"},
        "text: has 600 characters",
    ),
]


@pytest.mark.parametrize(("text", "options", "says"), WRONG, ids=[says[:50] for *_, says in WRONG])
def test_what_is_wrong_is_named_before_anything_is_queued(
    tts: TTS, text: Any, options: Any, says: str
) -> None:
    before = tts.engine.health().stats.submitted
    for call in (
        tts.generate,
        lambda t, **o: next(tts.stream(t, **o)),
        lambda t, **o: asyncio.run(tts.agenerate(t, **o)),
    ):
        with pytest.raises(InvalidRequest) as e:
            call(text, **options)
        assert str(e.value).startswith(says)
    assert tts.engine.health().stats.submitted == before


def test_dropping_a_stream_between_two_voices_ends_it(tts: TTS) -> None:
    before = tts.engine.health().stats.cancelled
    stream = tts.stream("[voice: low] One. [voice: high] Two.", max_frames=60, min_frames=60)
    next(stream)
    stream.close()
    assert not any(s.voice == "high" for chunk in stream for s in chunk.segments)
    assert until(lambda: not tts.engine.health().running)
    assert tts.engine.health().stats.cancelled == before + 1


def test_a_voice_of_the_call_that_no_turn_has_is_told(
    tts: TTS, caplog: pytest.LogCaptureFixture
) -> None:
    tts.generate("[voice: low] One.", voice="high", retries=1, **SHORT)
    assert "voice is not used: every turn has its own voice" in caplog.text
    caplog.clear()
    tts.generate("One. [voice: low] Two.", voice="high", retries=1, **SHORT)
    assert "is not used" not in caplog.text


def test_words_of_a_dialogue_have_their_places_in_the_text() -> None:
    text = "[voice: low] Did you hear that? [voice: high] Hear what?"
    with TTS("dummy:toy-words", memory_gb=0.01) as words:
        speech = words.generate(
            text, word_timestamps=True, retries=1, max_frames=40, min_frames=40, seed=1
        )
    assert speech.words
    for word in speech.words:
        assert text[word.start_char : word.end_char] == word.text
    assert srt(speech.segments).count("low: ") == 1
    assert "<v high>Hear" in vtt(speech.segments)

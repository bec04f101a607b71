"""Long text of the Python API: cut at sentences, spoken in one voice and one place of the queue, joined and timed."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from itertools import pairwise

import numpy as np
import pytest

from stentor import TTS, InvalidRequest
from stentor.config import Policy
from stentor.engine.scheduling.sequence import Place
from stentor.models.base import Prompt
from stentor.models.info import SpeechRequest

TEXT = "One is here. Two is here.\n\nThree is here. Four is here."
SENTENCES = ["One is here.", "Two is here.", "Three is here.", "Four is here."]
ASK = {"seed": 5, "split_granularity": "sentence", "max_frames": 8, "min_frames": 8, "retries": 1}
STREAM = {k: v for k, v in ASK.items() if k != "retries"}


@pytest.fixture(scope="module")
def tts() -> Iterator[TTS]:
    policy = Policy(max_queue=2)
    with TTS(
        "dummy:toy", dtype="float64", max_num_seqs=2, memory_gb=0.002, policy=policy
    ) as running:
        yield running


@pytest.fixture
def asked(tts: TTS, monkeypatch: pytest.MonkeyPatch) -> list[SpeechRequest]:
    """Every request whose prompt was made."""
    plain, seen = tts._model.prompt, []

    def prompt(request: SpeechRequest, voices) -> Prompt:
        seen.append(request)
        return plain(request, voices)

    monkeypatch.setattr(tts._model, "prompt", prompt)
    return seen


@pytest.fixture
def places(tts: TTS, monkeypatch: pytest.MonkeyPatch) -> list[Place]:
    """The place of every prompt that was queued."""
    plain, seen = tts.engine.submit, []

    def submit(prompt, seed, streaming, place):
        seen.append(place)
        return plain(prompt, seed, streaming, place)

    monkeypatch.setattr(tts.engine, "submit", submit)
    return seen


def test_long_text_is_spoken_in_sentences_with_pauses_and_times(
    tts: TTS, asked: list[SpeechRequest]
) -> None:
    speech = tts.generate(TEXT, voice="low", **ASK)
    assert [r.text for r in asked] == SENTENCES
    assert [TEXT[s.start_char : s.end_char] for s in speech.segments] == SENTENCES
    gaps = [b.start - a.end for a, b in pairwise(speech.segments)]
    assert gaps == pytest.approx([0.15, 0.4, 0.15])
    assert speech.segments[-1].end == pytest.approx(speech.duration)
    assert len(speech.frames) == 4 * 8
    assert len(speech.samples) == 4 * 8 * tts.spec.hop + round((0.15 + 0.4 + 0.15) * 600)


@pytest.mark.parametrize("voice", ["low", None], ids=["named", "carried over"])
def test_a_stream_of_long_text_gives_the_same_audio_and_times(tts: TTS, voice: str | None) -> None:
    whole = tts.generate(TEXT, voice=voice, **ASK)
    chunks = list(tts.stream(TEXT, voice=voice, **STREAM))
    np.testing.assert_allclose(
        np.concatenate([c.samples for c in chunks]), whole.samples, atol=1e-6
    )
    assert [c.finish_reason for c in chunks] == [None] * (len(chunks) - 1) + ["length"]
    assert tuple(s for c in chunks for s in c.segments) == whole.segments


def test_each_sentence_takes_the_voice_of_the_one_before(
    tts: TTS, asked: list[SpeechRequest]
) -> None:
    tts.generate(TEXT, **ASK)
    assert [None if r.reference is None else r.reference.text for r in asked] == [
        None,
        *SENTENCES[:-1],
    ]


def test_all_segments_keep_the_place_of_the_first(tts: TTS, places: list[Place]) -> None:
    tts.generate(TEXT, **ASK)
    assert places == [Place.NEW, Place.NEXT, Place.NEXT, Place.NEXT]
    places.clear()
    tts.generate(" ".join([TEXT] * 3), voice="low", **ASK)
    assert places == [Place.NEW] + [Place.ADMITTED] * 7 + [Place.NEXT] * 4


def test_texts_of_a_list_wait_for_each_other_where_the_queue_is_full(tts: TTS) -> None:
    alone = tts.generate(TEXT, voice="low", **ASK)
    for speech in tts.generate([TEXT] * 6, voice="low", **ASK):
        np.testing.assert_allclose(speech.samples, alone.samples, atol=1e-6)


def test_text_beyond_what_one_request_takes_is_cut_by_itself(
    tts: TTS, asked: list[SpeechRequest]
) -> None:
    text = "This is one of many sentences. " * 40
    assert len(text) > tts.spec.max_text
    speech = tts.generate(text, seed=1, voice="low", max_frames=2, retries=1)
    assert " ".join(r.text for r in asked).split() == text.split()
    assert len(speech.segments) == len(asked) > 2


def test_a_wrong_option_or_text_is_refused_before_anything_is_queued(tts: TTS) -> None:
    before = tts.engine.health().stats.submitted
    for text, options in (
        (TEXT, {"voice": "nobody"}),
        ("\ud800" + TEXT, {}),
        (TEXT, {"live": True}),
    ):
        with pytest.raises(InvalidRequest):
            tts.stream(text, **options)
    assert tts.engine.health().stats.submitted == before


def test_a_closed_stream_begins_no_other_sentence(tts: TTS, asked: list[SpeechRequest]) -> None:
    stream = tts.stream(TEXT, **STREAM)
    while not next(stream).segments:
        pass
    stream.close()
    assert list(stream) == []
    assert len(asked) == 1


def test_speech_that_a_limit_cut_is_warned_of_unless_the_caller_set_it(
    tts: TTS, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "stentor"):
        assert tts.generate("Short.", **ASK).finish_reason == "length"
        assert not [r for r in caplog.records if r.name.startswith("stentor")]
        assert tts.generate("Short.", seed=1, min_frames=64, retries=1).finish_reason == "length"
    assert "max_frames" in caplog.text


def test_a_segment_that_cannot_be_spoken_is_a_silence(
    tts: TTS, asked: list[SpeechRequest], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tts._model, "speakable", lambda text, check: "Two" not in text)
    speech = tts.generate(TEXT, **ASK)
    chunks = list(tts.stream(TEXT, **STREAM))
    np.testing.assert_allclose(
        np.concatenate([c.samples for c in chunks]), speech.samples, atol=1e-6
    )
    assert [r.text for r in asked] == [SENTENCES[0], *SENTENCES[2:]] * 2
    silent = speech.segments[1]
    assert (silent.text, silent.end - silent.start) == (SENTENCES[1], pytest.approx(0.3))
    assert not speech.samples[round(silent.start * 600) : round(silent.end * 600)].any()


def test_a_text_that_cannot_be_spoken_is_a_silence(
    tts: TTS, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tts._model, "speakable", lambda text, check: False)
    speech = tts.generate("One.", **ASK)
    assert speech.duration == pytest.approx(0.3)
    assert not speech.samples.any()


def test_a_text_that_is_not_cut_is_spoken_with_the_spaces_around_it() -> None:
    with TTS("dummy:toy", device="cpu") as tts:
        text, options = "  some words ", {"seed": 3, "max_frames": 4}
        whole = tts.speech(list(tts.submit(tts.request(text, **options), False)), 3)
        np.testing.assert_array_equal(tts.generate(text, **options).frames, whole.frames)
        assert tts.generate(text, **options).segments[0].text == text.strip()

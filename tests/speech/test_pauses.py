"""Pauses that a text asks for are silence in their place, and a lexicon holds for every call."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from stentor import TTS, InvalidRequest
from stentor.speech.joiner import PAUSE

ASK = {"seed": 5, "voice": "low", "max_frames": 4, "min_frames": 4}


@pytest.fixture(scope="module")
def tts() -> Iterator[TTS]:
    with TTS("dummy:toy", dtype="float64", max_num_seqs=2, memory_gb=0.002, lexicon={"SQL": "sequel"}) as running:
        yield running


def gaps(speech) -> list[float]:
    edges = [0.0, *(t for s in speech.segments for t in (s.start, s.end)), speech.duration]
    return [round(b - a, 2) for a, b in zip(edges[::2], edges[1::2], strict=True)]


def test_a_pause_is_silence_in_its_place(tts: TTS) -> None:
    text = "[pause 300ms] One. [pause 600ms] Two. Three.<break time='1s'/>"
    speech = tts.generate(text, split_granularity="sentence", **ASK)
    assert gaps(speech) == [0.3, 0.6, PAUSE, 1.0]
    assert [s.text for s in speech.segments] == ["One.", "Two.", "Three."]
    assert [text[s.start_char : s.end_char] for s in speech.segments] == ["One.", "Two.", "Three."]
    end, begin = (round(t * speech.sample_rate) for t in (speech.segments[0].end, speech.segments[1].start))
    assert not speech.samples[end:begin].any()
    streamed = np.concatenate([c.samples for c in tts.stream(text, split_granularity="sentence", **ASK)])
    assert len(streamed) == len(speech.samples)
    assert not streamed[end:begin].any()


def test_the_model_gets_words_without_marks(tts: TTS, monkeypatch: pytest.MonkeyPatch) -> None:
    plain, seen = tts._model.prompt, []
    monkeypatch.setattr(tts._model, "prompt", lambda r, e: (seen.append(r.text), plain(r, e))[1])
    tts.generate('<speak>Use <prosody rate="slow">SQL</prosody> in [Worcester](/wˈʊstəɹ/).</speak>', **ASK)
    assert seen == ["Use sequel in Worcester."]


def test_pauses_alone_are_refused(tts: TTS) -> None:
    with pytest.raises(InvalidRequest, match="no words besides"):
        tts.generate("[pause 1s]", **ASK)


def test_a_wrong_lexicon_is_found_before_the_model_is_loaded() -> None:
    with pytest.raises(InvalidRequest, match="one word"):
        TTS("no such model", lexicon={"two words": "x"})

"""Text that a model is fed between the codes that it makes, over WS /v1/audio/speech/stream."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pytest

import stentor
from tests.fixtures.cosyvoice3 import tiny_cosyvoice3
from tests.helpers.server_live import Live, pcm, serving
from tests.helpers.ws_talk import talk

WORDS = [tiny_cosyvoice3.spelling(i) + tiny_cosyvoice3.spelling(i + 9) for i in range(16)]
TEXT = " ".join(WORDS)
ASK = {"voice": "words", "max_frames": 90, "ignore_eos": True, "seed": 5}


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    folder = tmp_path_factory.mktemp("fed")
    (folder / "model").mkdir()
    checkpoint = tiny_cosyvoice3.write(folder / "model")

    def load(name: str, model: str | None) -> Callable[[], stentor.TTS]:
        return lambda: stentor.TTS(
            checkpoint, device="cpu", max_num_seqs=2, memory_gb=0.02, threads=1
        )

    with serving(folder / "voices", load, model="tiny", ws_idle_seconds=300.0) as running:
        yield running


def test_it_speaks_before_its_text_is_complete_and_says_the_same_however_that_came(
    live: Live,
) -> None:
    with talk(live, **ASK) as t:
        for word in WORDS[:14]:
            t.send("input.text", text=f"{word} ")
        assert isinstance(t.get(), dict)
        first = t.get()  # audio, although no sentence has ended
        assert isinstance(first, bytes)
        t.send("input.text", text=" ".join(WORDS[14:]))
        t.send("input.done")
        events, rest = t.until("session.done")
    assert events[-1]["total_sentences"] == 1
    with talk(live, **ASK) as t:
        _, whole = t.say(TEXT)
    spoken, want = pcm(first + rest), pcm(whole)
    assert len(spoken) == len(want) > 0
    assert np.abs(spoken - want).max() < 2.1 / 32767
    assert live.idle()


def test_a_voice_without_words_is_given_sentences(live: Live) -> None:
    with talk(live, **{**ASK, "voice": "mute", "max_frames": 20}) as t:
        events, audio = t.say(f"{WORDS[0]}. {WORDS[1]}.")
    assert events[-1]["type"] == "session.done"
    assert events[-1]["total_sentences"] == 2
    assert audio

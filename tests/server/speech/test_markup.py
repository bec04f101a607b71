"""Marks in a text over HTTP and WebSocket: pauses, SSML, and the server's lexicon."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stentor.errors import InvalidRequest
from stentor.server.config import ServerConfig
from stentor.text.pauses import PAUSES
from tests.helpers.local_engine import configured
from tests.helpers.server_live import Live, pcm, serving
from tests.helpers.ws_talk import talk

RATE = 600  # Hz of the toy
ASK = {"response_format": "pcm", "seed": 3, "max_new_tokens": 4, "split_granularity": "sentence"}


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    folder: Path = tmp_path_factory.mktemp("markup")
    (folder / "words.yaml").write_text("SQL: sequel\n", encoding="utf-8")
    settings: dict[str, Any] = {
        "lexicon": str(folder / "words.yaml"),
        "memory_gb": 0.01,
        "threads": 1,
    }
    with serving(folder, start=configured, max_num_seqs=8, **settings) as running:
        yield running


@pytest.mark.parametrize("how", [{}, {"stream_format": "audio"}])
def test_a_pause_is_silence_of_its_length(live: Live, how: dict) -> None:
    plain = pcm(live.speech(input="One. Two.", **ASK, **how).content)
    paused = pcm(
        live.speech(
            input="[pause 500ms]One. <break time='2s'/> Two.[pause 1s]", **ASK, **how
        ).content
    )
    assert len(paused) - len(plain) == round((0.5 + 2 - PAUSES["stop"] + 1) * RATE)
    assert not paused[: RATE // 2].any()
    assert not paused[-RATE:].any()


@pytest.mark.parametrize("first", ["[pause 2s]", ""])
def test_a_pause_ahead_of_a_refused_piece_does_not_start_the_answer(live: Live, first: str) -> None:
    """The toy refuses NUL when it makes the prompt of a piece."""
    answer = live.speech(input=f"{first}No \0.", cleanup="none", stream_format="audio", **ASK)
    assert (answer.status_code, answer.json()["error"]["message"]) == (
        400,
        "input: must not contain NUL",
    )


def test_tags_are_not_spoken_and_words_are_replaced(live: Live) -> None:
    told = live.speech(
        input='<speak>Use <emphasis level="strong">SQL</emphasis>.</speak>', **ASK
    ).content
    assert np.array_equal(pcm(told), pcm(live.speech(input="Use sequel.", **ASK).content))


def test_pauses_without_words_and_pauses_too_long_are_a_400(live: Live) -> None:
    for text, why in (("[pause 1s]", "no words"), ("a [pause 10s] b" * 20, "at most 120 s")):
        answer = live.speech(input=text, **ASK)
        assert answer.status_code == 400
        assert answer.json()["error"]["param"] == "input"
        assert why in answer.json()["error"]["message"]


def test_a_websocket_reads_marks_too(live: Live) -> None:
    with talk(live, split_granularity="sentence", seed=3, max_new_tokens=4) as t:
        _, plain = t.say("Use sequel. Two.")
        events, paused = t.say('Use SQL. <break time="1s"/> <sub alias="Two">2</sub>.')
    assert events[-1]["total_sentences"] == 2
    assert len(pcm(paused)) - len(pcm(plain)) == round((1 - PAUSES["stop"]) * RATE)


def test_a_wrong_lexicon_is_found_before_the_server_starts(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="does not exist"):
        ServerConfig(lexicon=str(tmp_path / "none.yaml"))

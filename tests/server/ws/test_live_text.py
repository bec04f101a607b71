"""Text that a model takes word by word while it speaks, over WS /v1/audio/speech/stream."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import stentor
from stentor.speech.live_text import TextFeed, extended
from stentor.text.sentences import Segment
from tests.fixtures.qwen3_tts import tiny_qwen3_tts
from tests.helpers.invariants import check
from tests.helpers.server_live import Live, pcm, serving
from tests.helpers.ws_talk import IdleClock, talk

TEXT = "Hello there, this is the voice. And you, there, speak."


FRAMES = 28


ASK = {"voice": "ryan", "max_frames": FRAMES, "ignore_eos": True}


FADE = 240  # samples; the end of a piece is faded, since another might have followed


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    """A server with a model that takes live text, and little patience."""
    folder = tmp_path_factory.mktemp("live")
    checkpoint = tiny_qwen3_tts.write("custom_voice", folder / "model")

    def load(name: str, model: str | None) -> Callable[[], stentor.TTS]:
        return lambda: stentor.TTS(
            checkpoint, device="cpu", max_num_seqs=4, memory_gb=0.05, threads=1
        )

    with serving(
        folder / "voices", load, ws_idle_seconds=300.0, max_instructions_chars=50
    ) as running:
        yield running


def test_text_by_letters_sounds_like_the_whole_text_and_is_heard_before_it_is_complete(
    live: Live,
) -> None:
    answer = live.speech(
        input=TEXT, **ASK, seed=5, response_format="pcm", non_streaming_mode=False, stream=False
    )
    whole = pcm(answer.content)
    with talk(live, **ASK) as t:
        for letter in TEXT[:12]:
            t.send("input.text", text=letter)
        early = t.get()
        assert isinstance(early, dict)
        assert early["sentence_text"].startswith("Hello")
        first = t.get()  # audio, although no clause has ended
        assert isinstance(first, bytes)
        for letter in TEXT[12:]:
            t.send("input.text", text=letter)
        t.send("input.done")
        events, audio = t.until("session.done")
    spoken = pcm(first + audio)
    assert len(spoken) == len(whole) == FRAMES * 1920
    assert np.abs(spoken[:-FADE] - whole[:-FADE]).max() < 2.1 / 32767
    assert (events[0]["start_char"], events[0]["end_char"]) == (0, len(TEXT))
    assert events[-1]["total_sentences"] == 1
    assert str(events[-1]["usage"]["input_tokens"]) == answer.headers["x-usage-input-tokens"]


def test_cancel_while_it_waits_for_text_says_what_was_heard_and_frees_the_slot(live: Live) -> None:
    with talk(live, **ASK) as t:
        t.send("input.text", text="Hello there, this is ")
        while not isinstance(t.get(), bytes):
            pass
        assert not live.idle(0.3)  # it waits
        t.send("response.cancel", played_ms=1e6)
        cancelled = t.until("response.cancelled")[0][-1]
        assert 0 < cancelled["spoken_ms"] < FRAMES * 80
        assert cancelled["heard_text"]
        assert "Hello there, this is ".startswith(cancelled["heard_text"])
        assert live.idle()
        assert t.say("Hello.")[0][-1]["type"] == "session.done"


def test_a_client_that_stops_in_the_middle_of_a_text_is_hung_up_on(
    live: Live, idle_clock: IdleClock
) -> None:
    with talk(live, **ASK) as t:
        t.send("input.text", text="Hello there, this is ")
        while not isinstance(t.get(), bytes):
            pass
        idle_clock.passes = True
        code, events = t.close_code()
        assert (code, events[-1]["code"]) == (1008, "idle_timeout")
    assert live.idle()


def test_commit_ends_a_piece_and_the_utterance_goes_on(live: Live) -> None:
    with talk(live, **ASK) as t:
        t.send("input.text", text="Hello there")
        t.send("input.commit")
        events, _ = t.until("audio.done")
        assert (events[-1]["start_char"], events[-1]["end_char"]) == (0, 11)
        events, _ = t.say(" and you")
        assert (events[0]["sentence_text"], events[-1]["total_sentences"]) == ("and you", 2)


def test_rude_clients_in_the_middle_of_a_text_leave_nothing_behind(live: Live) -> None:
    """More sessions than slots; each ends in another way, with its text unfinished."""

    def visit(i: int) -> str:
        with talk(live, **ASK, seed=i) as t:
            t.send("input.text", text="Hello there, "[: 6 + i % 8])
            if i % 4 == 0:
                return "left"
            t.send("input.text", text="this is the voice ")
            if i % 4 == 1:
                t.send("response.cancel")
                return str(t.until("response.cancelled")[0][-1]["type"])
            if i % 4 == 2:
                t.send("session.close")
                return str(t.close_code()[0])
            return str(t.say("and you.")[0][-1]["type"])

    with ThreadPoolExecutor(8) as pool:
        ends = list(pool.map(visit, range(8)))
    assert ends == ["left", "response.cancelled", "1000", "session.done"] * 2
    assert live.idle()
    check(live.tts.engine.scheduler)


@pytest.mark.parametrize(
    "settings", [{"split_granularity": "sentence"}, {"non_streaming_mode": True}]
)
def test_whoever_wants_whole_sentences_gets_them(live: Live, settings: dict) -> None:
    with talk(live, **ASK, **settings) as t:
        t.send("input.text", text="Hello there. This")
        events, _ = t.until("audio.done")
        assert events[0]["sentence_text"] == "Hello there."
        events, _ = t.say(" is it.")
        assert events[0]["sentence_text"] == "This is it."


def test_what_the_model_does_not_use_is_named_at_the_configuration(live: Live) -> None:
    with talk(live, configure=False) as t:
        t.send("session.config", voice="ryan", speaker_embedding=[1.0])
        configured = t.get()
        assert configured["type"] == "session.configured"
        assert [ignored["param"] for ignored in configured["ignored"]] == ["speaker_embedding"]


def spoken(feed: TextFeed) -> list[Segment]:
    return [
        segment if tail is None else extended(segment, tail.take())
        for segment, tail in feed._segments
    ]

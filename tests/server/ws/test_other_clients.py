"""Messages of clients of vLLM-Omni and SGLang-Omni over a WebSocket, and the events that they wait for."""

from __future__ import annotations

import base64
import io
import wave
from collections.abc import Iterator

import pytest

from tests.helpers.server_live import Live, serving
from tests.helpers.ws_talk import talk

TEXT = "One is here. Two follows it."


@pytest.fixture(scope="module")
def strict(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    with serving(tmp_path_factory.mktemp("voices"), strict=True) as running:
        yield running


def test_without_stream_audio_each_piece_is_a_file(live: Live) -> None:
    """vLLM-Omni's example client saves what comes between audio.start and audio.done."""
    config = {
        "speaker": "low",
        "task_type": "CustomVoice",
        "language": "Auto",
        "speed": 1.0,
        "response_format": "WAV",
    }
    with talk(live, split_granularity="sentence", **config) as t:
        t.send("input.text", text=TEXT)
        t.send("input.done")
        for i in range(2):
            assert t.until("audio.start")[0][-1]["sentence_index"] == i
            events, audio = t.until("audio.done")
            assert events[-1]["total_bytes"] == len(audio)
            with wave.open(io.BytesIO(audio)) as f:
                assert f.getnframes() > 0
        assert t.until("session.done")[0][-1]["total_sentences"] == 2


def test_a_nested_session_object_is_the_configuration(live: Live) -> None:
    with talk(live, configure=False) as t:
        t.send(
            "session.config",
            session={"response_format": "pcm", "split_granularity": "sentence", "voice": None},
        )
        configured = t.get()
        assert (configured["type"], configured["stream_audio"], configured["split_granularity"]) == (
            "session.configured", True, "sentence",
        )  # fmt: skip
        assert "ignored" not in configured
        events, _ = t.say(TEXT)
    assert {e["session_id"] for e in events if e["type"] == "session.done"} == {
        configured["session_id"]
    }
    ids = [(e["type"], e["id"]) for e in events if e["type"].startswith("audio.")]
    assert [kind for kind, _ in ids] == ["audio.start", "audio.done"] * 2
    assert len({id for _, id in ids}) == 2


def test_word_timestamps_give_the_chunks_that_clients_read_without_times(live: Live) -> None:
    with talk(live, word_timestamps=True, stream_audio=True, split_granularity="sentence") as t:
        events, audio = t.say(TEXT)
    chunks = [e for e in events if e["type"] == "audio.chunk"]
    assert audio == b""
    for i in range(2):
        mine = [c for c in chunks if c["sentence_index"] == i]
        assert [c["chunk_id"] for c in mine] == list(range(len(mine)))
        assert all(
            c["timestamps"] is None and c["chunk_start_ms"] <= c["chunk_end_ms"] for c in mine
        )
        total = sum(len(base64.b64decode(c["audio_b64"])) for c in mine)
        assert (
            total
            == next(e for e in events if e["type"] == "audio.done" and e["sentence_index"] == i)[
                "total_bytes"
            ]
        )
    assert "ignored" not in events[-1]


def test_unknown_fields_of_a_message_are_named_at_the_end_or_refused(
    live: Live, strict: Live
) -> None:
    with talk(live) as t:
        t.send("input.text", text="Hello.", nonsense=1)
        t.send("input.done", more=1)
        assert t.until("session.done")[0][-1]["ignored"] == [{"param": "nonsense"}]
    with talk(strict) as t:
        t.send("input.text", text="Hello.", nonsense=1)
        assert t.get()["param"] == "nonsense"
        events, _ = t.say("There.")
        assert events[0]["sentence_text"] == "There."

"""The doors are driven by the SDKs of those who made their protocols, against the toy and against the built-in voice.

One that is not installed here is skipped: scripts/clients.py installs it.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from stentor.api import DEFAULT_VOICE
from tests.helpers.other_pythons import run_node, run_python
from tests.helpers.server_live import process, serving

SDKS = Path(__file__).parents[1] / "clients" / "sdks"
TEXT = "Good morning. How are you?"
WORDS = ["Good", "morning", "to", "you.", "How", "are", "you", "today?"]
SPOKEN = ["response.output_item.added", "response.content_part.added", "response.done"]


class Address(NamedTuple):
    """Where a server listens for HTTP, and for Wyoming. exact: its audio is that of its model, to a byte."""

    url: str
    port: int
    voice: bool


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Address]:
    with serving(tmp_path_factory.mktemp("toy") / "voices", wyoming_port=0) as live:
        assert live.server.wyoming_port is not None
        yield Address(live.url, live.server.wyoming_port, voice=False)
        assert live.idle()


@pytest.fixture(scope="module")
def voice(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Address]:
    if not (DEFAULT_VOICE / "config.json").is_file():
        pytest.skip("the built-in voice is not in this build: docs/training.md")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
    flags = (
        "--voices-dir",
        str(tmp_path_factory.mktemp("voice")),
        "--memory-gb",
        "0.1",
        "--wyoming-port",
        str(port),
    )
    with process(*flags, model=()) as (_, url):
        yield Address(url, port, voice=True)


@pytest.fixture(params=["toy", "voice"])
def address(request: pytest.FixtureRequest) -> Address:
    found: Address = request.getfixturevalue(request.param)
    return found


def driven(module: str, program: str, address: Address) -> dict[str, Any]:
    """Output of a driver."""
    said = run_python(module, SDKS / f"drive_{program}.py", address.url, str(address.port))
    found: dict[str, Any] = json.loads(said.splitlines()[-1])
    return found


def test_elevenlabs_sdk(address: Address) -> None:
    got = driven("elevenlabs", "elevenlabs", address)
    assert "default" in got["voices"]
    assert (got["found"], got["voice"]) == (["default"], "default")
    assert got["models"]
    assert got["default"] == "fffb"  # a frame of MP3
    assert all(got["streamed"].values())
    assert got["ignored"] == "voice_settings.stability"
    assert got["fast"] == pytest.approx(0.5, abs=0.1)
    assert got["timed"] == {"text": TEXT, "start": b"RIFF".hex()}
    assert got["lines"]["text"] == TEXT
    assert got["lines"]["ends"] <= got["lines"]["bytes"] / 2 / 16000 + 0.1
    assert got["socket"] > 0
    assert got["refused"] == [
        "400 voice_id",
        "400 output_format",
        "400 text",
        "404 model_id",
        "1008 voice_id",
    ]
    assert got["cancelled"]


def test_elevenlabs_sdk_for_node(address: Address, tmp_path: Path) -> None:
    printed = run_node(SDKS / "drive_elevenlabs.mjs", address.url, cwd=tmp_path)
    got = json.loads(printed.splitlines()[-1])
    assert "default" in got["voices"]
    assert got["voice"] == "default"
    assert got["models"]
    assert got["default"] == "fffb"  # a frame of MP3
    assert got["streamed"] > 0
    assert got["timed"] == {"text": TEXT, "start": b"RIFF".hex()}
    assert got["lines"] == TEXT
    assert got["dialogue"] > 0
    assert got["refused"] == ["400 voice_id", "400 text"]
    assert got["cancelled"]


def test_livekits_elevenlabs_plugin(address: Address) -> None:
    got = driven("livekit.plugins.elevenlabs", "livekit_elevenlabs", address)
    assert "default" in got["voices"]
    assert got["whole"] > 0
    assert got["whole mp3"] > 0
    assert got["whole dialogue"] > 0
    for way in ("bit by bit", "again", "by schedule", "dialogue", "dialogue again"):
        assert got[way]["words"] == WORDS
        assert got[way]["bytes"] > 0
        assert got[way]["begins"] == sorted(got[way]["begins"])
        assert got[way]["seconds"] / 2 < got[way]["begins"][-1] < got[way]["seconds"]
    assert got["cancelled"] > 0
    assert got["refused"] == 400


def test_pipecats_elevenlabs_services(address: Address) -> None:
    got = driven("pipecat", "pipecat_elevenlabs", address)
    for way in ("socket", "http"):
        assert got[way]["errors"] == []
        assert got[way]["words"] == [*WORDS, "Fine."]
        assert got[way]["bytes"] > 0


@pytest.mark.parametrize("client", ["livekit.plugins.elevenlabs", "pipecat"])
def test_interrupted_turns_free_their_places(voice: Address, client: str) -> None:
    """While the connection lives on. The built-in voice takes seconds for the answer that is interrupted."""
    got = driven(client, f"{client.partition('.')[0]}_interrupted", voice)
    del got["version"]
    assert got
    assert [name for name, stopped in got.items() if not stopped] == []


def test_openais_sdk_over_realtime(address: Address) -> None:
    got = driven("openai", "realtime", address)
    assert (got["created"], got["voice"]) == (24000, "alloy")
    spoken, beta = got["spoken"], got["beta"]
    assert (
        [k for k in SPOKEN if k in spoken["kinds"]]
        == [k for k in SPOKEN if k in beta["kinds"]]
        == SPOKEN
    )
    assert {"response.output_audio.delta", "conversation.item.added", "conversation.item.done"} <= {
        *spoken["kinds"]
    }
    assert {"response.audio.delta", "conversation.item.created"} <= {*beta["kinds"]}
    assert spoken["text"] == spoken["transcript"] == beta["text"] == TEXT
    assert spoken["status"] == "completed"
    assert got["truncated"][:2] == ["conversation.item.truncated", 100]
    assert TEXT.startswith(got["truncated"][2])
    assert got["aside"] == ["Fine.", None, {"a": "b"}]
    seconds = [
        spoken["bytes"] / 2 / 24000,
        *(size / 8000 for size in got["formats"].values()),
        beta["bytes"] / 8000,
    ]
    assert all(seconds)
    assert (got["refused"], got["tools"]) == (["unsupported", "mine"], "unsupported")
    assert got["cancelled"] == "cancelled"
    assert got["beta format"] == "g711_ulaw"


def test_truncation_keeps_the_words_that_were_heard(voice: Address) -> None:
    """By the built-in voice's own times of words: while it speaks, and when it has ended."""
    got = driven("openai", "realtime_truncate", voice)
    words = got["text"].split()
    for ms, heard in got["heard"].items():
        begun = [w["word"] for w in got["words"] if w["start"] < int(ms) / 1000]
        assert heard.split() == words[: len(begun)], ms
    assert len({*got["heard"].values()}) > 3
    assert got["text"].startswith(got["cancelled"]["heard"])
    assert 0 < len(got["cancelled"]["heard"]) < len(got["text"])


def test_wyomings_package(address: Address) -> None:
    got = driven("wyoming", "wyoming", address)
    ((_, streams),) = got["programs"]
    assert streams
    assert "default" in got["voices"]
    assert "en" in got["languages"]
    assert got["pong"] == "it"
    whole = ["audio-start", "audio-chunk", "audio-stop"]
    assert got["whole"]["kinds"] == whole
    assert got["in pieces"]["kinds"] == [*whole, "synthesize-stopped"]
    assert got["whole"]["bytes"] > 0
    assert got["in pieces"]["bytes"] > 0
    assert got["refused"] == {"error": "voice_not_found", "then": None}
    assert got["left after"]

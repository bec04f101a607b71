"""Every family's tiny checkpoint speaks through every door, guard on, and says the same through each.

The combinations of family, door, cut, speed, times of words and other requests are a covering array that a seed draws.
Every pair of values is tried, but those of `LEFT_OUT`. A few are tried each time, all of them with `scripts/test --all`.
"""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import stentor
from tests.helpers.covering import Pair, Row, covering
from tests.helpers.server_live import Live, pcm, serving
from tests.helpers.tiny import VOICE, checkpoint
from tests.helpers.ws_talk import talk

SEED = 62
TEXT = "Hello there, one two three. Four five [pause 200ms] six."
FAST = ("dots_tts", "qwen3_tts")  # whose codecs and prompts differ most
FACTORS: dict[str, tuple[Any, ...]] = {
    "family": (
        "voxcpm2",
        "qwen3_tts",
        "fish_s2",
        "cosyvoice3",
        "qwen3_omni_talker",
        "dots_tts",
        "pocket_tts",
    ),
    "door": (
        "whole",
        "stream",
        "sse",
        "websocket",
        "batch",
        "python stream",
        "agenerate",
        "astream",
    ),
    "split": ("auto", "sentence", "none"),
    "speed": (1.0, 2.0),
    "words": (False, True),
    "beside": (0, 2),
    "seed": (3, 11),
}
GROWING = ("websocket", "astream")
LEFT_OUT: set[Pair] = {
    *(frozenset({("door", door), ("split", "auto")}) for door in GROWING),  # begins with a clause
    frozenset({("door", "batch"), ("words", True)}),  # items take none
}
FRAMES = {"cosyvoice3": 60}
"""The others end after `max_frames`. This one speaks at least so many for its text."""


def allowed(row: Row) -> bool:
    return not any(pair <= set(row.items()) for pair in LEFT_OUT)


ROWS, IMPOSSIBLE = covering(FACTORS, allowed, SEED)


def test_the_array_holds_every_pair_but_those_that_are_left_out() -> None:
    assert set(IMPOSSIBLE) == LEFT_OUT
    assert len(ROWS) < 90
    again, _ = covering(FACTORS, allowed, SEED)
    assert again == ROWS
    other, _ = covering(FACTORS, allowed, SEED + 1)
    assert other != ROWS


def options(row: Row) -> dict[str, Any]:
    family = row["family"]
    voice = {"voice": "mono24"} if family == "pocket_tts" else VOICE.get(family, {})
    return {
        **voice,
        "seed": row["seed"],
        "split_granularity": row["split"],
        "max_frames": FRAMES.get(family, 6),
        "word_timestamps": row["words"],
        "speed": row["speed"],
    }


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Live]]:
    """The server of a family. One runs at a time."""
    family = ""
    running: Any = None
    live: Live | None = None

    def start(name: str) -> Live:
        nonlocal family, running, live
        if name != family or live is None:
            if running is not None:
                running.__exit__(None, None, None)
            folder = tmp_path_factory.mktemp(name)
            running = serving(folder / "voices", load=loader(name, folder), warmup=False)
            live = running.__enter__()
            family = name
        return live

    yield start
    if running is not None:
        running.__exit__(None, None, None)


def loader(family: str, folder: Path) -> Callable[[str, str | None], Callable[[], stentor.TTS]]:
    if family == "pocket_tts":
        from tests.fixtures.pocket_tts import tiny_pocket_tts

        path = tiny_pocket_tts.write(folder / "checkpoint", "small")
    else:
        target = folder / "checkpoint"
        target.mkdir()
        path = checkpoint(family, target)
    how = {"memory_gb": 0.1, "max_num_seqs": 4, "threads": 1, "dtype": "float32"}
    return lambda name, model: lambda: stentor.TTS(path, **how)


def over_http(live: Live, row: Row) -> np.ndarray:
    door = row["door"]
    body = {"input": TEXT, "response_format": "pcm", **options(row)}
    if door == "batch":
        del body["word_timestamps"]
        answer = live.http.post("/v1/audio/speech/batch", json={"items": [body]})
        (result,) = answer.json()["results"]
        assert result["status"] == "success", result
        return pcm(base64.b64decode(result["audio"]))
    how = {
        "whole": {"stream": False},
        "stream": {"stream_format": "audio"},
        "sse": {"stream_format": "sse"},
    }
    answer = live.speech(**body, **how[door])
    assert answer.status_code == 200, answer.text
    if door == "sse":
        lines = [line for line in answer.text.splitlines() if line.startswith("data: ")]
        events = [json.loads(line.removeprefix("data: ")) for line in lines]
        assert events[-1]["type"] == "speech.audio.done", events[-1]
        return pcm(b"".join(base64.b64decode(e["audio"]) for e in events if "audio" in e))
    if door == "whole" and row["words"]:
        return pcm(base64.b64decode(answer.json()["audio"]))
    return pcm(answer.content)


def over_websocket(live: Live, row: Row) -> np.ndarray:
    with talk(live, **{"guard": True, **options(row)}) as t:
        for at in range(0, len(TEXT), 7):
            t.send("input.text", text=TEXT[at : at + 7])
        events, audio = t.say()
    assert events[-1]["type"] == "session.done", events[-1]
    chunks = [e["audio_b64"] for e in events if e["type"] == "audio.chunk"]
    return pcm(audio + b"".join(base64.b64decode(chunk) for chunk in chunks))


def in_python(live: Live, row: Row) -> np.ndarray:
    async def written() -> AsyncIterator[str]:
        for at in range(0, len(TEXT), 7):
            yield TEXT[at : at + 7]

    async def streamed() -> np.ndarray:
        chunks = live.tts.astream(written(), **options(row))
        return np.concatenate([chunk.samples async for chunk in chunks])

    door = row["door"]
    if door == "astream":
        return asyncio.run(streamed())
    if door == "agenerate":
        return asyncio.run(live.tts.agenerate(TEXT, **options(row))).samples
    return np.concatenate([chunk.samples for chunk in live.tts.stream(TEXT, **options(row))])


def spoken(live: Live, row: Row) -> np.ndarray:
    """float32 [n] through the row's door, while other requests run."""
    ways = {"websocket": over_websocket} | dict.fromkeys(GROWING[1:], in_python)
    ways |= dict.fromkeys(("python stream", "agenerate"), in_python)
    others = {**options(row), "response_format": "pcm", "stream": False, "speed": 1.0}
    del others["word_timestamps"]
    with ThreadPoolExecutor(2) as pool:
        beside = [
            pool.submit(live.speech, input=f"{i} more.", **{**others, "seed": 90 + i})
            for i in range(row["beside"])
        ]
        samples = ways.get(row["door"], over_http)(live, row)
        assert all(other.result().status_code == 200 for other in beside)
    return samples


def check(live: Live, row: Row) -> None:
    whole = np.clip(live.tts.generate(TEXT, **options(row)).samples, -1, 1)
    samples = np.clip(spoken(live, row), -1, 1)
    assert len(samples) == len(whole) > 0, (row, len(samples), len(whole))
    streamed = row["door"] not in ("whole", "batch", "agenerate")
    if row["family"] == "cosyvoice3" and streamed:
        return  # its codec hears less of what follows in a stream (docs/models/cosyvoice3.md)
    if row["speed"] == 1.0:  # a stretch may take another of two places that fit as well
        apart = np.abs(samples - whole).max()
        assert apart < 2e-3 * np.abs(whole).max() + 2 / 32767, (row, apart)


@pytest.mark.parametrize("family", FAST)
def test_a_family_says_the_same_through_each_door(
    servers: Callable[[str], Live], family: str
) -> None:
    """One row of each door."""
    doors = {row["door"]: row for row in ROWS if row["family"] == family}
    assert len(doors) == len(FACTORS["door"])
    for row in doors.values():
        check(servers(family), row)


@pytest.mark.slow
@pytest.mark.parametrize("family", FACTORS["family"])
def test_every_pair_of_features_says_the_same(servers: Callable[[str], Live], family: str) -> None:
    for row in ROWS:
        if row["family"] == family:
            check(servers(family), row)


@pytest.mark.slow
@pytest.mark.parametrize("family", FACTORS["family"])
@pytest.mark.parametrize("stream", [True, False])
def test_an_answer_of_more_than_one_codec_call_ends_with_the_guard_on(
    servers: Callable[[str], Live], family: str, stream: bool
) -> None:
    """Its usual length, which is cut where it runs on."""
    live = servers(family)
    voice = {"voice": "mono24"} if family == "pocket_tts" else VOICE.get(family, {})
    answer = live.speech(
        input="Hello there.", seed=3, response_format="pcm", stream=stream, **voice
    )
    assert answer.status_code == 200
    assert len(answer.content) > 0
    assert live.idle()

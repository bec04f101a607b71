"""Everything that speaks a text, as functions of the same options: routes, sockets, Python, commands."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import soundfile

from stentor.cli import main
from tests.helpers.door_talk import Message, WyomingTalk, audio_of, json_talk
from tests.helpers.server_live import Live, pcm
from tests.helpers.ws_talk import talk

PIECE = 7  # characters of a text that is written bit by bit
CUT = 3  # exit code of a command that max_frames has cut
LOAD = ("--dtype", "float32", "--threads", "1")
FLAGS = {"voice": "--voice", "seed": "--seed", "max_frames": "--max-frames", "speed": "--speed"}
Options = Mapping[str, Any]


@dataclass(frozen=True)
class Served:
    """A family's checkpoint, and a server of it in this process."""

    live: Live
    checkpoint: Path

    @property
    def rate(self) -> int:
        return self.live.tts.sample_rate


@dataclass(frozen=True)
class Answer:
    """float32 samples [n], and the seed that the door has reported, where it takes none."""

    samples: np.ndarray
    seed: int | None = None


Door = Callable[[Served, str, Options], Answer]


def pieces(text: str) -> list[str]:
    return [text[at : at + PIECE] for at in range(0, len(text), PIECE)]


# -- our own API --


def whole(served: Served, text: str, options: Options) -> Answer:
    answer = _post(served, text, options, stream=False)
    if options["word_timestamps"]:
        return Answer(pcm(base64.b64decode(answer.json()["audio"])))
    return Answer(pcm(answer.content))


def stream(served: Served, text: str, options: Options) -> Answer:
    return Answer(pcm(_post(served, text, options, stream_format="audio").content))


def sse(served: Served, text: str, options: Options) -> Answer:
    answer = _post(served, text, options, stream_format="sse")
    lines = [line for line in answer.text.splitlines() if line.startswith("data: ")]
    events = [json.loads(line.removeprefix("data: ")) for line in lines]
    assert events[-1]["type"] == "speech.audio.done", events[-1]
    return Answer(pcm(audio_of(events, "audio")))


def _post(served: Served, text: str, options: Options, **more: Any) -> Any:
    answer = served.live.speech(input=text, response_format="pcm", **options, **more)
    assert answer.status_code == 200, answer.text
    return answer


def batch(served: Served, text: str, options: Options) -> Answer:
    item = {"input": text, "response_format": "pcm", **without_words(options)}
    answer = served.live.http.post("/v1/audio/speech/batch", json={"items": [item]})
    (result,) = answer.json()["results"]
    assert result["status"] == "success", result
    return Answer(pcm(base64.b64decode(result["audio"])))


def websocket(served: Served, text: str, options: Options) -> Answer:
    with talk(served.live, **{"guard": True, **options}) as t:
        events, audio = t.say(*pieces(text))
    assert events[-1]["type"] == "session.done", events[-1]
    events = [event for event in events if event["type"] == "audio.chunk"]
    return Answer(pcm(audio + audio_of(events, "audio_b64")))


# -- APIs of others --


def elevenlabs(served: Served, text: str, options: Options) -> Answer:
    return Answer(pcm(_post_elevenlabs(served, "", text, options).content))


def elevenlabs_timed(served: Served, text: str, options: Options) -> Answer:
    answer = _post_elevenlabs(served, "/stream/with-timestamps", text, options)
    lines = [json.loads(line) for line in answer.text.splitlines()]
    alignments = [line["alignment"] for line in lines if line["alignment"]]
    assert "".join(c for one in alignments for c in one["characters"]) == text
    return Answer(pcm(audio_of(lines, "audio_base64")))


def _post_elevenlabs(served: Served, path: str, text: str, options: Options) -> Any:
    voice, query, body = _for_elevenlabs(served, options)
    answer = served.live.http.post(
        f"/v1/text-to-speech/{voice}{path}?{query}", json={"text": text, **body}
    )
    assert answer.status_code == 200, answer.text
    return answer


def _for_elevenlabs(served: Served, options: Options) -> tuple[str, str, dict[str, Any]]:
    """The voice, the query and the fields of a body."""
    ours = dict(without_words(options))
    voice = ours.pop("voice", "default")
    speed = ours.pop("speed")
    return voice, f"output_format=pcm_{served.rate}", {"voice_settings": {"speed": speed}, **ours}


def elevenlabs_socket(served: Served, text: str, options: Options) -> Answer:
    voice, query, body = _for_elevenlabs(served, options)
    seed = body.pop("seed")
    del body["split_granularity"]
    path = f"/v1/text-to-speech/{voice}/stream-input?{query}&seed={seed}"
    with json_talk(served.live, path) as t:
        t.send(text=" ", **body)
        for piece in pieces(text):
            t.send(text=piece)
        t.send(text="")
        code, messages = t.close_code()
    assert code == 1000, messages
    return Answer(pcm(audio_of(messages, "audio")))


def realtime(served: Served, text: str, options: Options) -> Answer:
    output = {"format": {"type": "audio/pcm", "rate": served.rate}, "speed": options["speed"]}
    output |= {name: options[name] for name in ("voice",) if name in options}
    content = [{"type": "input_text", "text": text}]
    item = {"type": "message", "role": "user", "content": content}
    response = {"audio": {"output": output}, "input": [item]}
    with json_talk(served.live, "/v1/realtime?model=gpt-realtime") as t:
        t.send(type="response.create", response=response)
        messages = t.until(lambda message: message["type"] in ("response.done", "error"))
    done = messages[-1]
    assert done["response"]["status"] == "completed", done
    audio = audio_of([m for m in messages if m["type"].endswith("audio.delta")], "delta")
    return Answer(pcm(audio), seed_of(served, done["response"]["request_id"]))


def wyoming(served: Served, text: str, options: Options) -> Answer:
    voice = {"voice": {"name": options["voice"]}} if "voice" in options else {}
    with WyomingTalk(served.live) as t:
        t.send("synthesize", text=text, **voice)
        events = t.until("audio-stop", "error")
    assert events[-1]["type"] == "audio-stop", events[-1]
    audio = b"".join(event["payload"] for event in events if event["type"] == "audio-chunk")
    return Answer(pcm(audio), seed_of(served, events[0]["request_id"]))


def seed_of(served: Served, request_id: str) -> int:
    """The seed of one of the last requests."""
    outcome: Message = served.live.http.get(f"/v1/audio/speech/{request_id}").json()
    seed: int = outcome["seed"]
    return seed


# -- Python --


def python_stream(served: Served, text: str, options: Options) -> Answer:
    chunks = served.live.tts.stream(text, **options)
    return Answer(np.concatenate([chunk.samples for chunk in chunks]))


def agenerate(served: Served, text: str, options: Options) -> Answer:
    return Answer(asyncio.run(served.live.tts.agenerate(text, **options)).samples)


def astream(served: Served, text: str, options: Options) -> Answer:
    async def written() -> AsyncIterator[str]:
        for piece in pieces(text):
            yield piece

    async def joined() -> np.ndarray:
        chunks = served.live.tts.astream(written(), **options)
        return np.concatenate([chunk.samples async for chunk in chunks])

    return Answer(asyncio.run(joined()))


# -- commands --


def say(served: Served, text: str, options: Options) -> Answer:
    with TemporaryDirectory() as folder:
        file = Path(folder) / "out.wav"
        flags = [word for name, flag in FLAGS.items() for word in _flag(flag, options.get(name))]
        split = ("--split", options["split_granularity"])
        model = ("--model", str(served.checkpoint), *LOAD, "--loudness", "off")
        assert main(["say", text, "-o", str(file), *flags, *split, *model]) in (0, CUT)
        return Answer(soundfile.read(file, dtype="int16")[0].astype(np.float32) / 32767)


def _flag(name: str, value: object) -> Sequence[str]:
    return () if value is None else (name, str(value))


def batch_command(served: Served, text: str, options: Options) -> Answer:
    """Another item is spoken with it."""
    with TemporaryDirectory() as folder:
        source = Path(folder) / "in.jsonl"
        output = Path(folder) / "out"
        item = {"id": "item", "text": text, **without_words(options)}
        items = [item, {**item, "id": "other", "text": "One more.", "seed": 90}]
        source.write_text("".join(json.dumps(one) + "\n" for one in items), encoding="utf-8")
        model = ["--model", str(served.checkpoint), *LOAD]
        words = ["--words"] * options["word_timestamps"]
        assert main(["batch", str(source), str(output), *model, *words]) in (0, CUT)
        file = output / "audio" / "item.wav"
        return Answer(soundfile.read(file, dtype="int16")[0].astype(np.float32) / 32767)


def without_words(options: Options) -> Options:
    """The options, for doors that have another field for the times of words, or none."""
    return {name: value for name, value in options.items() if name != "word_timestamps"}


DOORS: Mapping[str, Door] = {
    "whole": whole,
    "stream": stream,
    "sse": sse,
    "websocket": websocket,
    "batch": batch,
    "elevenlabs": elevenlabs,
    "elevenlabs timed": elevenlabs_timed,
    "elevenlabs socket": elevenlabs_socket,
    "realtime": realtime,
    "wyoming": wyoming,
    "python stream": python_stream,
    "agenerate": agenerate,
    "astream": astream,
    "say": say,
    "batch command": batch_command,
}
WHOLE = ("whole", "batch", "elevenlabs", "agenerate", "batch command")
"""Doors that give all of the audio at once."""
LIVE = ("elevenlabs socket", "realtime", "wyoming")
"""Doors that speak text as a WebSocket without options does: live where the model takes it so."""

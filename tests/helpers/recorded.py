"""Recorded requests of other servers' clients, as data, and a replay of them against a running server.

A client is a YAML file in tests/server/clients with the requests that it sends, in their order. Each step says what it
does, what is sent and what must hold of the answer. `$name` stands for a value that a step before has kept, or for one
of the names of `Replay`.
"""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import av
import httpx
import yaml
from websockets.sync.client import connect

from tests.helpers.patience import STUCK_S, until
from tests.helpers.server_live import Live, count, held, raw

FOLDER = Path(__file__).parents[1] / "server" / "clients"
DOES = {"list", "speak", "stream", "cancel", "upload", "state"}
CONTAINERS = {
    "mp3": "mp3",
    "wav": "wav",
    "flac": "flac",
    "opus": "ogg",
    "aac": "aac",
}  # FFmpeg's names
MEDIA = {
    "mp3": "audio/mpeg",
    "wav": "audio/wav",
    "flac": "audio/flac",
    "opus": "audio/ogg",
    "aac": "audio/aac",
}


@dataclass(frozen=True)
class Client:
    """One client: its name and version, how its requests were learnt, what it cannot do, and its requests."""

    id: str
    name: str
    version: str
    source: str
    run: str
    cannot: str
    steps: list[dict[str, Any]]


def clients() -> list[Client]:
    """Every recorded client, by file name."""
    files = sorted(FOLDER.glob("*.yaml"))
    return [Client(id=f.stem, **yaml.safe_load(f.read_text(encoding="utf-8"))) for f in files]


class Replay:
    """The state of one client while its steps are replayed."""

    def __init__(self, live: Live, **names: Any) -> None:
        self.live, self.spec = live, live.tts.spec
        self.names = {"model": live.server.hosts.all[0].name, **names}

    def run(self, step: dict[str, Any]) -> None:
        """Send one step and check the answer. A step that needs what the model lacks is left out."""
        assert step["does"] in DOES, step
        if any(
            bool(getattr(self.spec, name)) != wanted
            for name, wanted in step.get("where", {}).items()
        ):
            return
        if "socket" in step:
            self._talk(step)
        elif step["does"] == "cancel":
            self._cancel(step)
        else:
            self._check(self._send(step), step)

    # -- HTTP --

    def _request(self, step: dict[str, Any]) -> dict[str, Any]:
        method, path = self.filled(step["send"]).split(" ")
        files = {
            k: (v["name"], v["data"], v["type"])
            for k, v in self.filled(step.get("files", {})).items()
        }
        return {
            "method": method,
            "url": path,
            "headers": self.filled(step.get("headers", {})),
            **({"json": self.filled(step["body"])} if "body" in step else {}),
            **({"data": self.filled(step["form"])} if "form" in step else {}),
            **({"files": files} if files else {}),
        }

    def _send(self, step: dict[str, Any]) -> httpx.Response:
        return self.live.http.request(**self._request(step))

    def _cancel(self, step: dict[str, Any]) -> None:
        """Drop the connection: of a stream after its first bytes, else before anything has come."""
        stopped, aborted = (
            self.live.tts.engine.stats.cancelled,
            count(self.live, "speech_stream_aborted_total"),
        )

        def noticed() -> bool:
            return count(self.live, "speech_stream_aborted_total") == aborted + 1

        if step.get("streamed"):
            with (
                held(self.live, frames=[1]),
                httpx.Client(base_url=self.live.url, timeout=STUCK_S) as client,
                client.stream(**self._request(step)) as answer,
            ):
                assert answer.status_code == 200, answer.read()
                assert next(answer.iter_raw())
                answer.close()
                assert until(noticed)
        else:
            with held(self.live, steps=[1]) as engine:
                with raw(self.live, self.filled(step["body"])):
                    engine.wait()
                assert until(noticed)
        assert self.live.idle()
        assert self.live.tts.engine.stats.cancelled == stopped + 1

    def _check(self, answer: httpx.Response, step: dict[str, Any]) -> None:
        holds = self.filled(step.get("holds", {}))
        assert answer.status_code == holds.get("status", 200), answer.text[:500]
        sent = "chunked" if "transfer-encoding" in answer.headers else "whole"
        assert holds.get("sent", sent) == sent
        for name, wanted in holds.get("headers", {}).items():
            assert matches(answer.headers.get(name), wanted), (name, answer.headers)
        ignored = {
            part.split("=")[0].strip() for part in answer.headers.get("x-ignored", "").split(",")
        }
        assert set(holds.get("ignored", [])) <= ignored, answer.headers
        if "audio" in holds:
            check_audio(answer.content, holds["audio"], answer.headers["content-type"])
        if "json" in holds:
            check_json(answer.json(), holds["json"])
        if "events" in holds:
            events = [
                json.loads(line[6:])
                for line in answer.text.splitlines()
                if line.startswith("data: ")
            ]
            assert [kind for kind, _ in groupby(e["type"] for e in events)] == holds["events"]
        for name, path in step.get("keep", {}).items():
            self.names[name] = next(iter(found(answer.json(), path)))

    # -- WebSocket --

    def _talk(self, step: dict[str, Any]) -> None:
        """Send all messages, then read until an event of the type `until`."""
        url = self.live.url.replace("http", "ws") + self.filled(step["send"]).split(" ")[1]
        with connect(
            url, proxy=None, max_size=None, open_timeout=STUCK_S, ping_interval=None
        ) as socket:
            for message in self.filled(step["socket"]):
                socket.send(json.dumps(message))
            heard: list[dict[str, Any] | bytes] = []
            while not heard or isinstance(heard[-1], bytes) or heard[-1]["type"] != step["until"]:
                message = socket.recv(timeout=STUCK_S)
                heard.append(json.loads(message) if isinstance(message, str) else message)
                assert isinstance(heard[-1], bytes) or heard[-1]["type"] != "error", heard[-1]
        holds = self.filled(step.get("holds", {}))
        kinds = [
            kind
            for kind, _ in groupby("audio" if isinstance(m, bytes) else m["type"] for m in heard)
        ]
        assert kinds == holds.get("events", kinds)
        assert set(holds.get("some", [])) <= set(kinds), kinds
        if "audio" in holds:
            check_audio(b"".join(m for m in heard if isinstance(m, bytes)), holds["audio"])
        for kind, wanted in holds.get("fields", {}).items():
            check_json(
                next(m for m in heard if not isinstance(m, bytes) and m["type"] == kind), wanted
            )

    # -- values --

    def filled(self, value: Any) -> Any:
        """The value with names in place of every `$name`."""
        if isinstance(value, dict):
            return {k: self.filled(v) for k, v in value.items()}
        if isinstance(value, list):
            return [self.filled(v) for v in value]
        if isinstance(value, str) and value.startswith("$"):
            return self.names[value[1:]]
        if isinstance(value, str):
            return re.sub(r"\$\{(\w+)\}", lambda m: str(self.names[m[1]]), value)
        return value


def found(value: Any, path: str) -> Iterator[Any]:
    """The values at a path such as `voices.*.id`. KeyError or IndexError where there is none."""
    head, _, rest = path.partition(".")
    if head == "*":
        parts = list(value)
    else:
        parts = [value[int(head)] if isinstance(value, list) else value[head]]
    for part in parts:
        yield from found(part, rest) if rest else [part]


def matches(value: Any, wanted: Any) -> bool:
    """Whether a value is the wanted one. `<str>`, `<int>` and `<number>` stand for any of the type that is not empty."""
    kinds = {"<str>": str, "<int>": int, "<number>": (int, float), "<list>": list}
    if isinstance(wanted, str) and wanted in kinds:
        return isinstance(value, kinds[wanted]) and (value not in ("", []))
    return bool(value == wanted)


def check_json(value: Any, wanted: dict[str, Any]) -> None:
    """Every path has what is wanted. `has: x` asks for one value among them."""
    for path, expected in wanted.items():
        values = list(found(value, path))
        if isinstance(expected, dict):
            assert expected["has"] in values, (path, values)
        else:
            assert values, path
            assert all(matches(v, expected) for v in values), (path, values, expected)


def check_audio(data: bytes, format: str, media: str | None = None) -> None:
    """The bytes are speech in that container, whole enough to be decoded."""
    assert data
    if format == "pcm":
        assert len(data) % 2 == 0
        return
    assert media is None or media.split(";")[0] == MEDIA[format]
    # Of a hundred MP3 files of the toy's noise FFmpeg does not recognise one, though it decodes it.
    with av.open(io.BytesIO(data), format="mp3" if format == "mp3" else None) as file:
        assert CONTAINERS[format] in file.format.name.split(",")
        assert sum(frame.samples for frame in file.decode(audio=0)) > 0

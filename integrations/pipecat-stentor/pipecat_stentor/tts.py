"""A TTS service of Pipecat that speaks through stentor's WebSocket, /v1/audio/speech/stream.

Text is sent as it comes from the language model, audio comes back while it is made, and the times of words with it. A
turn of Pipecat (an audio context) is an utterance of the server, or several where something else is said in between.
"""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass, field
from typing import Any

from loguru import logger
from pipecat.frames.frames import ErrorFrame, Frame, TTSAudioRawFrame, TTSStoppedFrame
from pipecat.processors.frame_processor import FrameProcessorSetup
from pipecat.services.settings import NOT_GIVEN, NotGiven, TTSSettings
from pipecat.services.tts_service import TextAggregationMode, WebsocketTTSService
from websockets.protocol import State

QUIET_SECONDS = (
    30.0  # without audio, until a turn is given up: the server ends each with audio or an error
)
KEEPALIVE_SECONDS = 20.0  # the server closes a session that says nothing for 30 (--ws-idle-seconds)


@dataclass
class StentorTTSSettings(TTSSettings):
    """Settings that may change while a pipeline runs, beside `model`, `voice` and `language`.

    instructions: how to speak. speed: 0.25 to 4.
    """

    instructions: str | NotGiven | None = field(default_factory=lambda: NOT_GIVEN)
    speed: float | NotGiven | None = field(default_factory=lambda: NOT_GIVEN)


@dataclass
class _Turn:
    """An audio context."""

    utterances: int = 0  # of it that the server has not ended
    flushed: bool = False  # no more text comes
    samples: int = 0  # so far


@dataclass
class _Utterance:
    context_id: str
    text: str = ""
    begins: float | None = None  # seconds of its context before its audio


class StentorTTSService(WebsocketTTSService):
    """Speech by a stentor server.

    base_url: ends in /v1. settings: model, voice, language, instructions, speed. Default is the server's first model
    and its own voice. word_timestamps: ask for the times of words; in a language that the server cannot time, they
    are those of sentences. options: any other field of POST /v1/audio/speech, such as `seed`, `temperature` or
    `ref_audio`.
    """

    Settings = StentorTTSSettings
    _settings: StentorTTSSettings

    def __init__(
        self,
        *,
        base_url: str = "http://localhost:8000/v1",
        api_key: str | None = None,
        sample_rate: int | None = None,
        word_timestamps: bool = True,
        options: Mapping[str, Any] | None = None,
        settings: StentorTTSSettings | None = None,
        text_aggregation_mode: TextAggregationMode = TextAggregationMode.TOKEN,
        **kwargs: Any,
    ) -> None:
        chosen = self.Settings(model=None, voice=None, language=None, instructions=None, speed=None)
        if settings is not None:
            chosen.apply_update(settings)
        super().__init__(
            text_aggregation_mode=text_aggregation_mode,  # the server cuts text into sentences, or needs no cuts
            push_text_frames=False,  # words come as they are spoken
            push_start_frame=True,
            pause_frame_processing=True,  # the server speaks one turn after another
            stop_frame_timeout_s=QUIET_SECONDS,
            sample_rate=sample_rate,
            settings=chosen,
            **kwargs,
        )
        self._url = "ws" + base_url.rstrip("/").removeprefix("http") + "/audio/speech/stream"
        self._headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self._fixed = {
            "response_format": "pcm",
            "encoding": "base64",
            "word_timestamps": word_timestamps,
        }
        self._options = dict(options or {})
        self._receive_task: Any = None
        self._forget()

    def _forget(self) -> None:
        """The server knows nothing of us, as on a new connection."""
        self._configured: dict[str, Any] | None = None  # as it was sent
        self._turns: dict[str, _Turn] = {}
        self._writing: _Utterance | None = None
        self._sent: dict[
            int, _Utterance
        ] = {}  # by the number of their first text, until it is acknowledged
        self._utterances: dict[int, _Utterance] = {}  # by the server's index
        self._number = 0

    def can_generate_metrics(self) -> bool:
        return True

    # -- the connection --

    async def setup(self, setup: FrameProcessorSetup) -> None:
        await super().setup(setup)
        await self._connect()

    async def _connect(self) -> None:
        await super()._connect()
        await self._connect_websocket()
        if self._websocket and not self._receive_task:
            self._receive_task = self.create_task(self._receive_task_handler(self._report_error))
            self._create_keepalive_task(KEEPALIVE_SECONDS)

    async def _disconnect(self) -> None:
        await super()._disconnect()
        await self._cancel_keepalive_task()
        if self._receive_task:
            await self.cancel_task(self._receive_task)
            self._receive_task = None
        await self._disconnect_websocket()

    async def _connect_websocket(self) -> None:
        if self._websocket and self._websocket.state is State.OPEN:
            return
        try:
            self._websocket = await self._websocket_connect(
                self._url, additional_headers=self._headers, max_size=None
            )
        except Exception as e:
            self._websocket = None
            await self._report_error(ErrorFrame(f"cannot connect to {self._url}: {e}", exception=e))
            return
        self._forget()
        await self._call_event_handler("on_connected")

    async def _disconnect_websocket(self) -> None:
        await self.stop_all_metrics()
        if self._websocket:
            await self._websocket.close()
            self._websocket = None
            await self._call_event_handler("on_disconnected")

    async def _send(self, type: str, **fields: Any) -> None:
        if self._websocket is None:
            raise ConnectionError("not connected")
        await self._websocket.send(json.dumps({"type": type, **fields}))

    async def _send_keepalive(self) -> None:
        if not self._turns:
            await self._send("input.commit")  # of no text

    # -- text --

    async def run_tts(self, text: str, context_id: str) -> AsyncGenerator[Frame | None, None]:
        """Send text of a turn. Its audio comes by `_receive_messages`."""
        try:
            if not self._websocket or self._websocket.state is State.CLOSED:
                await self._connect()
            await self._write(text, context_id)
            await self.start_tts_usage_metrics(text)
            yield None
        except Exception as e:
            yield ErrorFrame(f"text could not be sent: {e}")
            yield TTSStoppedFrame(context_id=context_id)

    async def _write(self, text: str, context_id: str) -> None:
        number = {}
        if self._writing is None or self._writing.context_id != context_id:
            await self._end_utterance()
            number = {"sequence": await self._begin_utterance(context_id)}
        assert self._writing is not None
        self._writing.text += text
        await self._send("input.text", text=text, **number)

    async def _begin_utterance(self, context_id: str) -> int:
        """Returns the number that its first text is sent with."""
        given = self._settings.given_fields()
        chosen = {
            name: given.get(name)
            for name in ("model", "voice", "language", "instructions", "speed")
        }
        config = {**self._fixed, "sample_rate": self.sample_rate, **self._options}
        config |= {name: value for name, value in chosen.items() if value is not None}
        if config != self._configured:
            await self._send("session.config", **config)
            self._configured = config
        turn = self._turns.setdefault(context_id, _Turn())
        turn.utterances += 1
        self._number += 1
        self._writing = self._sent[self._number] = _Utterance(context_id)
        return self._number

    async def _end_utterance(self) -> None:
        if self._writing is not None:
            self._writing = None
            await self._send("input.done")

    async def flush_audio(self, context_id: str | None = None) -> None:
        """All text of a turn has been sent."""
        turn = self._turns.get(context_id or "")
        if turn is None or context_id is None:
            return
        turn.flushed = True
        if self._writing is not None and self._writing.context_id == context_id:
            await self._end_utterance()
        await self._finish_if_done(context_id)

    async def on_audio_context_interrupted(self, context_id: str) -> None:
        """Have the server stop, unless it also speaks what may not be interrupted."""
        await self.stop_all_metrics()
        if self._writing is not None and self._writing.context_id == context_id:
            await self._end_utterance()
        self._drop(context_id)
        if not self._turns:
            await self._send("response.cancel")
        await super().on_audio_context_interrupted(context_id)

    def _drop(self, context_id: str) -> None:
        self._turns.pop(context_id, None)
        if self._writing is not None and self._writing.context_id == context_id:
            self._writing = None
        for known in (self._sent, self._utterances):
            for key in [
                key for key, utterance in known.items() if utterance.context_id == context_id
            ]:
                del known[key]

    # -- audio --

    async def _receive_messages(self) -> None:
        assert self._websocket is not None
        async for message in self._websocket:
            await self._take(json.loads(message))

    async def _take(self, event: dict[str, Any]) -> None:
        kind = event["type"]
        if kind == "input.ack":
            if (begun := self._sent.pop(event["sequence"], None)) is not None:
                self._utterances[event["utterance_index"]] = begun
        elif kind == "session.configured":
            self._warn_of(event.get("ignored", ()))
        elif kind == "error":
            await self._failed(event)
        elif (utterance := self._utterances.get(event.get("utterance_index", -1))) is not None:
            await self._spoken(kind, event, utterance)

    async def _spoken(self, kind: str, event: dict[str, Any], utterance: _Utterance) -> None:
        """An event of an utterance that is wanted."""
        context_id = utterance.context_id
        if kind == "audio.start" and utterance.begins is None:
            utterance.begins = self._turns[context_id].samples / self.sample_rate
        elif kind == "audio.chunk":
            audio = base64.b64decode(event.get("audio_b64") or event["audio"])
            self._turns[context_id].samples += len(audio) // 2
            frame = TTSAudioRawFrame(audio, self.sample_rate, 1, context_id=context_id)
            await self.append_to_audio_context(context_id, frame)
        elif kind == "audio.done":
            words = event.get("words") or [
                event
            ]  # the piece itself where the times of its words are not known
            begins = utterance.begins or 0.0
            times = [
                (utterance.text[w["start_char"] : w["end_char"]], begins + w["start"])
                for w in words
            ]
            await self.add_word_timestamps(times, context_id)
        elif kind == "input.ignored":
            logger.warning(f"{self}: left out, as the voice cannot speak it: {event['text']!r}")
        elif kind == "session.done":
            del self._utterances[event["utterance_index"]]
            self._turns[context_id].utterances -= 1
            await self._finish_if_done(context_id)

    async def _finish_if_done(self, context_id: str) -> None:
        turn = self._turns[context_id]
        if turn.flushed and not turn.utterances:
            await self._finish(context_id)

    async def _finish(self, context_id: str) -> None:
        self._drop(context_id)
        await self.stop_ttfb_metrics()
        await self.append_to_audio_context(context_id, TTSStoppedFrame(context_id=context_id))
        await self.remove_audio_context(context_id)

    async def _failed(self, event: dict[str, Any]) -> None:
        """An utterance that fails is followed by its session.done. A message that is refused has no other answer."""
        await self.push_error(f"{event['message']} ({event.get('code') or event['status']})")
        if event.get("utterance_index") is None:
            self._configured = None  # it may be what was refused
            for context_id in {utterance.context_id for utterance in self._sent.values()}:
                await self._finish(context_id)

    def _warn_of(self, ignored: Any) -> None:
        """Name the fields that the model has no use for. Where it knows no words, sentences have their times."""
        names = [item["param"] for item in ignored if item["param"] != "word_timestamps"]
        if names:
            logger.warning(f"{self}: not used by the model: {', '.join(names)}")

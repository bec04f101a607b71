"""A TTS of LiveKit that speaks through stentor's WebSocket, /v1/audio/speech/stream.

Text is sent as it comes from the language model, audio comes back while it is made, and the times of words with it.
"""

from __future__ import annotations

import asyncio
import base64
import logging
import weakref
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import aiohttp
from livekit.agents import (
    DEFAULT_API_CONNECT_OPTIONS,
    APIConnectionError,
    APIConnectOptions,
    APIStatusError,
    APITimeoutError,
    tts,
    utils,
)
from livekit.agents.types import TimedString

logger = logging.getLogger("livekit.plugins.stentor")

KEPT_SECONDS = (
    25  # a connection that nobody uses; the server closes it after 30 (--ws-idle-seconds)
)
HEARTBEAT_SECONDS = 10  # between pings, so that a server that has gone is noticed
CLOSE_SECONDS = 1  # to wait for the server's goodbye


class TTS(tts.TTS):
    """Speech by a stentor server.

    base_url: ends in /v1. model, voice: default is the server's first model and its own voice. word_timestamps: ask for
    the times of words; in a language that the server cannot time, they are those of sentences. options: any other field
    of POST /v1/audio/speech, such as `seed`, `temperature` or `ref_audio`.
    """

    def __init__(
        self,
        *,
        base_url: str = "http://localhost:8000/v1",
        api_key: str | None = None,
        model: str | None = None,
        voice: str | None = None,
        language: str | None = None,
        instructions: str | None = None,
        speed: float | None = None,
        sample_rate: int = 24000,
        word_timestamps: bool = True,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(
            capabilities=tts.TTSCapabilities(streaming=True, aligned_transcript=True),
            sample_rate=sample_rate,
            num_channels=1,
        )
        self._url = base_url.rstrip("/") + "/audio/speech/stream"
        self._headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self._config: dict[str, Any] = {
            "response_format": "pcm",
            "encoding": "base64",
            "sample_rate": sample_rate,
            "word_timestamps": word_timestamps,
            **(options or {}),
        }
        self.update_options(
            model=model, voice=voice, language=language, instructions=instructions, speed=speed
        )
        self._session: aiohttp.ClientSession | None = None
        self._streams: weakref.WeakSet[SynthesizeStream] = weakref.WeakSet()
        self._pool = utils.ConnectionPool[aiohttp.ClientWebSocketResponse](
            connect_cb=self._connect,
            close_cb=_close,
            max_session_duration=KEPT_SECONDS,
            mark_refreshed_on_get=True,
        )

    @property
    def model(self) -> str:
        """Name of the model, or "default"."""
        return str(self._config.get("model", "default"))

    @property
    def provider(self) -> str:
        return "stentor"

    def update_options(self, **options: Any) -> None:
        """Change fields of the requests that follow, such as `voice` or `speed`. None leaves one as it is."""
        self._config |= {name: value for name, value in options.items() if value is not None}

    def synthesize(
        self, text: str, *, conn_options: APIConnectOptions = DEFAULT_API_CONNECT_OPTIONS
    ) -> tts.ChunkedStream:
        return self._synthesize_with_stream(text, conn_options=conn_options)

    def stream(
        self, *, conn_options: APIConnectOptions = DEFAULT_API_CONNECT_OPTIONS
    ) -> SynthesizeStream:
        stream = SynthesizeStream(tts=self, conn_options=conn_options)
        self._streams.add(stream)
        return stream

    def prewarm(self) -> None:
        """Connect before there is anything to say."""
        self._pool.prewarm()

    async def aclose(self) -> None:
        for stream in list(self._streams):
            await stream.aclose()
        await self._pool.aclose()
        if self._session is not None:
            await self._session.close()

    async def _connect(self, timeout: float) -> aiohttp.ClientWebSocketResponse:
        if self._session is None:
            self._session = aiohttp.ClientSession()
        limits = aiohttp.ClientWSTimeout(ws_close=CLOSE_SECONDS)
        opening = self._session.ws_connect(
            self._url, headers=self._headers, timeout=limits, heartbeat=HEARTBEAT_SECONDS
        )
        return await asyncio.wait_for(opening, timeout)


async def _close(ws: aiohttp.ClientWebSocketResponse) -> None:
    await ws.close()


class SynthesizeStream(tts.SynthesizeStream):
    """One utterance. Its connection is used again once it has ended, and closed if it is interrupted."""

    def __init__(self, *, tts: TTS, conn_options: APIConnectOptions) -> None:
        super().__init__(tts=tts, conn_options=conn_options)
        self._stentor = tts
        self._config = dict(tts._config)  # as it was when the stream was made

    async def _run(self, output_emitter: tts.AudioEmitter) -> None:
        utterance = _Utterance(output_emitter, utils.shortuuid("TTS_"))
        rate = self._stentor.sample_rate
        output_emitter.initialize(
            request_id=utterance.id,
            sample_rate=rate,
            num_channels=1,
            mime_type="audio/pcm",
            stream=True,
        )
        pool = self._stentor._pool
        try:
            async with pool.connection(timeout=self._conn_options.timeout) as ws:
                self._acquire_time = pool.last_acquire_time
                self._connection_reused = pool.last_connection_reused
                try:
                    await self._speak(ws, utterance)
                except BaseException:
                    await ws.close()  # the pool closes it when the next is asked for. Until then the server would speak
                    raise
        except TimeoutError:
            raise APITimeoutError() from None
        except aiohttp.WSServerHandshakeError as e:
            raise APIStatusError(e.message, status_code=e.status) from None
        except (aiohttp.ClientError, ConnectionError) as e:
            raise APIConnectionError() from e

    async def _speak(self, ws: aiohttp.ClientWebSocketResponse, utterance: _Utterance) -> None:
        await ws.send_json({"type": "session.config", **self._config})
        sending = asyncio.create_task(self._send(ws, utterance))
        try:
            async for message in ws:
                if message.type is aiohttp.WSMsgType.TEXT and utterance.take(message.json()):
                    return
            raise APIConnectionError(f"the server closed the connection ({ws.close_code})")
        finally:
            await utils.aio.cancel_and_wait(sending)

    async def _send(self, ws: aiohttp.ClientWebSocketResponse, utterance: _Utterance) -> None:
        """Send text as it comes. A flush has the server speak what it has."""
        async for data in self._input_ch:
            if isinstance(data, str):
                self._mark_started()
                utterance.text += data
                await ws.send_json({"type": "input.text", "text": data})
            else:
                await ws.send_json({"type": "input.commit"})
        await ws.send_json({"type": "input.done"})


class _Utterance:
    """Turns the server's events into audio and timed text."""

    def __init__(self, emitter: tts.AudioEmitter, id: str) -> None:
        self.emitter, self.id = emitter, id
        self.text = ""  # that was sent
        self._aligned = 0  # characters of it that have times
        self._started = False

    def take(self, event: dict[str, Any]) -> bool:
        """Handle an event. Returns whether it was the last. APIStatusError: the server refused or failed."""
        kind = event["type"]
        if kind == "audio.start" and not self._started:
            self.emitter.start_segment(segment_id=self.id)
            self._started = True
        elif kind == "audio.chunk":
            self.emitter.push(base64.b64decode(event.get("audio_b64") or event["audio"]))
        elif kind == "audio.done":
            self.emitter.push_timed_transcript(list(self._timed(event)))
        elif kind == "input.ignored":
            logger.warning("left out, as the voice cannot speak it: %r", event["text"])
        elif kind == "session.configured":
            _warn_of(item["param"] for item in event.get("ignored", ()))
        elif kind == "error":
            raise APIStatusError(event["message"], status_code=event["status"], body=event)
        return bool(kind == "session.done")

    def _timed(self, piece: dict[str, Any]) -> Iterator[TimedString]:
        """The text of a piece by words, or as a whole where their times are not known. Joined, they are the text."""
        for word in piece.get("words") or [piece]:
            text = self.text[self._aligned : word["end_char"]]
            self._aligned = word["end_char"]
            yield TimedString(text, start_time=word["start"], end_time=word["end"])


def _warn_of(ignored: Iterable[str]) -> None:
    """Name the fields that the model has no use for. Where it knows no words, sentences have their times."""
    names = [name for name in ignored if name != "word_timestamps"]
    if names:
        logger.warning("not used by the model: %s", ", ".join(names))

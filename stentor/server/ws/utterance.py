"""Messages of a session of /v1/audio/speech/stream, and an utterance: text is written to it while
its audio is sent."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field, model_validator

from stentor.output.encode import CONTAINERS
from stentor.server.backpressure import SocketOutbox
from stentor.server.errors import ApiError
from stentor.server.limits import LIMITS
from stentor.server.schemas import Body, Shared
from stentor.server.speech.live_speech import LiveSpeech
from stentor.server.speech.outcomes import timing_as_dict, word_as_dict
from stentor.server.speech.output import RunningRequest, final_report
from stentor.server.speech.plan import SpeechPlan
from stentor.speech.speaking import SpokenSegment
from stentor.speech.timing import SegmentTiming
from stentor.text.sentences import Segment

if TYPE_CHECKING:
    from stentor.server.state import Server


class Configure(Shared):
    """session.config: the parameters of POST /v1/audio/speech other than its text, or an object
    `session` of them."""

    type: Literal["session.config"] = "session.config"
    stream_audio: bool | None = Field(
        None,
        description="false: each segment as one whole file, when it is finished. Default: true for pcm, ulaw and alaw",
    )
    word_timestamps: bool = Field(
        False, description="audio.chunk events as vLLM-Omni has, and words in audio.done"
    )
    encoding: Literal["binary", "base64"] = Field(
        "binary", description="base64: audio.chunk events"
    )

    def streams(self, format: str) -> bool:
        """Whether a segment's audio is sent while it is made. Joined frames of a plain format are a
        file."""
        if self.stream_audio is None:
            return CONTAINERS[format].plain
        return self.stream_audio

    @model_validator(mode="before")
    @classmethod
    def _unfolded(cls, value: Any) -> Any:
        if isinstance(value, dict):
            nested = value.get("session")
        else:
            nested = None
        if not isinstance(nested, dict):
            return value
        return {
            **{k: v for k, v in value.items() if k != "session"},
            **nested,
            "type": "session.config",
        }


class Append(Body):
    """input.text: more text. With a sequence number, it is acknowledged. It may end with half a
    surrogate pair, whose other half begins the next one."""

    type: Literal["input.text"]
    text: str
    sequence: int | None = None


class Commit(Body):
    """input.commit: speak the text so far. The utterance continues."""

    type: Literal["input.commit"]
    commit_id: str | None = Field(
        None, max_length=LIMITS.name_chars, description="input.committed has it again"
    )


class Done(Body):
    """input.done: the utterance's text is complete."""

    type: Literal["input.done"]


class Cancel(Body):
    """response.cancel: stop now. `played_ms`: how much of the utterance the client has played, if
    it knows."""

    type: Literal["response.cancel"]
    played_ms: float | None = Field(None, ge=0)


class Close(Body):
    """session.close: close the connection when everything written has been spoken."""

    type: Literal["session.close"]


Message = Configure | Append | Commit | Done | Cancel | Close
KINDS: Mapping[str, type[Configure | Append | Commit | Done | Cancel | Close]] = {
    "session.config": Configure,
    "input.text": Append,
    "input.commit": Commit,
    "input.done": Done,
    "response.cancel": Cancel,
    "session.close": Close,
}


class MessageSender(SocketOutbox):
    """Events and audio on their way to a client."""

    def event(self, name: str, **body: Any) -> None:
        """Queue an event."""
        self.json({"type": name, **body})

    def error(self, error: ApiError, **more: Any) -> None:
        """Queue an `error` event: OpenAI's envelope, and its fields beside it for vLLM-Omni's and
        nari's clients."""
        detail = error.body["error"]
        flat = {k: v for k, v in detail.items() if k != "type"}
        self.event("error", **flat, status=error.status, error=detail, **more)

    def audio(self, data: bytes) -> None:
        """Queue audio as a binary frame."""
        self.put(data, audio=True)

    def audio_chunk(self, **body: Any) -> None:
        """Queue audio as an event."""
        self.json({"type": "audio.chunk", **body}, audio=True)


class Utterance(LiveSpeech):
    """The text up to an input.done, and the events that its client gets."""

    def __init__(
        self,
        server: Server,
        out: MessageSender,
        plan: SpeechPlan,
        settings: Configure,
        index: int,
        traceparent: str | None = None,
    ) -> None:
        id = f"{plan.id}-{index}"
        how = (settings.split_granularity, settings.cleanup)
        super().__init__(server, plan, id, *how, settings.streams(plan.output.format), traceparent)
        self.out = out
        self.settings = settings
        self.index = index
        self.session_id = plan.id
        # chunks as vLLM-Omni sends them
        self.timed = settings.word_timestamps and plan.output.format == "pcm"
        self.chunks = (0, 0)  # segments so far, and chunks of the last of them

    def segment_begins(self, index: int, segment: Segment) -> None:
        self.out.event(
            "audio.start",
            id=f"{self.plan.id}-{index}",
            utterance_index=self.index,
            sentence_index=index,
            sentence_text=segment.text,
            start_char=segment.start,
            end_char=segment.end,
            format=self.plan.output.format,
            sample_rate=self.plan.output.rate,
            channels=1,
            **self.plan.output.marks.as_json(),
        )

    def audio(self, data: bytes) -> None:
        if self.timed:
            self._send_timed(data)
        elif self.settings.encoding == "base64":
            self.out.audio_chunk(utterance_index=self.index, audio=base64.b64encode(data).decode())
        else:
            self.out.audio(data)

    def _send_timed(self, data: bytes) -> None:
        """A chunk as vLLM-Omni sends it beside word times. They are null: a sentence's come with
        its audio.done."""
        ms = 1000 / (2 * self.plan.output.rate)
        end = self.bytes - self.bytes_before
        if self.chunks[0] == self.segments:
            chunk = self.chunks[1]
        else:
            chunk = 0
        self.out.audio_chunk(
            utterance_index=self.index,
            sentence_index=self.segments - 1,
            chunk_id=chunk,
            chunk_start_ms=round((end - len(data)) * ms),
            chunk_end_ms=round(end * ms),
            sample_rate=self.plan.output.rate,
            channels=1,
            audio_b64=base64.b64encode(data).decode(),
            timestamps=None,
        )
        self.chunks = self.segments, chunk + 1

    def segment_ends(self, index: int, times: SegmentTiming, current: SpokenSegment) -> None:
        if current.unspoken:
            self.out.event(
                "input.ignored",
                utterance_index=self.index,
                sentence_index=index,
                **timing_as_dict(times),
            )
        self.out.event(
            "audio.done",
            id=f"{self.plan.id}-{index}",
            utterance_index=self.index,
            sentence_index=index,
            total_bytes=self.bytes - self.bytes_before,
            start=round(times.start, 4),
            end=round(times.end, 4),
            start_char=times.start_char,
            end_char=times.end_char,
            finish_reason=current.finish,
            error=False,
            **({"words": [word_as_dict(w) for w in times.words]} if self.plan.words else {}),
        )

    def failure(self, error: ApiError) -> None:
        action = {
            "partial_audio": self.bytes > 0,
            "action": "discard",
            "utterance_index": self.index,
        }
        self.out.error(error, **action)

    def end(self, running: RunningRequest | None) -> None:
        if running is not None:
            self._done(total_bytes=self.bytes, **final_report(running, "json"))
        else:
            self._done(**({"finish_reason": "error"} if self.failed else {}))

    def _done(self, **body: Any) -> None:
        ids = {
            "session_id": self.session_id,
            "request_id": self.plan.id,
            "total_sentences": self.segments,
        }
        self.out.event("session.done", utterance_index=self.index, **{**ids, **body})

    def played_seconds(self, played_ms: float | None) -> float:
        """How much a client has played: `played_ms` as it reports, else as if it plays at once."""
        if self.running is None:
            return 0.0
        playback = self.running.playback
        if played_ms is None:
            return playback.played_seconds
        return min(playback.sent, played_ms / 1000)

    async def played_report(self, seconds: float) -> dict[str, Any]:
        """How much of the audio and of its text a client had played after `seconds`."""
        body: dict[str, Any] = {"utterance_index": self.index, "request_id": self.plan.id}
        if self.running is None:
            return {**body, "heard_ms": 0, "spoken_ms": 0, "text_index": 0, "heard_text": ""}
        playback = self.running.playback
        index = await self.played(seconds)
        return {
            **body,
            "heard_ms": round(seconds * 1000),
            "spoken_ms": round(playback.sent * 1000),
            "text_index": index,
            "heard_text": self.feed.text[:index],
        }

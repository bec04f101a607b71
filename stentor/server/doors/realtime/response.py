"""One response of a Realtime session, and the events that its client gets."""

from __future__ import annotations

import base64
from collections.abc import Callable
from typing import Any

from stentor.server.doors.realtime.conversation import Item, new_id
from stentor.server.doors.realtime.settings import Settings
from stentor.server.errors import ApiError
from stentor.server.speech.live_speech import LiveSpeech
from stentor.server.speech.output import RunningRequest
from stentor.server.speech.plan import SpeechPlan
from stentor.server.state import Server
from stentor.speech.speaking import SpokenSegment
from stentor.speech.timing import SegmentTiming
from stentor.text.sentences import Segment

Send = Callable[..., None]
"""send(type, audio=..., **fields) queues an event."""


class SpokenResponse(LiveSpeech):
    """A text that is spoken as one assistant message. Events are those of the API, or of its beta."""

    def __init__(
        self,
        server: Server,
        plan: SpeechPlan,
        id: str,
        send: Send,
        settings: Settings,
        beta: bool,
        conversation: str | None,
        metadata: dict[str, Any] | None,
        traceparent: str | None,
    ) -> None:
        """id: of the request, by which its outcome is found. conversation: to which its item belongs."""
        super().__init__(server, plan, id, traceparent=traceparent)
        self.id = new_id("resp")
        self.item = Item(new_id("item"), "assistant", "", spoken=True, status="in_progress", response=self)
        self.send, self.settings, self.beta = send, settings, beta
        self.conversation, self.metadata = conversation, metadata
        self.error: ApiError | None = None
        self.done = False
        self._told = 0  # characters of the text in the transcript

    def begin(self, text: str, before: str | None) -> None:
        """Tell the client of it, and give it its text. before: the id of the item before its own."""
        self.send("response.created", response=self._as_dict("in_progress"))
        self.send("response.output_item.added", **self._ids(item=None), item=self.item.as_dict(self.beta))
        if self.conversation is not None:
            name = "conversation.item.created" if self.beta else "conversation.item.added"
            self.send(name, previous_item_id=before, item=self.item.as_dict(self.beta))
        self.send("response.content_part.added", **self._ids(), part={"type": "audio", "transcript": ""})
        self.feed.end(text)

    # -- speech --

    def segment_begins(self, index: int, segment: Segment) -> None:
        self._transcribe(segment.end)

    def audio(self, data: bytes) -> None:
        delta = base64.b64encode(data).decode()
        self.send(self._named("audio.delta"), audio=True, **self._ids(), delta=delta)

    def segment_ends(self, index: int, times: SegmentTiming, current: SpokenSegment) -> None:
        return

    def failure(self, error: ApiError) -> None:
        self.error = error

    def end(self, running: RunningRequest | None) -> None:
        if self.error is None:
            self._transcribe(len(self.feed.text))
        self.finish("completed" if self.error is None else "failed")

    def finish(self, status: str) -> None:
        """Tell the client that it has ended: completed, cancelled or failed."""
        self.done = True
        self.item.status = "completed" if status == "completed" else "incomplete"
        part = {"type": "audio", "transcript": self.item.text}
        self.send(self._named("audio.done"), **self._ids())
        self.send(self._named("audio_transcript.done"), **self._ids(), transcript=self.item.text)
        self.send("response.content_part.done", **self._ids(), part=part)
        self.send("response.output_item.done", **self._ids(item=None), item=self.item.as_dict(self.beta))
        if self.conversation is not None and not self.beta:
            self.send("conversation.item.done", previous_item_id=None, item=self.item.as_dict(self.beta))
        self.send("response.done", response=self._as_dict(status))

    async def truncate(self, ms: int) -> None:
        """Keep of the transcript what was heard within so many milliseconds of the audio."""
        self.item.text = self.feed.text[: await self.played(ms / 1000)]
        self.item.status = "incomplete"

    @property
    def sent_ms(self) -> float:
        """How much audio there is so far."""
        return 0.0 if self.running is None else 1000 * self.running.playback.sent

    # -- events --

    def _transcribe(self, end: int) -> None:
        delta = self.feed.text[self._told : end]
        if not delta:
            return
        self._told = end
        self.item.text += delta
        self.send(self._named("audio_transcript.delta"), **self._ids(), delta=delta)

    def _named(self, name: str) -> str:
        return f"response.{name}" if self.beta else f"response.output_{name}"

    def _ids(self, **less: None) -> dict[str, Any]:
        ids = {"response_id": self.id, "output_index": 0}
        return ids if less else {**ids, "item_id": self.item.id, "content_index": 0}

    def _as_dict(self, status: str) -> dict[str, Any]:
        known: dict[str, Any] = {
            "id": self.id,
            "object": "realtime.response",
            "status": status,
            "status_details": self._details(status),
            "output": [] if status == "in_progress" else [self.item.as_dict(self.beta)],
            "conversation_id": self.conversation,
            "metadata": self.metadata,
            "usage": None if self.running is None else _usage(self.running),
            "request_id": self.plan.id,
            **self.plan.output.marks.as_json(),
            **self.plan.ignored.as_json(),
        }
        if self.beta:
            return {**known, "modalities": ["audio", "text"], "voice": self.settings.voice}
        return {**known, "output_modalities": ["audio"], "audio": self.settings.response_audio()}

    def _details(self, status: str) -> dict[str, Any] | None:
        if status == "failed" and self.error is not None:
            detail = self.error.body["error"]
            return {"type": status, "error": {name: detail[name] for name in ("type", "code", "message")}}
        return {"type": status, "reason": "client_cancelled"} if status == "cancelled" else None


def _usage(running: RunningRequest) -> dict[str, Any]:
    """Usage with the details that Realtime has of output."""
    usage = running.run.usage.as_dict()
    return {**usage, "output_token_details": {"text_tokens": 0, "audio_tokens": usage["output_tokens"]}}

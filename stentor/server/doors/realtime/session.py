"""WS /v1/realtime: OpenAI's Realtime API for speech from text. `response.create` speaks the text of
the messages that have not been spoken."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, MutableMapping
from typing import Any

from fastapi import APIRouter, WebSocket

from stentor.server.doors.realtime.response import (
    Conversation,
    Given,
    GivenResponse,
    Settings,
    SpokenResponse,
    an_object,
    item_of,
    new_id,
    unsupported,
)
from stentor.server.errors import ApiError, clipped, invalid, validated
from stentor.server.limits import LIMITS
from stentor.server.schemas import Ignored
from stentor.server.sessions import CloseSession, SocketSession, check_size, read_json, serve
from stentor.server.speech.plan import NO_WORD_TIMES, SpeechPlan
from stentor.server.state import Server

router = APIRouter()

ELSEWHERE = ("input_audio_buffer.", "output_audio_buffer.", "transcription_session.")
"""Events of what OpenAI's sessions do and these do not. They are refused, however many a client
sends."""
KINDS = (
    "session.update",
    "conversation.item.create",
    "conversation.item.retrieve",
    "conversation.item.delete",
    "conversation.item.truncate",
    "response.create",
    "response.cancel",
)


@router.websocket("/v1/realtime")
async def realtime(ws: WebSocket) -> None:
    """A session that speaks text."""
    await serve(ws, RealtimeSession)


class RealtimeSession(SocketSession):
    """One conversation. It speaks one response at a time."""

    def __init__(self, ws: WebSocket, server: Server) -> None:
        super().__init__(ws, server)
        offered = ws.scope.get("subprotocols", ())
        if "realtime" in offered:
            self.subprotocol = "realtime"
        else:
            self.subprotocol = None
        self.beta = (
            "realtime=v1" in ws.headers.get("openai-beta", "")
            or "openai-beta.realtime-v1" in offered
        )
        self.settings = Settings(
            ws.query_params.get("model") or None,
            apply_instructions=server.config.realtime_instructions,
        )
        # for the settings that were asked for last
        self.plan: tuple[Settings, SpeechPlan] | None = None
        self.conversation = Conversation()
        self.active: tuple[SpokenResponse, asyncio.Task[None]] | None = None
        self.event_id: str | None = None  # of the event that is being handled
        self.count = 0

    @property
    def busy(self) -> bool:
        return self.active is not None

    async def open(self) -> None:
        await super().open()
        try:
            host = self.server.hosts.named(self.settings.model)
        except ApiError as e:
            self.stop(CloseSession(1008, e))
            return
        self.send("session.created", session=self._session(host.name))

    def send(self, kind: str, audio: bool = False, **body: Any) -> None:
        """Queue an event."""
        self.out.json({"type": kind, "event_id": new_id("event"), **body}, audio)

    def report(self, error: ApiError) -> None:
        self.send("error", error={**error.body["error"], "event_id": self.event_id})

    def _session(self, model: str) -> dict[str, Any]:
        return self.settings.session(self.id, model, self.beta)

    # -- from the client --

    async def handle(self, message: MutableMapping[str, Any]) -> None:
        self.event_id = None
        value = read_json(message)
        check_size(message, "the event")
        if not isinstance(value, dict):
            raise ApiError(400, "events must be JSON objects", code="invalid_message")
        kind = value.get("type")
        id = value.get("event_id")
        if isinstance(id, str):
            self.event_id = clipped(id, LIMITS.param_chars)
        else:
            self.event_id = None
        if isinstance(kind, str) and kind.startswith(ELSEWHERE):
            self.report(unsupported(kind, "type"))
            return
        match kind:
            case "session.update":
                await self._update(value)
            case "conversation.item.create":
                self._create_item(value)
            case "conversation.item.retrieve":
                item = self.conversation.find(value.get("item_id"))
                self.send("conversation.item.retrieved", item=item.as_dict(self.beta))
            case "conversation.item.delete":
                item = self.conversation.find(value.get("item_id"))
                self.conversation.items.remove(item)
                self.send("conversation.item.deleted", item_id=item.id)
            case "conversation.item.truncate":
                await self._truncate(value)
            case "response.create":
                await self._respond(value.get("response") or {})
            case "response.cancel":
                await self._cancel(value.get("response_id"))
            case _:
                raise invalid("type", f"must be one of {', '.join(KINDS)}", "invalid_message")

    async def _update(self, value: Mapping[str, Any]) -> None:
        ignored = Ignored(self.config.strict)
        settings = self.settings.updated(
            validated(Given, an_object(value.get("session"), "session")), ignored
        )
        plan = await self._plan(settings)
        self.settings = settings
        self.send("session.updated", session={**self._session(plan.host.name), **ignored.as_json()})

    def _create_item(self, value: Mapping[str, Any]) -> None:
        item = item_of(value.get("item"))
        self.check_length(item.text)
        after = value.get("previous_item_id")
        before = self.conversation.add(item, after)
        for name in ("created",) if self.beta else ("added", "done"):
            self.send(
                f"conversation.item.{name}", previous_item_id=before, item=item.as_dict(self.beta)
            )

    async def _truncate(self, value: Mapping[str, Any]) -> None:
        item = self.conversation.find(value.get("item_id"))
        ms = value.get("audio_end_ms")
        response = item.response
        if response is None:
            raise invalid("item_id", "is no message that was spoken")
        if value.get("content_index", 0) != 0:
            raise invalid("content_index", "must be 0")
        if not isinstance(ms, int) or isinstance(ms, bool) or not 0 <= ms <= response.sent_ms + 1:
            raise invalid(
                "audio_end_ms",
                f"must be a whole number from 0 to {response.sent_ms:.0f}, the audio's length",
            )
        await response.truncate(ms)
        self.send(
            "conversation.item.truncated",
            item_id=item.id,
            content_index=0,
            audio_end_ms=ms,
            transcript=item.text,
        )

    # -- responses --

    async def _respond(self, value: Any) -> None:
        if self.active is not None:
            message = "a response is being spoken: wait for response.done, or cancel it"
            raise ApiError(409, message, code="conversation_already_has_active_response")
        fields = validated(GivenResponse, an_object(value, "response"))
        ignored = Ignored(self.config.strict)
        inside = fields.conversation == "auto"
        settings = self.settings.updated(fields, ignored)
        if fields.input is None:
            texts = None
        else:
            texts = self._inputs(fields.input)
        plan = await self._plan(settings)
        if texts is None:
            text = self.conversation.take_unspoken()
        else:
            text = "\n".join(texts)
        self.check_length(text)
        if not text.strip():
            raise ApiError(
                400, "there is no text to speak: create an item with some first", code="no_text"
            )
        id = f"{self.id}-{self.count}"
        self.count += 1
        if inside:
            belongs = self.conversation.id
        else:
            belongs = None
        response = SpokenResponse(
            self.server,
            plan,
            id,
            self.send,
            settings,
            self.beta,
            belongs,
            fields.metadata,
            self.traceparent,
        )
        response.plan.ignored.extend(ignored)
        if inside:
            before = self.conversation.add(response.item)
        else:
            before = None
        await response.begin(text, before)
        task = self.begin(response.speak())
        self.active = response, task
        task.add_done_callback(self._response_ended)

    def _response_ended(self, task: asyncio.Task[None]) -> None:
        if self.active is not None and self.active[1] is task:
            self.active = None

    def _inputs(self, items: list[Any]) -> list[str]:
        """The texts of `input`: messages, or references to items of the conversation."""
        texts = []
        for value in items:
            if isinstance(value, Mapping) and value.get("type") == "item_reference":
                item = self.conversation.find(value.get("id"), "response.input")
            else:
                item = item_of(value, "response.input")
            texts.append(item.text)
        return texts

    async def _cancel(self, id: Any) -> None:
        if self.active is None or (id is not None and id != self.active[0].id):
            raise ApiError(
                400,
                "no such response is being spoken",
                param="response_id",
                code="response_cancel_not_active",
            )
        response, task = self.active
        task.cancel()
        await asyncio.wait([task])
        self.active = None
        if not response.done:
            self.out.drop_audio()
            response.finish("cancelled")

    async def _plan(self, wanted: Settings) -> SpeechPlan:
        """The plan for these settings. It may wait for a model."""
        if self.plan is None or self.plan[0] != wanted:
            body = wanted.body()
            words = self.server.planner.word_times(body)
            plan = await self.planned(body, words if words.available else NO_WORD_TIMES)
            self.plan = wanted, plan
        return self.plan[1]

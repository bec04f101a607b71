"""Speech over HTTP: one text, a batch of texts, and the outcomes of recent requests."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Awaitable
from dataclasses import replace
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Path, Query, Request
from pydantic import ValidationError
from starlette.responses import PlainTextResponse, Response
from starlette.types import Receive, Scope, Send

from stentor.output.encode import CONTAINERS
from stentor.server.backpressure import Disconnected, run_while_connected
from stentor.server.errors import ApiError, failures, from_pydantic, translate
from stentor.server.http.json_body import BodyRoute
from stentor.server.http.responses import NoResponse, SpeechResponse
from stentor.server.ignored import Ignored
from stentor.server.json_sse import json_response
from stentor.server.limits import LIMITS
from stentor.server.schemas import BatchBody, BatchItem, SpeechBody, WrongItem
from stentor.server.speech.outcomes import Outcome, Timing
from stentor.server.speech.output import RunningRequest
from stentor.server.speech.plan import SpeechPlan
from stentor.server.state import Server, server
from stentor.speech.timing import srt, vtt

router = APIRouter(route_class=BodyRoute)

BINARY = {"schema": {"type": "string", "format": "binary"}}


SPEECH_RESPONSES: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "Audio; server-sent events with stream_format=sse; JSON with timestamps",
        "content": {
            **{c.media_type: BINARY for c in CONTAINERS.values()},
            "text/event-stream": {"schema": {"type": "string"}},
            "application/json": {"schema": {"type": "object"}},
        },
    },
    **failures(400, 401, 404, 413, 415, 429, 500, 503, 504),
}


@router.post("/v1/audio/speech", response_class=Response, responses=SPEECH_RESPONSES, tags=["speech"])
async def speech(request: Request, body: SpeechBody) -> Response:
    """Speak a text. The file's bytes are sent while it is made, those of wav and flac where `stream` asks for it.
    `stream_format` sse, or Accept: text/event-stream, sends events. `stream` false sends the whole file."""
    s, timing = server(request), Timing()
    timed = body.timestamps != "none" or s.planner.times_words(body)
    sized = CONTAINERS[body.response_format or s.config.default_response_format].sized
    delivery = _delivery(body, request.headers.get("accept", ""), whole=sized or timed, timed=timed)
    planned = s.planner.speech(body, request.state.request_id, delivery != "whole")
    watched = run_while_connected(planned, request.receive, s.config.request_timeout, s.ended)
    try:  # it may wait for a model or a reference
        plan = await plan_or_reject(s, watched)
    except Disconnected:
        return NoResponse()
    request.state.body.release()  # the plan holds what it needs, decoded
    running = RunningRequest(s, plan, timing, request.headers.get("traceparent"))
    return SpeechResponse(running, delivery == "sse", body.timestamps)


def _delivery(body: SpeechBody, accept: str, whole: bool, timed: bool) -> Literal["whole", "audio", "sse"]:
    """How an answer is sent: the whole file, its bytes while it is made, or events. A field decides over the header.
    whole: it is sent so if nothing else is asked for. timed: it has times, which a stream of bytes cannot hold."""
    if body.stream_format == "sse":
        return "sse"
    if body.stream is False:
        return "whole"
    if body.stream_format is None and (_accepts_events(accept) or (body.stream and timed)):
        return "sse"
    if body.stream or body.stream_format == "audio":
        return "audio"
    return "whole" if whole else "audio"


def _accepts_events(accept: str) -> bool:
    """Whether an Accept header names server-sent events."""
    return any(part.partition(";")[0].strip().lower() == "text/event-stream" for part in accept.split(","))


async def plan_or_reject(s: Server, planned: Awaitable[SpeechPlan]) -> SpeechPlan:
    """Await a plan. A refusal is counted and raised as an ApiError. Disconnected: there is nobody to refuse."""
    try:
        return await planned
    except Disconnected:
        raise
    except Exception as e:
        error = translate(e)
        s.metrics.count_refusal(error)
        raise error from e


BATCH_RESPONSES: dict[int | str, dict[str, Any]] = {
    200: {"content": {"application/json": {"schema": {"type": "object"}}}},
    **failures(400, 401, 404, 413, 415, 429, 500, 503, 504),
}


@router.post("/v1/audio/speech/batch", response_class=Response, responses=BATCH_RESPONSES, tags=["speech"])
async def batch(request: Request, body: BatchBody) -> Response:
    """Speak up to 32 texts together. Each item has its own status. One that fails does not affect the others."""
    _merged(body, "any")  # what is wrong with the shared parameters is wrong for all
    return BatchResponse(server(request), body, request.state.request_id, request.headers.get("traceparent"))


class BatchResponse(Response):
    """All items run together. They are all cancelled when the client disconnects."""

    def __init__(self, s: Server, body: BatchBody, id: str, traceparent: str | None) -> None:
        self.server, self.body_, self.id, self.traceparent = s, body, id, traceparent
        self.spoken: list[RunningRequest] = []
        self.background = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        results: list[dict[str, Any]] = []

        async def work() -> None:
            jobs = (self._item(i, item) for i, item in enumerate(self.body_.items))
            results.extend(await asyncio.gather(*jobs))

        try:
            await run_while_connected(work(), receive, self.server.config.request_timeout, self.server.ended)
        except Disconnected:
            return
        except Exception as e:
            raise translate(e) from e
        good = sum(r["status"] == "success" for r in results)
        summary = {
            "object": "audio.speech.batch",
            "id": self.id,
            "total": len(results),
            "succeeded": good,
            "failed": len(results) - good,
            "results": results,
        }
        await json_response(summary)(scope, receive, send)
        for running in self.spoken:
            running.left()

    async def _item(self, index: int, item: BatchItem | str | WrongItem) -> dict[str, Any]:
        s, timing, id = self.server, Timing(), f"{self.id}-{index}"
        try:
            if isinstance(item, WrongItem):
                raise from_pydantic(item.error, "items", index)
            merged = _merged(self.body_, item)
            plan = await plan_or_reject(s, s.planner.text(merged, id, merged.split_granularity, False))
            _name_streams(merged, plan.ignored)
        except ApiError as e:
            return {"index": index, "id": id, "status": "error", **_of_item(e, index, item).body}
        running = RunningRequest(s, plan, timing, self.traceparent)
        try:
            data = b"".join([part async for part in running.bytes(whole=True)])
        except BaseException as e:
            error = running.failed(e)
            if error is None:
                raise
            return {"index": index, "id": id, "status": "error", **_of_item(error, index, item).body}
        running.completed()
        self.spoken.append(running)
        audio = base64.b64encode(data).decode()
        return {
            "index": index,
            "id": id,
            "status": "success",
            "audio": audio,
            "audio_data": audio,  # as vLLM-Omni and SGLang-Omni call it
            "response_format": plan.output.format,
            "format": plan.output.format,
            "media_type": CONTAINERS[plan.output.format].media_type,
            "sample_rate": plan.output.rate,
            "duration": round(running.run.duration, 4),
            "finish_reason": running.run.finish,
            "seed": running.run.seed,
            "usage": running.run.usage.as_dict(),
            "error": None,
            **plan.output.marks.as_json(),
            **plan.ignored.as_json(),
        }


def _name_streams(body: SpeechBody, ignored: Ignored) -> None:
    """A batch answers with whole files."""
    for name in ("stream", "stream_format", "word_timestamps"):
        if getattr(body, name):
            ignored.field(name, "a batch answers with whole files")
    if body.timestamps != "none":
        ignored.field("timestamps", "a batch has none")


def _merged(batch: BatchBody, item: BatchItem | str) -> SpeechBody:
    """The batch's parameters with the item's over them. ApiError names the field that is wrong."""
    shared = batch.model_dump(exclude_unset=True, exclude={"items"})
    own = {"input": item} if isinstance(item, str) else item.model_dump(exclude_unset=True)
    own = {k: v for k, v in own.items() if v is not None}
    try:
        return SpeechBody.model_validate({**shared, **own})
    except ValidationError as e:
        raise from_pydantic(e) from None


def _of_item(error: ApiError, index: int, item: BatchItem | str | WrongItem) -> ApiError:
    """The error of an item. A field that the item has itself is named `items.N.field`."""
    field = error.param
    own = {"input", *(item.model_fields_set if isinstance(item, BatchItem) else ())}  # no batch has an input
    if field is None or field.partition(".")[0] not in own:
        return error
    named = f"items.{index}.{field}"
    message = error.message.removeprefix(f"{field}: ")
    retry_after = error.retry_after
    return ApiError(error.status, f"{named}: {message}", param=named, code=error.code, retry_after=retry_after)


Id = Annotated[str, Path(max_length=LIMITS.name_chars)]


@router.get("/v1/audio/speech/{request_id}", responses={**failures(400, 401, 404)}, tags=["speech"])
async def outcome(request: Request, request_id: Id) -> dict[str, Any]:
    """Outcome of one of the last 1024 requests: status, finish reason, usage, seed, sentence times."""
    return (await _outcome(request, request_id)).as_dict()


async def _outcome(request: Request, id: str) -> Outcome:
    """The outcome of a request that any process of the server has served. ApiError 404 if none has."""
    s = server(request)
    found = await s.outcomes.find(id) or await s.others.outcome(id)
    if found is None:
        raise ApiError(404, f"no recent request has the id {id[:80]!r}", param="request_id")
    return found


@router.get(
    "/v1/audio/speech/{request_id}/timestamps",
    response_class=Response,
    responses={
        200: {"content": {"application/x-subrip": {}, "text/vtt": {}, "application/json": {}}},
        **failures(400, 401, 404, 409),
    },
    tags=["speech"],
)
async def timestamps(
    request: Request,
    request_id: Id,
    format: Annotated[Literal["srt", "vtt", "json"], Query()] = "srt",
    words: Annotated[bool, Query(description="false: subtitles of sentences only")] = True,
) -> Response:
    """Times of a finished request, as subtitles: of words where it asked for them, else of sentences."""
    found = await _outcome(request, request_id)
    if found.status == "running":
        raise ApiError(409, "the request is still running", param="request_id")
    segments = found.segments if words else [replace(s, words=()) for s in found.segments]
    if format == "json":
        known = found.as_dict()
        return json_response({name: known[name] for name in ("segments", "words") if name in known})
    if format == "vtt":
        return PlainTextResponse(vtt(segments), media_type="text/vtt")
    return PlainTextResponse(srt(segments), media_type="application/x-subrip")

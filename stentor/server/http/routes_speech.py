"""Speech over HTTP: one text, a batch of texts, and the outcomes of recent requests."""

from __future__ import annotations

import asyncio
import base64
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Path, Query, Request
from starlette.background import BackgroundTask
from starlette.responses import PlainTextResponse, Response

from stentor.output.encode import CONTAINERS
from stentor.server.backpressure import Disconnected, run_while_connected
from stentor.server.errors import ApiError, failures, from_pydantic, translate, validated
from stentor.server.http.bodies import BodyRoute
from stentor.server.http.responses import NoResponse, SpeechResponse, begun, plan_or_reject
from stentor.server.limits import LIMITS
from stentor.server.schemas import BatchBody, BatchItem, Ignored, SpeechBody, WrongItem
from stentor.server.speech.outcomes import Outcome, Timing
from stentor.server.speech.output import RunningRequest
from stentor.server.state import server
from stentor.server.wire_json import json_response
from stentor.speech.subtitles import FORMATS as SUBTITLES
from stentor.speech.subtitles import MEDIA_TYPES

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


@router.post(
    "/v1/audio/speech", response_class=Response, responses=SPEECH_RESPONSES, tags=["speech"]
)
async def speech(request: Request, body: SpeechBody) -> Response:
    """Speak a text. The file's bytes are sent while it is made, those of wav and flac only with
    `stream`. `stream_format` sse, or Accept: text/event-stream, sends events. `stream` false sends
    the whole file."""
    s = server(request)
    words = s.planner.word_times(body, body.word_timestamps, body.timestamps in SUBTITLES)
    timed = body.timestamps != "none" or words.available
    sized = CONTAINERS[body.response_format or s.config.default_response_format].sized
    delivery = _delivery(body, request.headers.get("accept", ""), whole=sized or timed, timed=timed)
    planned = s.planner.speech(body, request.state.request_id, delivery != "whole", words)
    running = await begun(request, planned)
    if running is None:
        return NoResponse()
    return SpeechResponse(running, delivery == "sse", body.timestamps)


def _delivery(
    body: SpeechBody, accept: str, whole: bool, timed: bool
) -> Literal["whole", "audio", "sse"]:
    """How an answer is sent: the whole file, its bytes while it is made, or events. A field decides
    over the header. whole: the default. timed: it has times, which a
    stream of bytes cannot hold."""
    if body.stream_format == "sse":
        return "sse"
    if body.stream is False:
        return "whole"
    accepted = [part.partition(";")[0].strip().lower() for part in accept.split(",")]
    if body.stream_format is None and ("text/event-stream" in accepted or (body.stream and timed)):
        return "sse"
    if body.stream or body.stream_format == "audio":
        return "audio"
    if whole:
        return "whole"
    return "audio"


BATCH_RESPONSES: dict[int | str, dict[str, Any]] = {
    200: {"content": {"application/json": {"schema": {"type": "object"}}}},
    **failures(400, 401, 404, 413, 415, 429, 500, 503, 504),
}


@router.post(
    "/v1/audio/speech/batch", response_class=Response, responses=BATCH_RESPONSES, tags=["speech"]
)
async def batch(request: Request, body: BatchBody) -> Response:
    """Speak up to 32 texts together. Each item has its own status. One that fails does not affect
    the others."""
    _merged(body, "any")  # what is wrong with the shared parameters is wrong for all
    s = server(request)
    spoken = list[RunningRequest]()
    jobs = (_item(request, body, i, item, spoken) for i, item in enumerate(body.items))

    async def work() -> list[dict[str, Any]]:
        return await asyncio.gather(*jobs)

    async def left() -> None:
        for running in spoken:
            running.left()

    try:  # all are cancelled when the client disconnects
        results = await run_while_connected(
            work(), request.receive, s.config.request_timeout, s.ended
        )
    except Disconnected:
        return NoResponse()
    except Exception as e:
        raise translate(e) from e
    good = sum(r["status"] == "success" for r in results)
    summary = {
        "object": "audio.speech.batch",
        "id": request.state.request_id,
        "total": len(results),
        "succeeded": good,
        "failed": len(results) - good,
        "results": results,
    }
    response = json_response(summary)
    response.background = BackgroundTask(left)
    return response


async def _item(
    request: Request,
    batch: BatchBody,
    index: int,
    item: BatchItem | str | WrongItem,
    spoken: list[RunningRequest],
) -> dict[str, Any]:
    """The result of an item, whose request is added to those that were spoken."""
    s = server(request)
    timing = Timing()
    id = f"{request.state.request_id}-{index}"
    try:
        if isinstance(item, WrongItem):
            raise from_pydantic(item.error, "items", index)
        merged = _merged(batch, item)
        plan = await plan_or_reject(s, s.planner.text(merged, id, merged.split_granularity, False))
        _name_streams(merged, plan.ignored)
        running = RunningRequest(s, plan, timing, request.headers.get("traceparent"))
        try:
            data = b"".join([part async for part in running.bytes(whole=True)])
        except BaseException as e:
            if (error := running.failed(e)) is None:
                raise
            raise error from e
    except ApiError as e:
        return {"index": index, "id": id, "status": "error", **_of_item(e, index, item).body}
    running.completed()
    spoken.append(running)
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
    if isinstance(item, str):
        fields = {"input": item}
    else:
        fields = item.model_dump(exclude_unset=True)
    fields = {k: v for k, v in fields.items() if v is not None}
    return validated(SpeechBody, {**shared, **fields})


def _of_item(error: ApiError, index: int, item: BatchItem | str | WrongItem) -> ApiError:
    """The error of an item. A field that the item has itself is named `items.N.field`."""
    field = error.param
    # no batch has an input
    item_fields = {"input", *(item.model_fields_set if isinstance(item, BatchItem) else ())}
    if field is None or field.partition(".")[0] not in item_fields:
        return error
    return error.renamed(f"items.{index}.{field}")


Id = Annotated[str, Path(max_length=LIMITS.name_chars)]


@router.get("/v1/audio/speech/{request_id}", responses={**failures(400, 401, 404)}, tags=["speech"])
async def outcome(request: Request, request_id: Id) -> dict[str, Any]:
    """Outcome of one of the last 1024 requests: status, finish reason, usage, seed, sentence
    times."""
    return (await _outcome(request, request_id)).as_dict()


async def _outcome(request: Request, id: str) -> Outcome:
    """The outcome of a request that any process of the server has served. ApiError 404 if none
    has."""
    s = server(request)
    outcome = await s.outcomes.find(id) or await s.others.outcome(id)
    if outcome is None:
        raise ApiError(404, f"no recent request has the id {id[:80]!r}", param="request_id")
    return outcome


@router.get(
    "/v1/audio/speech/{request_id}/timestamps",
    response_class=Response,
    responses={
        200: {"content": {**{media: {} for media in MEDIA_TYPES.values()}, "application/json": {}}},
        **failures(400, 401, 404, 409),
    },
    tags=["speech"],
)
async def timestamps(
    request: Request,
    request_id: Id,
    format: Annotated[Literal["srt", "vtt", "ass", "json"], Query()] = "srt",
    words: Annotated[
        bool, Query(description="true: mark each word in vtt and ass, a cue for each word in srt")
    ] = False,
) -> Response:
    """Return the times of a finished request, as subtitles of at most two lines or as JSON."""
    outcome = await _outcome(request, request_id)
    if outcome.status == "running":
        raise ApiError(409, "the request is still running", param="request_id")
    if format == "json":
        body = outcome.as_dict()
        return json_response({name: body[name] for name in ("segments", "words") if name in body})
    subtitles = SUBTITLES[format](outcome.segments, words)
    return PlainTextResponse(subtitles, media_type=MEDIA_TYPES[format])

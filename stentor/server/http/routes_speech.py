"""Speech over HTTP: one text, a batch of texts, and what became of them."""

from __future__ import annotations

import asyncio
import base64
from typing import TYPE_CHECKING, Annotated, Any, Literal

from fastapi import APIRouter, Path, Query, Request
from pydantic import BaseModel
from starlette.responses import PlainTextResponse, Response
from starlette.types import Receive, Scope, Send

from stentor.server.audio.encode import CONTAINERS
from stentor.server.backpressure import attended
from stentor.server.errors import ApiError, translate
from stentor.server.http.responses import SpeechAnswer, Voicing
from stentor.server.json_sse import json_response
from stentor.server.schemas import BatchBody, BatchItem, SpeechBody
from stentor.server.speech.outcomes import srt, vtt
from stentor.server.speech.run import Timing

if TYPE_CHECKING:
    from stentor.server.app import Server

router = APIRouter()

BINARY = {"schema": {"type": "string", "format": "binary"}}


class ErrorDetail(BaseModel):
    message: str
    type: str
    param: str | None
    code: str | None


class ErrorBody(BaseModel):
    """OpenAI's error envelope."""

    error: ErrorDetail


def failures(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """The refusals a route documents."""
    words = {
        400: "A field is wrong; `param` names it",
        401: "No valid API key",
        404: "Not found",
        409: "Conflict",
        413: "The body is too large",
        429: "Too many requests in progress; see Retry-After",
        500: "The engine failed",
        503: "Not ready, or the queue is full; see Retry-After",
        504: "The request took too long",
    }
    return {s: {"model": ErrorBody, "description": words[s]} for s in statuses}


SPOKEN: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "Audio; server-sent events with stream_format=sse; JSON with timestamps",
        "content": {
            **{c.media_type: BINARY for c in CONTAINERS.values()},
            "text/event-stream": {"schema": {"type": "string"}},
            "application/json": {"schema": {"type": "object"}},
        },
    },
    **failures(400, 401, 404, 413, 429, 500, 503, 504),
}


def server(request: Request) -> Server:
    held: Server = request.app.state.server
    return held


@router.post("/v1/audio/speech", response_class=Response, responses=SPOKEN, tags=["speech"])
async def speech(request: Request, body: SpeechBody) -> Response:
    """Speak a text. `stream_format` audio streams the file, sse streams events; without it the whole file is sent."""
    s, timing = server(request), Timing()
    plan = await refusing(s, s.planner.speech(body, request.state.request_id))
    sse = body.stream_format == "sse" or (body.stream and body.stream_format is None)
    return SpeechAnswer(Voicing(s.kitchen, plan, timing), sse, body.timestamps)


async def refusing(s: Server, planned: Any) -> Any:
    """Await a plan; count what was refused."""
    try:
        return await planned
    except Exception as e:
        error = translate(e)
        s.metrics.rejected.labels(error.code or (f"invalid_{error.param}" if error.param else "invalid")[:40]).inc()
        raise error from e


BATCHED: dict[int | str, dict[str, Any]] = {
    200: {"content": {"application/json": {"schema": {"type": "object"}}}},
    **failures(400, 401, 404, 413, 429, 500, 503, 504),
}


@router.post("/v1/audio/speech/batch", response_class=Response, responses=BATCHED, tags=["speech"])
async def batch(request: Request, body: BatchBody) -> Response:
    """Speak up to 32 texts together. Each item has its own status; one that fails does not take the others along."""
    return BatchAnswer(server(request), body, request.state.request_id)


class BatchAnswer(Response):
    """All items side by side; a client that leaves cancels them all."""

    def __init__(self, s: Server, body: BatchBody, id: str) -> None:
        self.server, self.body_, self.id = s, body, id
        self.background = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        results: list[dict[str, Any]] = []

        async def work() -> None:
            jobs = (self._item(i, item) for i, item in enumerate(self.body_.items))
            results.extend(await asyncio.gather(*jobs))

        try:
            await attended(work(), receive, self.server.config.request_timeout)
        except TimeoutError as e:
            raise translate(e) from e
        except Exception:
            if not results:
                return  # the client has gone
        good = sum(r["status"] == "success" for r in results)
        answer = {
            "object": "audio.speech.batch",
            "id": self.id,
            "total": len(results),
            "succeeded": good,
            "failed": len(results) - good,
            "results": results,
        }
        await json_response(answer)(scope, receive, send)

    async def _item(self, index: int, item: BatchItem | str) -> dict[str, Any]:
        s, timing, id = self.server, Timing(), f"{self.id}-{index}"
        try:
            merged = self._merged(item)
            plan = await refusing(s, s.planner.make(merged, merged.input, id, merged.split_granularity, False))
        except ApiError as e:
            return {"index": index, "id": id, "status": "error", **e.body}
        voicing = Voicing(s.kitchen, plan, timing)
        try:
            data = b"".join([part async for part in voicing.bytes(whole=True)])
        except BaseException as e:
            error = voicing.failed(e)
            if error is None:
                raise
            return {"index": index, "id": id, "status": "error", **error.body}
        voicing.completed()
        return {
            "index": index,
            "id": id,
            "status": "success",
            "audio": base64.b64encode(data).decode(),
            "response_format": plan.output.format,
            "media_type": CONTAINERS[plan.output.format].media_type,
            "sample_rate": plan.output.rate,
            "duration": round(voicing.run.duration, 4),
            "finish_reason": voicing.run.finish,
            "seed": voicing.run.seed,
            "usage": voicing.run.tally.usage(),
        }

    def _merged(self, item: BatchItem | str) -> SpeechBody:
        """The batch's parameters with the item's over them."""
        shared = self.body_.model_dump(exclude_unset=True, exclude={"items"})
        own = {"input": item} if isinstance(item, str) else item.model_dump(exclude_unset=True)
        own = {k: v for k, v in own.items() if v is not None}
        return SpeechBody.model_validate({**shared, **own})


Id = Annotated[str, Path(max_length=200)]


@router.get("/v1/audio/speech/{request_id}", responses={**failures(401, 404)}, tags=["speech"])
async def outcome(request: Request, request_id: Id) -> dict[str, Any]:
    """What became of one of the last 1024 requests: status, finish reason, usage, seed, sentence times."""
    found = server(request).outcomes.get(request_id)
    if found is None:
        raise ApiError(404, f"no recent request has the id {request_id[:80]!r}", param="request_id")
    return found.as_dict()


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
    request: Request, request_id: Id, format: Annotated[Literal["srt", "vtt", "json"], Query()] = "srt"
) -> Response:
    """Sentence times of a finished request, as subtitles."""
    found = server(request).outcomes.get(request_id)
    if found is None:
        raise ApiError(404, f"no recent request has the id {request_id[:80]!r}", param="request_id")
    if found.status == "running":
        raise ApiError(409, "the request is still running", param="request_id")
    if format == "json":
        return json_response({"segments": found.as_dict()["segments"]})
    if format == "vtt":
        return PlainTextResponse(vtt(found.segments), media_type="text/vtt")
    return PlainTextResponse(srt(found.segments), media_type="application/x-subrip")

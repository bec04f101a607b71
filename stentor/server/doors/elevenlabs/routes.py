"""HTTP routes of ElevenLabs' API: audio, and audio with the times of characters, whole or as lines of JSON."""

from __future__ import annotations

import base64
from dataclasses import replace
from typing import Any

from fastapi import APIRouter, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.routing import Match
from starlette.types import Receive, Scope, Send

from stentor.output.encode import CONTAINERS
from stentor.server.backpressure import Disconnected, run_while_connected
from stentor.server.doors.elevenlabs import lists
from stentor.server.doors.elevenlabs.alignment import Aligner
from stentor.server.doors.elevenlabs.fields import (
    Speak,
    VoiceSettings,
    common,
    detail,
    ignored,
    output_format,
    speech_body,
)
from stentor.server.errors import ApiError, failures, translate
from stentor.server.http.authentication import XI_API_KEY
from stentor.server.http.json_body import BodyRoute, Handler
from stentor.server.http.responses import NoResponse, SpeechResponse
from stentor.server.json_sse import json_bytes, json_response
from stentor.server.speech.outcomes import Timing
from stentor.server.speech.output import RunningRequest
from stentor.server.speech.plan import SpeechPlan
from stentor.server.state import server


class AudioResponse(SpeechResponse):
    """Audio. Errors and ignored fields have the names of this API."""

    def __init__(self, request: RunningRequest) -> None:
        super().__init__(request, sse=False, timestamps="none")
        self.timestamps = "none"  # what `SpeechResponse` adds to an answer, which here has another shape

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        except ApiError as e:
            await json_response(detail(e), e.status, e.headers)(scope, receive, send)

    async def _start(self, send: Send, media: str, known: dict[str, str]) -> None:
        await super()._start(send, media, {**known, **ignored(self.request.plan.ignored).header()})


class TimedResponse(AudioResponse):
    """Audio with the times of the characters of `text`."""

    def __init__(self, request: RunningRequest, text: str) -> None:
        super().__init__(request)
        self.text = text
        self.aligner = Aligner()
        if request.plan.streaming:
            self.media = "application/json"  # a line for each part, as ElevenLabs calls it too

    def whole(self, data: bytes) -> tuple[bytes, str]:
        return self._line(data, rest=True), "application/json"

    def part(self, data: bytes) -> bytes:
        return self._line(data) + b"\n"

    def rest(self) -> bytes:
        return self._line(b"", rest=True) + b"\n"

    def _line(self, data: bytes, rest: bool = False) -> bytes:
        """Audio, and the characters of the segments that have ended since the last call. Both alignments are of the
        text that was given: what is spoken in its place has none of its own."""
        fresh = self.request.run.timings[self.reported :]
        self.reported += len(fresh)
        characters = self.aligner.take(self.text, fresh, rest)
        alignment = characters.as_seconds() if characters.text else None
        audio = base64.b64encode(data).decode()
        return json_bytes({"audio_base64": audio, "alignment": alignment, "normalized_alignment": alignment})


class Route(BodyRoute):
    """A route whose errors ElevenLabs' clients can read."""

    def get_route_handler(self) -> Handler:
        handler = super().get_route_handler()

        async def handle(request: Request) -> Response:
            try:
                return await handler(request)
            except (HTTPException, RequestValidationError, Disconnected):
                raise
            except Exception as e:
                error = translate(e)
                return json_response(detail(error), error.status, error.headers)

        return handle


class OwnModels(Route):
    """A path that OpenAI's API has too: this route takes the requests of clients with ElevenLabs' key."""

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        if scope["type"] != "http" or XI_API_KEY not in {name for name, _ in scope["headers"]}:
            return Match.NONE, {}
        return super().matches(scope)


router = APIRouter(route_class=Route, tags=["ElevenLabs"])
models_router = APIRouter(route_class=OwnModels)

AUDIO: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "Audio in the format of the query's output_format (mp3_44100_128, pcm_24000, ulaw_8000, ...)",
        "content": {c.media_type: {"schema": {"type": "string", "format": "binary"}} for c in CONTAINERS.values()},
    },
    **failures(400, 401, 404, 413, 415, 429, 500, 503, 504),
}
TIMED = {**AUDIO, 200: {"description": "Audio in base64, with times", "content": {"application/json": {}}}}
PATH = "/v1/text-to-speech/{voice_id}"
VOICE_ID = {"parameters": [{"name": "voice_id", "in": "path", "required": True, "schema": {"type": "string"}}]}
"""The parameter of PATH in the description: a BodyRoute's handlers take the body alone."""


@router.post(PATH, response_class=Response, responses=AUDIO, openapi_extra=VOICE_ID)
async def whole(request: Request, body: Speak) -> Response:
    """Speak a text. The answer is a whole file."""
    return await _answer(request, body, streaming=False, timed=False)


@router.post(PATH + "/stream", response_class=Response, responses=AUDIO, openapi_extra=VOICE_ID)
async def streamed(request: Request, body: Speak) -> Response:
    """Speak a text. The file's bytes are sent while it is made."""
    return await _answer(request, body, streaming=True, timed=False)


@router.post(PATH + "/with-timestamps", response_class=Response, responses=TIMED, openapi_extra=VOICE_ID)
async def whole_timed(request: Request, body: Speak) -> Response:
    """Speak a text. The answer is JSON: the whole file in base64, and when each character is spoken."""
    return await _answer(request, body, streaming=False, timed=True)


@router.post(PATH + "/stream/with-timestamps", response_class=Response, responses=TIMED, openapi_extra=VOICE_ID)
async def streamed_timed(request: Request, body: Speak) -> Response:
    """Speak a text. Lines of JSON are sent while it is made. Times come when a sentence has ended."""
    return await _answer(request, body, streaming=True, timed=True)


async def _answer(request: Request, body: Speak, streaming: bool, timed: bool) -> Response:
    s, timing = server(request), Timing()
    watched = run_while_connected(
        _plan(request, body, streaming, timed), request.receive, s.config.request_timeout, s.ended
    )
    try:  # it may wait for a model
        plan = await watched
    except Disconnected:
        return NoResponse()
    except Exception as e:
        error = translate(e)
        s.metrics.count_refusal(error)
        raise error from e
    request.state.body.release()
    running = RunningRequest(s, plan, timing, request.headers.get("traceparent"))
    return TimedResponse(running, body.text) if timed else AudioResponse(running)


async def _plan(request: Request, body: Speak, streaming: bool, timed: bool) -> SpeechPlan:
    """The plan for a body and its query. ApiError names the field that is wrong."""
    s, query = server(request), request.query_params
    output = output_format(query.get("output_format"))
    settings = body.voice_settings or VoiceSettings(speed=None)
    given = common(
        request.path_params["voice_id"],
        body.model_id,
        body.language_code,
        output,
        body.seed,
        settings.speed,
        body.apply_text_normalization,
    )
    more = {**(body.model_extra or {}), **settings.unused()}
    if latency := query.get("optimize_streaming_latency"):
        more["optimize_streaming_latency"] = latency
    ours = {
        "input": body.text,
        "timestamps": "json" if timed else "none",
        "stream": streaming,
        "stream_format": "audio",
    }
    speech = speech_body({k: v for k, v in {**given, **ours}.items() if v is not None}, more)
    if not timed or not s.planner.times_words(speech):
        speech = speech.model_copy(update={"word_timestamps": False})
    plan = await s.planner.speech(speech, request.state.request_id, streaming)
    return replace(plan, output=replace(plan.output, bit_rate=output.bit_rate))


@router.get("/v1/voices", responses=failures(401))
async def voices(request: Request) -> dict[str, Any]:
    """All voices: those of the models, aliases and uploads."""
    return {"voices": await lists.voices(server(request))}


@router.get("/v2/voices", responses=failures(400, 401))
async def voices_by_page(
    request: Request, search: str | None = None, page_size: int = lists.PAGE, next_page_token: str | None = None
) -> dict[str, Any]:
    """All voices in pages. `search` is a part of the name."""
    found = await lists.voices(server(request))
    return lists.page([v for v in found if (search or "").lower() in v["name"].lower()], page_size, next_page_token)


@router.get("/v1/voices/{voice_id}", responses=failures(401, 404))
async def voice(request: Request, voice_id: str) -> dict[str, Any]:
    """One voice of the list."""
    found = next((v for v in await lists.voices(server(request)) if v["voice_id"] == voice_id), None)
    if found is None:
        raise ApiError(404, f"there is no voice {voice_id[:80]!r}", param="voice_id", code="voice_not_found")
    return found


@models_router.get("/v1/models", include_in_schema=False)
async def models(request: Request) -> Response:
    """The models served, as ElevenLabs lists them."""
    return json_response(lists.models(server(request)))

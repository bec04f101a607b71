"""HTTP routes of ElevenLabs' API: audio, and audio with the times of characters, whole or as lines
of JSON."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Any

from fastapi import APIRouter, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.routing import Match
from starlette.types import Receive, Scope, Send

from stentor.output.encode import CONTAINERS
from stentor.server.backpressure import Disconnected
from stentor.server.doors.elevenlabs.fields import (
    Aligner,
    Dialogue,
    Line,
    Speak,
    detail,
    ignored,
    output_format,
    speech_body,
)
from stentor.server.errors import ApiError, failures, invalid, translate
from stentor.server.http.bodies import BodyRoute, Handler
from stentor.server.http.middleware import XI_API_KEY
from stentor.server.http.responses import NoResponse, SpeechResponse, begun
from stentor.server.limits import LIMITS
from stentor.server.speech.fields import code_of
from stentor.server.speech.output import RunningRequest
from stentor.server.speech.plan import NO_WORD_TIMES, SpeechPlan
from stentor.server.state import Server, server
from stentor.server.voices.voice import listing, own_voices
from stentor.server.wire_json import json_bytes, json_response
from stentor.speech.timing import SegmentTiming


class AudioResponse(SpeechResponse):
    """Audio. Errors and ignored fields have the names of this API."""

    def __init__(self, request: RunningRequest) -> None:
        super().__init__(request, sse=False, timestamps="none")
        # what `SpeechResponse` adds to an answer, which here has another shape
        self.timestamps = "none"

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
        """Audio, and the characters of the segments that have ended since the last call. Both
        alignments are of the request's text: what is spoken in its place has none of its
        own."""
        timings = self.request.run.timings[self.reported :]
        self.reported += len(timings)
        fresh = self.moved(timings)
        characters = self.aligner.take(self.text, fresh, rest)
        if characters.text:
            alignment = characters.as_seconds()
        else:
            alignment = None
        audio = base64.b64encode(data).decode()
        return json_bytes(
            {
                "audio_base64": audio,
                "alignment": alignment,
                "normalized_alignment": alignment,
                **self.more(fresh),
            }
        )

    def moved(self, fresh: Sequence[SegmentTiming]) -> Sequence[SegmentTiming]:
        """Timings with places in `text`."""
        return fresh

    def more(self, fresh: Sequence[SegmentTiming]) -> dict[str, Any]:
        """Further fields of an answer with these timings."""
        return {}


class TimedDialogue(TimedResponse):
    """Audio with the times of the characters of all lines, and of the voices that speak them."""

    def __init__(self, request: RunningRequest, lines: Sequence[Line]) -> None:
        super().__init__(request, "".join(line.text for line in lines))
        self.lines = lines
        self.starts = list(accumulate((len(line.text) for line in lines), initial=0))

    def moved(self, fresh: Sequence[SegmentTiming]) -> list[SegmentTiming]:
        """Timings with places in the text of all lines. Each counts from its own line."""
        return [self._moved(timing, self.starts[timing.turn or 0]) for timing in fresh]

    @staticmethod
    def _moved(timing: SegmentTiming, by: int) -> SegmentTiming:
        words = tuple(
            replace(word, start_char=word.start_char + by, end_char=word.end_char + by)
            for word in timing.words
        )
        start = timing.start_char + by
        return replace(timing, words=words, start_char=start, end_char=timing.end_char + by)

    def more(self, fresh: Sequence[SegmentTiming]) -> dict[str, Any]:
        return {"voice_segments": [self._segment(timing) for timing in fresh]}

    def _segment(self, timing: SegmentTiming) -> dict[str, Any]:
        line = timing.turn or 0
        return {
            "voice_id": self.lines[line].voice_id,
            "start_time_seconds": round(timing.start, 4),
            "end_time_seconds": round(timing.end, 4),
            "character_start_index": timing.start_char,
            "character_end_index": timing.end_char,
            "dialogue_input_index": line,
        }


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
    """A path that OpenAI's API has too: this route takes the requests of clients with ElevenLabs'
    key."""

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        if scope["type"] != "http" or XI_API_KEY not in {name for name, _ in scope["headers"]}:
            return Match.NONE, {}
        return super().matches(scope)


router = APIRouter(route_class=Route, tags=["ElevenLabs"])

AUDIO: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "Audio in the format of the query's output_format (mp3_44100_128, pcm_24000, ulaw_8000, ...)",
        "content": {
            c.media_type: {"schema": {"type": "string", "format": "binary"}}
            for c in CONTAINERS.values()
        },
    },
    **failures(400, 401, 404, 413, 415, 429, 500, 503, 504),
}
TIMED = {
    **AUDIO,
    200: {"description": "Audio in base64, with times", "content": {"application/json": {}}},
}
PATH = "/v1/text-to-speech/{voice_id}"
DIALOGUE = "/v1/text-to-dialogue"
VOICE_ID = {
    "parameters": [
        {"name": "voice_id", "in": "path", "required": True, "schema": {"type": "string"}}
    ]
}
"""The parameter of PATH in the description: a BodyRoute's handlers take the body alone."""


@router.post(PATH, response_class=Response, responses=AUDIO, openapi_extra=VOICE_ID)
async def whole(request: Request, body: Speak) -> Response:
    """Speak a text. The answer is a whole file."""
    return await _answer(request, body, streaming=False, timed=False)


@router.post(PATH + "/stream", response_class=Response, responses=AUDIO, openapi_extra=VOICE_ID)
async def streamed(request: Request, body: Speak) -> Response:
    """Speak a text. The file's bytes are sent while it is made."""
    return await _answer(request, body, streaming=True, timed=False)


@router.post(
    PATH + "/with-timestamps", response_class=Response, responses=TIMED, openapi_extra=VOICE_ID
)
async def whole_timed(request: Request, body: Speak) -> Response:
    """Speak a text. The answer is JSON: the whole file in base64, and when each character is
    spoken."""
    return await _answer(request, body, streaming=False, timed=True)


@router.post(
    PATH + "/stream/with-timestamps",
    response_class=Response,
    responses=TIMED,
    openapi_extra=VOICE_ID,
)
async def streamed_timed(request: Request, body: Speak) -> Response:
    """Speak a text. Lines of JSON are sent while it is made. Times come when a sentence has
    ended."""
    return await _answer(request, body, streaming=True, timed=True)


async def _answer(
    request: Request, body: Speak | Dialogue, streaming: bool, timed: bool
) -> Response:
    running = await begun(request, _plan(request, body, streaming, timed))
    if running is None:
        return NoResponse()
    if not timed:
        return AudioResponse(running)
    if isinstance(body, Dialogue):
        return TimedDialogue(running, body.inputs)
    return TimedResponse(running, body.text)


async def _plan(
    request: Request, body: Speak | Dialogue, streaming: bool, timed: bool
) -> SpeechPlan:
    """The plan for a body and its query. ApiError names the field that is wrong."""
    query = request.query_params
    output = output_format(query.get("output_format"))
    speech = speech_body(
        request.path_params.get("voice_id"),
        body.model_id,
        body.language_code,
        output,
        body.seed,
        body.speed,
        body.apply_text_normalization,
        query,
        body.unused(),
        **body.content(),
        timestamps="json" if timed else "none",
        stream=streaming,
        stream_format="audio",
    )
    planner = server(request).planner
    words = planner.word_times(speech, timed and speech.word_timestamps)
    if not words.available:  # the answer then has the times of characters by their share
        words = NO_WORD_TIMES
    plan = await planner.speech(speech, request.state.request_id, streaming, words)
    return replace(plan, output=replace(plan.output, bit_rate=output.bit_rate))


@router.post(DIALOGUE, response_class=Response, responses=AUDIO)
async def dialogue(request: Request, body: Dialogue) -> Response:
    """Speak a dialogue. The answer is a whole file."""
    return await _answer(request, body, streaming=False, timed=False)


@router.post(DIALOGUE + "/stream", response_class=Response, responses=AUDIO)
async def dialogue_streamed(request: Request, body: Dialogue) -> Response:
    """Speak a dialogue. The file's bytes are sent while it is made."""
    return await _answer(request, body, streaming=True, timed=False)


@router.post(DIALOGUE + "/with-timestamps", response_class=Response, responses=TIMED)
async def dialogue_timed(request: Request, body: Dialogue) -> Response:
    """Speak a dialogue. The answer is JSON: the whole file in base64, and when each character and
    each voice is spoken."""
    return await _answer(request, body, streaming=False, timed=True)


@router.post(DIALOGUE + "/stream/with-timestamps", response_class=Response, responses=TIMED)
async def dialogue_streamed_timed(request: Request, body: Dialogue) -> Response:
    """Speak a dialogue. Lines of JSON are sent while it is made. Times come when a sentence has
    ended."""
    return await _answer(request, body, streaming=True, timed=True)


@router.get("/v1/voices", responses=failures(401))
async def voices(request: Request) -> dict[str, Any]:
    """All voices: those of the models, aliases and uploads."""
    return {"voices": await _voices(server(request))}


@router.get("/v2/voices", responses=failures(400, 401))
async def voices_by_page(
    request: Request,
    search: str | None = None,
    page_size: int = LIMITS.max_voices,
    next_page_token: str | None = None,
) -> dict[str, Any]:
    """All voices in pages. `search` is a part of the name."""
    voices = await _voices(server(request))
    return _page(
        [v for v in voices if (search or "").lower() in v["name"].lower()],
        page_size,
        next_page_token,
    )


@router.get("/v1/voices/{voice_id}", responses=failures(401, 404))
async def voice(request: Request, voice_id: str) -> dict[str, Any]:
    """One voice of the list."""
    voices = await _voices(server(request))
    entry = next((v for v in voices if v["voice_id"] == voice_id), None)
    if entry is None:
        raise ApiError(
            404, f"there is no voice {voice_id[:80]!r}", param="voice_id", code="voice_not_found"
        )
    return entry


async def models(request: Request) -> Response:
    """The models served, as ElevenLabs lists them."""
    return json_response(_models(server(request)))


router.add_api_route("/v1/models", models, include_in_schema=False, route_class_override=OwnModels)


async def _voices(server: Server) -> list[dict[str, Any]]:
    """The default voice, those of the models, aliases and uploads."""
    builtin = own_voices(server.hosts.voices(), server.config.aliases)
    listed = await asyncio.to_thread(lambda: listing(builtin, server.voices.list(), details=True))
    return [_voice(entry) for entry in listed["data"]]


def _voice(entry: dict[str, Any]) -> dict[str, Any]:
    """ElevenLabs' Voice for an entry of our list."""
    uploaded = entry["type"] == "uploaded"
    return {
        "voice_id": entry["id"],
        "name": entry["name"],
        "category": "cloned" if uploaded else "premade",
        "labels": {},
        "description": entry.get("speaker_description"),
        "preview_url": None,
        "available_for_tiers": [],
        "settings": None,
        "samples": None,
        "high_quality_base_model_ids": [],
        "is_owner": uploaded,
        "created_at_unix": entry.get("created_at"),
    }


def _page(found: Sequence[dict[str, Any]], size: int, token: str | None) -> dict[str, Any]:
    """A page of a list. The token of the next is where it begins."""
    if not 1 <= size <= LIMITS.max_voices:
        raise invalid("page_size", f"must be from 1 to {LIMITS.max_voices}")
    if token is not None and not (token.isascii() and token.isdecimal()):
        raise invalid("next_page_token", "must be one of an answer")
    begin = int((token or "0")[: LIMITS.param_chars])
    end = begin + size
    return {
        "voices": list(found[begin:end]),
        "has_more": end < len(found),
        "total_count": len(found),
        "next_page_token": str(end) if end < len(found) else None,
    }


def _models(server: Server) -> list[dict[str, Any]]:
    """Each model, and each adapter as a model."""
    names = [
        (name, host) for host in server.hosts.all for name in (host.name, *host.adapters.paths)
    ]
    return [
        {
            "model_id": name,
            "name": name,
            "description": f"{host.name} on this server",
            "can_do_text_to_speech": True,
            "can_do_voice_conversion": False,
            "can_be_finetuned": False,
            "can_use_style": False,
            "can_use_speaker_boost": False,
            "serves_pro_voices": False,
            "requires_alpha_access": False,
            "token_cost_factor": 0.0,
            "model_rates": {"character_cost_multiplier": 0.0},
            "maximum_text_length_per_request": server.config.max_input_chars,
            "max_characters_request_free_user": server.config.max_input_chars,
            "max_characters_request_subscribed_user": server.config.max_input_chars,
            "languages": [
                {"language_id": code_of(n), "name": n.title()} for n in host.spec.languages
            ]
            if host.known
            else [],
            "concurrency_group": "standard",
        }
        for name, host in names
    ]

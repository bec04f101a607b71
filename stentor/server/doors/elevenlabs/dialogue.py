"""HTTP routes of ElevenLabs' dialogues: lines of several voices in one audio, with the times of characters and
voices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Annotated, Any

from fastapi import APIRouter, Request
from pydantic import Field
from starlette.responses import Response

from stentor.server.doors.elevenlabs.fields import (
    Line,
    Normalization,
    VoiceSettings,
    output_format,
    speech_body,
)
from stentor.server.doors.elevenlabs.routes import (
    AUDIO,
    TIMED,
    AudioResponse,
    Route,
    TimedResponse,
    planned,
)
from stentor.server.http.responses import NoResponse, begun
from stentor.server.limits import LIMITS
from stentor.server.schemas import Body, Seed
from stentor.server.speech.output import RunningRequest
from stentor.server.speech.plan import SpeechPlan
from stentor.speech.script import MOST_TURNS
from stentor.speech.timing import SegmentTiming

router = APIRouter(route_class=Route, tags=["ElevenLabs"])
PATH = "/v1/text-to-dialogue"


class Dialogue(Body):
    """POST /v1/text-to-dialogue. The model's own options are taken too."""

    inputs: Annotated[list[Line], Field(min_length=1, max_length=MOST_TURNS)]
    model_id: str | None = Field(None, max_length=LIMITS.name_chars)
    language_code: str | None = Field(None, max_length=LIMITS.name_chars)
    settings: VoiceSettings | None = None
    seed: Seed | None = None
    apply_text_normalization: Normalization = "auto"


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


@router.post(PATH, response_class=Response, responses=AUDIO)
async def whole(request: Request, body: Dialogue) -> Response:
    """Speak a dialogue. The answer is a whole file."""
    return await _answer(request, body, streaming=False, timed=False)


@router.post(PATH + "/stream", response_class=Response, responses=AUDIO)
async def streamed(request: Request, body: Dialogue) -> Response:
    """Speak a dialogue. The file's bytes are sent while it is made."""
    return await _answer(request, body, streaming=True, timed=False)


@router.post(PATH + "/with-timestamps", response_class=Response, responses=TIMED)
async def whole_timed(request: Request, body: Dialogue) -> Response:
    """Speak a dialogue. The answer is JSON: the whole file in base64, and when each character and
    each voice is spoken."""
    return await _answer(request, body, streaming=False, timed=True)


@router.post(PATH + "/stream/with-timestamps", response_class=Response, responses=TIMED)
async def streamed_timed(request: Request, body: Dialogue) -> Response:
    """Speak a dialogue. Lines of JSON are sent while it is made. Times come when a sentence has
    ended."""
    return await _answer(request, body, streaming=True, timed=True)


async def _answer(request: Request, body: Dialogue, streaming: bool, timed: bool) -> Response:
    running = await begun(request, _plan(request, body, streaming, timed))
    if running is None:
        return NoResponse()
    if timed:
        return TimedDialogue(running, body.inputs)
    return AudioResponse(running)


async def _plan(request: Request, body: Dialogue, streaming: bool, timed: bool) -> SpeechPlan:
    """The plan for a body and its query. ApiError names the field that is wrong."""
    query = request.query_params
    output = output_format(query.get("output_format"))
    settings = body.settings or VoiceSettings(speed=None)
    unused = {
        name.replace("voice_settings", "settings"): v for name, v in settings.unused().items()
    }
    script = [{"voice": line.voice_id, "text": line.text} for line in body.inputs]
    speech = speech_body(
        None,
        body.model_id,
        body.language_code,
        output,
        body.seed,
        settings.speed,
        body.apply_text_normalization,
        query,
        {**(body.model_extra or {}), **unused},
        script=script,
        timestamps="json" if timed else "none",
        stream=streaming,
        stream_format="audio",
    )
    plan = await planned(request, speech, output, streaming, timed)
    for i, line in enumerate(body.inputs):
        for name in line.model_extra or {}:
            plan.ignored.field(f"inputs.{i}.{name}", "is not a field of a line")
    return plan

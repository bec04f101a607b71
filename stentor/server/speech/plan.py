"""From a request body to a plan: fields are checked, voices and references found, and text is cut into segments."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from stentor.errors import InvalidRequest
from stentor.models.base import ModelSpec, SpeechRequest
from stentor.server.audio.encode import CONTAINERS, legal_rate
from stentor.server.config import ServerConfig
from stentor.server.errors import ApiError
from stentor.server.ignored import Ignored
from stentor.server.model_hosts import ModelHost, ModelHosts
from stentor.server.schemas import ALIASES, Shared, SpeechBody
from stentor.server.voices.resolve import VoiceInput, VoiceResolver
from stentor.speech.pieces import continues, segments
from stentor.text.sentences import Segment

PROBE = "Hello."  # stands for text that arrives later when parameters are checked
NOT_OPTIONS = {"user", "stream_options"}  # sent by OpenAI-style proxies, without a meaning here


@dataclass(frozen=True)
class Output:
    """How audio is sent: container, Hz, speed."""

    format: str
    rate: int
    speed: float


@dataclass(frozen=True, eq=False)
class SpeechPlan:
    """One speech request, ready to run. `request` is validated and holds the text of the first segment."""

    id: str
    host: ModelHost
    segments: list[Segment]
    request: SpeechRequest
    continues: bool  # later segments take their voice from the one before
    seed: int
    seed_given: bool
    output: Output
    guard: bool
    streaming: bool
    hold_frames: int
    ignored: Ignored
    live: bool = False  # text may be added to a segment while it is spoken


class Planner:
    """Turns request bodies into plans. ApiError says what is wrong with a body."""

    def __init__(self, config: ServerConfig, hosts: ModelHosts, voices: VoiceResolver) -> None:
        self.config, self.hosts, self.voices = config, hosts, voices

    async def speech(self, body: SpeechBody, id: str, streaming: bool) -> SpeechPlan:
        """The plan for a body of POST /v1/audio/speech."""
        _no_words(body.word_timestamps)
        granularity = body.split_granularity
        if body.timestamps != "none" and granularity == "auto":
            granularity = "sentence"
        return await self.make(body, body.input, id, granularity, streaming)

    async def live(self, body: Shared, id: str, word_timestamps: bool) -> SpeechPlan:
        """A plan without text, for a session whose text arrives later, in segments."""
        _no_words(word_timestamps)
        plan = await self.make(body, PROBE, id, "none", True)
        live = body.split_granularity == "auto" and plan.host.spec.live_text
        live = live and await asyncio.get_running_loop().run_in_executor(plan.host.pool, _accepts_live_text, plan)
        return replace(plan, segments=[], continues=continues(plan.host.spec, plan.request), live=live)

    async def make(self, body: Shared, text: str, id: str, granularity: str, streaming: bool) -> SpeechPlan:
        """A plan to speak `text` with the parameters of `body`."""
        host = self.hosts.named(body.model)
        spec, ignored = host.tts.spec, Ignored(self.config.strict)
        options = self._options(host, body, ignored)
        self._check_task(host, body)
        voice = await self.voices.resolve(host, body)
        options |= {"language": _language(body.language), "instructions": self._instructions(body)}
        pieces = self._segments(text, spec, granularity)
        seed = secrets.randbelow(2**31) if body.seed is None else body.seed
        request = await _validated(host, pieces[0].spoken, voice, seed, options)
        return SpeechPlan(
            id=id,
            host=host,
            segments=pieces,
            request=request,
            continues=len(pieces) > 1 and continues(spec, request),
            seed=seed,
            seed_given=body.seed is not None,
            output=self._output(spec, body),
            guard=self.config.guard if body.guard is None else body.guard,
            streaming=streaming,
            hold_frames=body.initial_codec_chunk_frames or 0,
            ignored=ignored,
        )

    # -- fields --

    @staticmethod
    def _options(host: ModelHost, body: Shared, ignored: Ignored) -> dict[str, Any]:
        """The family's own options, given at the top level or in extra_params, under any engine's name."""
        spec = host.spec
        given: dict[str, Any] = {**(body.extra_params or {}), **(body.model_extra or {})}
        if body.max_new_tokens is not None:
            given["max_new_tokens"] = body.max_new_tokens
        if body.x_vector_only_mode and "x_vector_only" in spec.options:
            given["x_vector_only_mode"] = True
        options: dict[str, Any] = {}
        for name, value in given.items():
            option = ALIASES.get(name, name)
            if option in spec.options:
                options[option] = value
            elif value is not None and name not in NOT_OPTIONS:
                taken = ", ".join(sorted(spec.options))
                ignored.field(name, f"is not a parameter of {host.name}; its own are {taken}")
        return options

    @staticmethod
    def _check_task(host: ModelHost, body: Shared) -> None:
        spec = host.spec
        able = {"CustomVoice": bool(spec.voices), "VoiceDesign": spec.takes_instructions, "Base": spec.takes_reference}
        if body.task_type is not None and not able[body.task_type]:
            can = ", ".join(k for k, v in able.items() if v) or "none"
            raise ApiError(
                400, f"task_type: {host.name} cannot do {body.task_type}; it can do: {can}", param="task_type"
            )

    def _instructions(self, body: Shared) -> str | None:
        given = body.instructions if body.instructions is not None else body.instruct
        limit = self.config.max_instructions_chars
        if given is not None and len(given) > limit:
            raise ApiError(400, f"instructions: has {len(given)} characters, at most {limit}", param="instructions")
        return given or None

    def _segments(self, text: str, spec: ModelSpec, granularity: str) -> list[Segment]:
        if len(text) > self.config.max_input_chars:
            raise ApiError(
                400, f"input: has {len(text)} characters, at most {self.config.max_input_chars}", param="input"
            )
        if not text.strip():
            raise ApiError(400, "input: must not be empty", param="input")
        return segments(spec, text, granularity, self.config.split_chars)

    def _output(self, spec: ModelSpec, body: Shared) -> Output:
        format = body.response_format or self.config.default_response_format
        rates = CONTAINERS[format].rates
        if body.sample_rate is None:
            usual = self.config.default_sample_rate or spec.sample_rate
            return Output(format, legal_rate(format, usual), body.speed)
        if rates and body.sample_rate not in rates:
            known = ", ".join(map(str, rates))
            raise ApiError(400, f"sample_rate: {format} takes {known}, got {body.sample_rate}", param="sample_rate")
        return Output(format, body.sample_rate, body.speed)


def _no_words(wanted: bool) -> None:
    if wanted:
        raise ApiError(
            400,
            "word_timestamps: no aligner is loaded; timestamps gives the times of sentences",
            param="word_timestamps",
        )


async def _validated(
    host: ModelHost, text: str, voice: VoiceInput, seed: int, options: Mapping[str, Any]
) -> SpeechRequest:
    """The request as the engine takes it. Reference audio is resampled here, in a thread, once for all segments."""

    def build() -> SpeechRequest:
        return host.tts.request(
            text,
            voice=voice.name,
            reference=voice.references,
            prompt=voice.prompt,
            speaker_embedding=voice.embedding,
            seed=seed,
            **options,
        )

    if not voice.references and voice.prompt is None:
        return build()
    return await asyncio.get_running_loop().run_in_executor(host.pool, build)


def _accepts_live_text(plan: SpeechPlan) -> bool:
    """Whether the model takes text while it speaks with these parameters. ApiError if it takes none with them."""
    try:
        plan.host.tts.prompt(replace(plan.request, live=True))
    except InvalidRequest as e:
        if e.param != "live":
            raise
        return False
    return True


def _language(given: str | None) -> str:
    return (given or "auto").strip().lower() or "auto"

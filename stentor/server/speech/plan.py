"""From a request body to a plan: fields are checked, voices and references found, and text is cut into segments."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from stentor.errors import InvalidRequest
from stentor.models.base import ModelSpec, SpeechRequest
from stentor.output.encode import CONTAINERS, legal_rate
from stentor.retry import random_seed
from stentor.server.config import ServerConfig
from stentor.server.errors import ApiError
from stentor.server.ignored import Ignored
from stentor.server.model_hosts import ModelHost, ModelHosts
from stentor.server.preparation import make_prompt
from stentor.server.schemas import Shared, SpeechBody
from stentor.server.speech.fields import given_as, language, options, usable, without_instructions
from stentor.server.voices.resolve import VoiceInput, VoiceResolver
from stentor.speech.pieces import continues, segments
from stentor.text.sentences import Segment

if TYPE_CHECKING:
    from stentor.api import TTS

PROBE = "Hello."  # stands for text that arrives later when parameters are checked
NO_WORDS = "the model knows the times of sentences only, which timestamps gives"


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
    words: bool = False  # their times are wanted, and the model knows them
    lora: str | None = None  # of a session: the adapter that each utterance looks up when it begins


class Planner:
    """Turns request bodies into plans. ApiError says what is wrong with a body."""

    def __init__(self, config: ServerConfig, hosts: ModelHosts, voices: VoiceResolver) -> None:
        self.config, self.hosts, self.voices = config, hosts, voices

    async def speech(self, body: SpeechBody, id: str, streaming: bool) -> SpeechPlan:
        """The plan for a body of POST /v1/audio/speech."""
        granularity = body.split_granularity
        if granularity == "auto" and (body.timestamps != "none" or self.times_words(body)):
            granularity = "sentence"
        plan = await self.make(body, body.input, id, granularity, streaming)
        return _with_words(plan, body.word_timestamps)

    def times_words(self, body: SpeechBody) -> bool:
        """Whether the times of words are asked for and known. False for a model that nobody knows, which `speech`
        refuses."""
        try:
            return body.word_timestamps and self.hosts.named(body.model).spec.alignment is not None
        except ApiError:
            return False

    async def live(self, body: Shared, id: str, word_timestamps: bool) -> SpeechPlan:
        """A plan without text, for a session whose text arrives later, in segments."""
        plan = _with_words(await self.make(body, PROBE, id, "none", True), word_timestamps)
        live = body.split_granularity == "auto" and plan.host.spec.live_text
        if live:
            async with plan.host.in_use() as tts:
                live = await _accepts_live_text(plan, tts)
        lora = plan.request.lora
        return replace(
            plan,
            segments=[],
            request=replace(plan.request, lora=None),
            continues=continues(plan.host.spec, plan.request),
            live=live,
            lora=None if lora is None else lora.name,
        )

    async def begun(self, plan: SpeechPlan) -> SpeechPlan:
        """A session's plan for an utterance that begins: with the adapter that has its name now, which it keeps.
        ApiError 404 where the adapter has been unloaded."""
        if plan.lora is None:
            return plan
        self.hosts.named(plan.lora)
        async with plan.host.in_use() as tts:
            return replace(plan, request=replace(plan.request, lora=tts.adapter(plan.lora)))

    async def make(self, body: Shared, text: str, id: str, granularity: str, streaming: bool) -> SpeechPlan:
        """A plan to speak `text` with the parameters of `body`."""
        host = self.hosts.named(body.model)
        spec, ignored = host.spec, Ignored(self.config.strict)
        body = usable(body, spec, ignored)
        named = {**options(body, spec, ignored), "language": language(body, spec, ignored)}
        if body.model in host.adapters.paths:
            named["lora"] = body.model
        voice = await self.voices.resolve(host, body, ignored)
        if voice.continued and not spec.instructs_prompt:
            body = without_instructions(body, ignored)
        named["instructions"] = self._instructions(body)
        pieces = self._segments(text, host, granularity)
        seed = random_seed() if body.seed is None else body.seed
        first = pieces[0].spoken if granularity == "none" else pieces[0].spoken[: spec.max_text]  # signs are not cut
        try:
            request = await _validated(host, first, voice, seed, named)
        except InvalidRequest as e:
            raise InvalidRequest(given_as(e.param, body, spec), e.message) from e
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

    def _instructions(self, body: Shared) -> str | None:
        given = body.instructions if body.instructions is not None else body.instruct
        limit = self.config.max_instructions_chars
        if given is not None and len(given) > limit:
            raise ApiError(400, f"instructions: has {len(given)} characters, at most {limit}", param="instructions")
        return given or None

    def _segments(self, text: str, host: ModelHost, granularity: str) -> list[Segment]:
        if len(text) > self.config.max_input_chars:
            raise ApiError(
                400, f"input: has {len(text)} characters, at most {self.config.max_input_chars}", param="input"
            )
        if not text.strip():
            raise ApiError(400, "input: must not be empty", param="input")
        return segments(host.spec, text, granularity, self.config.split_chars, host.lexicon)

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


def _with_words(plan: SpeechPlan, wanted: bool) -> SpeechPlan:
    """The plan, with the times of words if they are wanted. They are ignored where the model does not know them."""
    if wanted and plan.host.spec.alignment is None:
        plan.ignored.field("word_timestamps", NO_WORDS)
        return plan
    return replace(plan, words=wanted)


async def _validated(
    host: ModelHost, text: str, voice: VoiceInput, seed: int, options: Mapping[str, Any]
) -> SpeechRequest:
    """The request as the engine takes it."""
    async with host.in_use() as tts:
        return tts.request(
            text,
            voice=voice.name,
            reference=voice.references,
            prompt=voice.prompt,
            speaker_embedding=voice.embedding,
            seed=seed,
            **options,
        )


async def _accepts_live_text(plan: SpeechPlan, tts: TTS) -> bool:
    """Whether the model takes text while it speaks with these parameters. ApiError if it takes none with them."""
    try:
        await make_prompt(plan.host.pool, tts, replace(plan.request, live=True))
    except InvalidRequest as e:
        if e.param != "live":
            raise
        return False
    return True

"""From a request body to a plan: fields are checked, voices and references found, and text is cut
into segments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

from stentor.audio.silence import QUIET_PEAK
from stentor.errors import InvalidRequest
from stentor.models.info import ModelInfo, SpeechRequest
from stentor.output.encode import CONTAINERS, legal_rate
from stentor.output.marks import NO_MARKS, Marks, comment
from stentor.output.watermark import load
from stentor.request import own_speed
from stentor.server.config import ServerConfig
from stentor.server.errors import ApiError, invalid
from stentor.server.model_hosts import ModelHost, ModelHosts
from stentor.server.schemas import Ignored, Shared, SpeechBody
from stentor.server.speech import fields
from stentor.server.speech.fields import VoiceInput, VoiceResolver
from stentor.speech.live_text import PROBE
from stentor.speech.long_text import worked
from stentor.speech.script import Turn, dialogue
from stentor.text.sentences import Segment


@dataclass(frozen=True)
class Output:
    """How audio is sent: container, Hz, speed, marks. bit_rate: bits per second, None as usual for
    the container."""

    format: str
    rate: int
    speed: float
    bit_rate: int | None = None
    marks: Marks = NO_MARKS


class WordTimes(NamedTuple):
    """Whether a request has the times of its words.

    needed: for the client or for subtitles. missing: why they cannot be found, or None. requested:
    by the client.
    """

    needed: bool
    missing: str | None
    requested: bool = False

    @property
    def available(self) -> bool:
        return self.needed and self.missing is None


NO_WORD_TIMES = WordTimes(False, None)


@dataclass(frozen=True, eq=False)
class SpeechPlan:
    """One speech request, ready to run. `requests` are validated: of each voice by its name in the
    segments, with None for the request's own, each with the text of its first segment."""

    id: str
    host: ModelHost
    segments: list[Segment]
    requests: Mapping[str | None, SpeechRequest]
    seed_given: bool
    output: Output
    guard: bool
    streaming: bool
    hold_frames: int
    ignored: Ignored
    live: bool = False  # text may be added to a segment while it is spoken
    words: bool = False  # their times are wanted, and can be found
    marked_words: bool = False  # subtitles mark each word
    lora: str | None = None  # of a session: the adapter that each utterance looks up when it begins

    @property
    def request(self) -> SpeechRequest:
        """The request in its own voice, or in the first of a dialogue."""
        return self.requests.get(None) or next(iter(self.requests.values()))


class Planner:
    """Turns request bodies into plans. Raises ApiError for an invalid body."""

    def __init__(self, config: ServerConfig, hosts: ModelHosts, voices: VoiceResolver) -> None:
        self.config = config
        self.hosts = hosts
        self.voices = voices
        if config.watermark is None:
            self._watermark = None
        else:
            self._watermark = load(config.watermark)

    async def speech(
        self, body: SpeechBody, id: str, streaming: bool, words: WordTimes
    ) -> SpeechPlan:
        """The plan for a body of POST /v1/audio/speech."""
        granularity = body.split_granularity
        if granularity == "auto" and body.timestamps != "none":
            granularity = "sentence"  # times are those of segments
        return _with_words(await self.text(body, id, granularity, streaming), words)

    async def text(
        self, body: SpeechBody, id: str, granularity: str, streaming: bool
    ) -> SpeechPlan:
        """The plan for the text, or the script, of a body."""
        turns = fields.turns_of(body)
        plan = await self.make(body, turns, id, granularity, streaming)
        fields.note_unused(body, turns, plan.ignored)
        return plan

    def word_times(
        self, body: Shared, requested: bool = True, subtitles: bool = False
    ) -> WordTimes:
        """Decide once per request whether it has the times of words: a plan and its answer
        follow. subtitles: their cues are cut by these times, where they can be found."""
        if not (requested or subtitles):
            return NO_WORD_TIMES
        try:
            host = self.hosts.named(body.model)
            language = fields.language_name(body.language, host.spec.languages)
        except ApiError:  # the plan refuses it
            return NO_WORD_TIMES
        text = ""
        if isinstance(body, SpeechBody):
            text = " ".join([body.input or "", *(turn.text for turn in body.script or [])])
        return WordTimes(True, host.aligners.missing(host.spec, language, text), requested)

    async def live(
        self, body: Shared, id: str, words: WordTimes, voices: Sequence[str] = ()
    ) -> SpeechPlan:
        """A plan without text, for a session whose text arrives later, in segments. voices: of a
        dialogue, whose errors name them as those of a script."""
        turns = [Turn(PROBE, voice, field=f"script[{i}]") for i, voice in enumerate(voices)]
        plan = await self.make(body, turns or [Turn(PROBE)], id, "none", True)
        live = body.split_granularity == "auto" and plan.host.spec.live_text
        if live:
            live = await self._takes_live_text(plan)
        lora = plan.request.lora
        return replace(
            _with_words(plan, words),
            segments=[],
            requests={voice: replace(r, lora=None) for voice, r in plan.requests.items()},
            live=live,
            lora=None if lora is None else lora.name,
        )

    @staticmethod
    async def _takes_live_text(plan: SpeechPlan) -> bool:
        """Whether the model takes text while it speaks, with the parameters of each voice."""
        async with plan.host.in_use() as engines:
            for request in plan.requests.values():
                try:
                    await engines.check(replace(request, live=True))
                except InvalidRequest as e:
                    if e.param != "live":
                        raise
                    return False
        return True

    async def begun(self, plan: SpeechPlan) -> SpeechPlan:
        """A session's plan for an utterance that begins: with the adapter that has its name now,
        which it keeps. ApiError 404 where the adapter has been unloaded."""
        if plan.lora is None:
            return plan
        self.hosts.named(plan.lora)
        async with plan.host.in_use() as engines:
            adapter = engines.adapter(plan.lora)
        requests = {voice: replace(r, lora=adapter) for voice, r in plan.requests.items()}
        return replace(plan, requests=requests)

    async def make(
        self, body: Shared, turns: Sequence[Turn], id: str, granularity: str, streaming: bool
    ) -> SpeechPlan:
        """A plan to speak `turns` with the parameters of `body`."""
        host = self.hosts.named(body.model)
        spec = host.spec
        ignored = Ignored(self.config.strict)
        body = fields.usable(body, spec, ignored)
        speed = own_speed(spec, body.speed)
        shared = {
            **fields.options(body, spec, ignored),
            "language": fields.language(body, spec, ignored),
            "speed": speed,
        }
        if body.model in host.adapters.paths:
            shared["lora"] = body.model
        segments = await self._segments(
            turns, host, granularity, body.cleanup, shared["language"], streaming
        )
        seed = body.seed
        requests: dict[str | None, SpeechRequest] = {}
        for segment in segments:
            if segment.voice not in requests:
                # signs are not cut
                if granularity == "none":
                    text = segment.spoken
                else:
                    text = segment.spoken[: spec.max_text]
                try:
                    request = await self._request(
                        host, fields.in_voice(body, segment.voice), text, seed, shared, ignored
                    )
                except ApiError as e:
                    raise fields.at_turn(e, turns[segment.turn or 0]) from None
                requests[segment.voice] = request
                seed = request.seed  # one that was drawn is that of all voices
        marks = Marks(comment(host.name) if self.config.provenance else None, self._watermark)
        return SpeechPlan(
            id=id,
            host=host,
            segments=segments,
            requests=requests,
            seed_given=body.seed is not None,
            output=replace(self._output(spec, body), speed=body.speed / speed, marks=marks),
            guard=self.config.guard if body.guard is None else body.guard,
            streaming=streaming,
            hold_frames=body.initial_codec_chunk_frames or 0,
            ignored=ignored,
        )

    async def _request(
        self,
        host: ModelHost,
        body: Shared,
        text: str,
        seed: int | None,
        named: Mapping[str, Any],
        ignored: Ignored,
    ) -> SpeechRequest:
        """The request for a text in the voice of the body."""
        voice = await self.voices.resolve(host, body, ignored)
        _note_quiet(body, voice, ignored)
        if voice.continued and not host.spec.instructs_prompt:
            body = fields.without_instructions(body, ignored)
        instructions = self._instructions(body)
        try:
            async with host.in_use() as engines:
                return engines.request(
                    text,
                    voice=voice.name,
                    reference=voice.references,
                    prompt=voice.prompt,
                    speaker_embedding=voice.embedding,
                    seed=seed,
                    instructions=instructions,
                    **named,
                )
        except InvalidRequest as e:
            raise InvalidRequest(fields.field_of(e.param, body, host.spec), e.message) from e

    # -- fields --

    def _instructions(self, body: Shared) -> str | None:
        instructions = body.instructions if body.instructions is not None else body.instruct
        limit = self.config.max_instructions_chars
        if instructions is not None and len(instructions) > limit:
            raise invalid("instructions", f"has {len(instructions)} characters, at most {limit}")
        return instructions or None

    async def _segments(
        self,
        turns: Sequence[Turn],
        host: ModelHost,
        granularity: str,
        cleanup: str | None,
        language: str,
        streaming: bool,
    ) -> list[Segment]:
        if turns[0].field is None:
            name = "input"
        else:
            name = "script"
        chars = sum(len(turn.text) for turn in turns)
        if chars > self.config.max_input_chars:
            raise invalid(name, f"has {chars} characters, at most {self.config.max_input_chars}")
        if not any(turn.text.strip() for turn in turns):
            raise invalid(name, "must not be empty")
        max_chars = self.config.split_chars
        steps = cleanup or self.config.cleanup
        cut = partial(
            dialogue,
            host.spec,
            turns,
            granularity,
            max_chars,
            host.lexicon,
            steps,
            language,
            streaming,
        )
        return await worked(chars, cut)

    def _output(self, spec: ModelInfo, body: Shared) -> Output:
        format = body.response_format or self.config.default_response_format
        rates = CONTAINERS[format].rates
        if body.sample_rate is None:
            usual = self.config.default_sample_rate or spec.sample_rate
            return Output(format, legal_rate(format, usual), body.speed)
        if rates and body.sample_rate not in rates:
            allowed = ", ".join(map(str, rates))
            raise invalid("sample_rate", f"{format} takes {allowed}, got {body.sample_rate}")
        return Output(format, body.sample_rate, body.speed)


def _note_quiet(body: Shared, voice: VoiceInput, ignored: Ignored) -> None:
    if body.ref_audio is not None:
        field = "ref_audio"
    elif body.references:
        field = "references"
    else:
        field = "voice"
    for param, audio in (*((field, r) for r in voice.references), ("prompt_audio", voice.prompt)):
        if audio is not None and audio.recording.peak < QUIET_PEAK:
            ignored.quiet(param)


def _with_words(plan: SpeechPlan, words: WordTimes) -> SpeechPlan:
    if words.requested and words.missing is not None:
        plan.ignored.field("word_timestamps", words.missing)
    return replace(plan, words=words.available, marked_words=words.available and words.requested)

"""From a request body to a plan: every field checked, names resolved, references loaded, text cut into pieces."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from stentor import audio, request
from stentor.audio import Reference
from stentor.errors import InvalidRequest
from stentor.models.base import ModelSpec
from stentor.server.audio.encode import CONTAINERS, legal_rate
from stentor.server.config import ServerConfig
from stentor.server.errors import ApiError
from stentor.server.model_hosts import ModelHost, ModelHosts
from stentor.server.schemas import ALIASES, Shared, SpeechBody, VoiceId
from stentor.server.speech import sentences
from stentor.server.speech.sentences import Segment
from stentor.server.voices.references import Audio, References
from stentor.server.voices.store import PLACEHOLDERS, Voice, VoiceStore
from stentor.silence import REFERENCE_PEAK

PROBE = "Hello."  # stands for text that is still to come when parameters are checked
NOT_OPTIONS = {"user", "stream_options"}  # sent by OpenAI-style proxies; they ask for nothing


@dataclass(frozen=True)
class Output:
    """How audio leaves: container, Hz, speed."""

    format: str
    rate: int
    speed: float


@dataclass(frozen=True, eq=False)
class SpeechPlan:
    """One speech request, ready to be spoken. `arguments` go to TTS.request as they are."""

    id: str
    host: ModelHost
    segments: list[Segment]
    arguments: Mapping[str, Any]
    references: list[Reference]
    prompt: Reference | None
    continues: bool  # later pieces take their voice from the one before
    seed: int
    seed_given: bool
    output: Output
    guard: bool
    streaming: bool
    hold_frames: int
    live: bool = False  # text goes into a piece while it is spoken


class Planner:
    """Turns bodies into plans."""

    def __init__(self, config: ServerConfig, hosts: ModelHosts, voices: VoiceStore, references: References) -> None:
        self.config, self.hosts, self.voices, self.references = config, hosts, voices, references
        self._aliases = config.aliases

    async def speech(self, body: SpeechBody, id: str) -> SpeechPlan:
        """ApiError says what is wrong with a body of POST /v1/audio/speech."""
        _no_words(body.word_timestamps)
        granularity = body.split_granularity
        if body.timestamps != "none" and granularity == "auto":
            granularity = "sentence"
        asked = body.stream or body.stream_format is not None
        streaming = asked or (self.config.stream_by_default and body.timestamps == "none")
        return await self.make(body, body.input, id, granularity, streaming)

    async def live(self, body: Shared, id: str, word_timestamps: bool) -> SpeechPlan:
        """A plan without text: what will be spoken comes later, in pieces."""
        _no_words(word_timestamps)
        plan = await self.make(body, PROBE, id, "none", True)
        continues = _continues(plan.host.spec, plan.arguments, plan.references)
        goes_on = body.split_granularity == "auto" and plan.host.spec.live_text
        live = goes_on and await asyncio.get_running_loop().run_in_executor(plan.host.pool, _accepts_live_text, plan)
        return replace(plan, segments=[], continues=continues, live=live)

    async def make(self, body: Shared, text: str, id: str, granularity: str, streaming: bool) -> SpeechPlan:
        """A plan to speak `text` with the parameters of `body`."""
        host = self.hosts.named(body.model)
        spec = host.tts.spec
        options = self._options(spec, body)
        self._check_task(spec, body)
        voice, stored, vector = await self._voice(host, body)
        given = await self._references(host, body)
        if body.speaker_embedding is not None and given:
            raise ApiError(400, "speaker_embedding: stands for ref_audio: give one of them", param="speaker_embedding")
        if body.speaker_embedding is not None or given:
            stored, vector = [], body.speaker_embedding
        references = given or stored
        prompt = await self._prompt(host, body)
        instructions = self._instructions(body)
        arguments = {"voice": voice, "language": _language(body.language), "instructions": instructions, **options}
        arguments["speaker_embedding"] = vector
        segments = self._segments(text, spec, granularity)
        seed = secrets.randbelow(2**31) if body.seed is None else body.seed
        request.build(spec, segments[0].text, options=options, seed=seed, **{k: arguments[k] for k in _NAMED})
        return SpeechPlan(
            id=id,
            host=host,
            segments=segments,
            arguments=arguments,
            references=references,
            prompt=prompt,
            continues=len(segments) > 1 and _continues(spec, arguments, references),
            seed=seed,
            seed_given=body.seed is not None,
            output=self._output(spec, body),
            guard=self.config.guard if body.guard is None else body.guard,
            streaming=streaming,
            hold_frames=body.initial_codec_chunk_frames or 0,
        )

    # -- fields --

    def _options(self, spec: ModelSpec, body: Shared) -> dict[str, Any]:
        """The family's own options, given at the top level or in extra_params, under any engine's name."""
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
            elif value is not None and name not in NOT_OPTIONS and not self.config.ignore_unknown_fields:
                taken = ", ".join(sorted(spec.options))
                raise ApiError(
                    400, f"{name}: is not a parameter of this {spec.family} model; its own are {taken}", param=name
                )
        return options

    @staticmethod
    def _check_task(spec: ModelSpec, body: Shared) -> None:
        able = {"CustomVoice": bool(spec.voices), "VoiceDesign": spec.takes_instructions, "Base": spec.takes_reference}
        if body.task_type is not None and not able[body.task_type]:
            can = ", ".join(k for k, v in able.items() if v) or "none"
            raise ApiError(
                400, f"task_type: this model cannot do {body.task_type}; it can do: {can}", param="task_type"
            )

    async def _voice(self, host: ModelHost, body: Shared) -> tuple[str | None, list[Reference], list[float] | None]:
        """A built-in voice's name, or the reference or the speaker embedding of an uploaded one."""
        given = body.voice.id if isinstance(body.voice, VoiceId) else body.voice
        if given is not None and body.speaker is not None and given != body.speaker:
            raise ApiError(400, "speaker: is another name for voice; give one of them", param="speaker")
        given = (given if given is not None else body.speaker) or "default"
        name = self._aliases.get(given.lower(), given).strip()
        if name.lower() in PLACEHOLDERS:
            return None, [], None
        if name.lower() in host.spec.voices:
            return name.lower(), [], None
        voice = await asyncio.to_thread(self.voices.get, name)
        if voice is not None and not host.spec.takes_reference:
            raise ApiError(400, "voice: this model speaks only with its own voices", param="voice")
        if voice is not None and voice.kind == "embedding":
            return None, [], await self._embedding(host.spec, voice.name)
        stored = None if voice is None else await self._stored(voice)
        if stored is not None:
            return None, [stored], None
        uploaded = await asyncio.to_thread(self.voices.names)
        known = ", ".join([*PLACEHOLDERS[:1], *host.spec.voices, *uploaded])
        raise ApiError(400, f"voice: {name[:80]!r} is not known; known: {known}", param="voice", code="voice_not_found")

    async def _embedding(self, spec: ModelSpec, name: str) -> list[float]:
        vector = await asyncio.to_thread(self.voices.embedding, name)
        held = 0 if vector is None else len(vector)
        if vector is None or held != spec.speaker_size:
            takes = f"takes {spec.speaker_size}" if spec.speaker_size else "takes no speaker embedding"
            raise ApiError(
                400, f"voice: {name!r} is a speaker embedding of {held} numbers; this model {takes}", param="voice"
            )
        numbers: list[float] = vector.tolist()
        return numbers

    async def _stored(self, voice: Voice) -> Reference | None:
        key = f"voice:{voice.name}:{self.voices.identity(voice.name)}"
        samples = self.references.cache.get(key) or await asyncio.to_thread(self.voices.audio, voice.name)
        if samples is None:
            return None
        self.references.cache.put(key, samples)
        return Reference(samples, voice.text)

    async def _references(self, host: ModelHost, body: Shared) -> list[Reference]:
        """What is to be cloned: ref_audio with ref_text, or the items of references."""
        found, param = _sources(body)
        if not found:
            return []
        if not host.spec.takes_reference:
            raise ApiError(400, f"{param}: this {host.spec.family} model takes none", param=param)
        if len(found) > host.spec.max_references:
            most = host.spec.max_references
            raise ApiError(400, f"{param}: this model takes at most {most}, got {len(found)}", param=param)
        texts = [None if body.x_vector_only_mode else text or None for _, text in found]
        return [
            Reference(await self._audio(host, source, param), text)
            for (source, _), text in zip(found, texts, strict=True)
        ]

    async def _prompt(self, host: ModelHost, body: Shared) -> Reference | None:
        if body.prompt_audio is None:
            if body.prompt_text is not None:
                raise ApiError(400, "prompt_text: needs prompt_audio", param="prompt_text")
            return None
        if not host.spec.takes_prompt:
            raise ApiError(400, f"prompt_audio: this {host.spec.family} model takes none", param="prompt_audio")
        return Reference(await self._audio(host, body.prompt_audio, "prompt_audio"), body.prompt_text or None)

    async def _audio(self, host: ModelHost, source: str, param: str) -> Audio:
        shortest, longest = host.spec.reference_seconds
        loop = asyncio.get_running_loop()

        def run(f: Any, *args: Any) -> Any:
            return loop.run_in_executor(host.pool, f, *args)

        samples, rate = await self.references.load(source, param, longest, run)
        if len(samples) < shortest * rate:
            raise ApiError(
                400, f"{param}: is {len(samples) / rate:.2f} s long, must be {shortest:g} to {longest:g} s", param=param
            )
        return samples, rate

    def _instructions(self, body: Shared) -> str | None:
        given = body.instructions if body.instructions is not None else body.instruct
        most = self.config.max_instructions_chars
        if given is not None and len(given) > most:
            raise ApiError(400, f"instructions: has {len(given)} characters, at most {most}", param="instructions")
        return given or None

    def _segments(self, text: str, spec: ModelSpec, granularity: str) -> list[Segment]:
        if len(text) > self.config.max_input_chars:
            raise ApiError(
                400, f"input: has {len(text)} characters, at most {self.config.max_input_chars}", param="input"
            )
        if not text.strip():
            raise ApiError(400, "input: must not be empty", param="input")
        return sentences.split(text, min(self.config.split_chars, spec.max_text), granularity)

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


def _accepts_live_text(plan: SpeechPlan) -> bool:
    """Whether the model takes text while it speaks with these parameters. ApiError if it takes none with them."""
    tts = plan.host.tts
    ask = {"reference": plan.references, "prompt": plan.prompt, "seed": plan.seed, **plan.arguments}
    try:
        tts.prompt(tts.request(PROBE, live=True, **ask))
    except InvalidRequest as e:
        if e.param != "live":
            raise
        return False
    return True


def _continues(spec: ModelSpec, arguments: Mapping[str, Any], references: list[Reference]) -> bool:
    """Whether a later piece can take its voice from the one before, and needs to."""
    if arguments["voice"] is not None or arguments["speaker_embedding"] is not None:
        return False
    return spec.takes_prompt or (spec.takes_reference and not references)


def _sources(body: Shared) -> tuple[list[tuple[str, str | None]], str]:
    """(audio, transcript) of each reference, and the field that they came in."""
    audios = [body.ref_audio] if isinstance(body.ref_audio, str) else body.ref_audio or []
    texts: list[str | None] = [body.ref_text] if isinstance(body.ref_text, str) else [*(body.ref_text or [])]
    if body.references is None:
        if texts and len(texts) != len(audios):
            raise ApiError(
                400, f"ref_text: is for {len(texts)} references, ref_audio has {len(audios)}", param="ref_text"
            )
        return list(zip(audios, texts or [None] * len(audios), strict=True)), "ref_audio"
    if audios or texts:
        raise ApiError(400, "references: cannot be combined with ref_audio and ref_text", param="references")
    found = [(r.audio or r.audio_path or r.data, r.text) for r in body.references]
    if any(source is None for source, _ in found):
        raise ApiError(400, "references: each needs audio", param="references")
    return [(source, text) for source, text in found if source is not None], "references"


_NAMED = ("voice", "language", "instructions", "speaker_embedding")


def _language(given: str | None) -> str:
    return (given or "auto").strip().lower() or "auto"


def tail_reference(samples: Any, spec: ModelSpec, text: str) -> Reference | None:
    """The end of what was just spoken as a reference for what follows; None if it is too short or too long for one."""
    rate = max(1000, spec.sample_rate)
    shortest, longest = spec.reference_seconds
    if not shortest * spec.sample_rate <= len(samples) <= longest * spec.sample_rate:
        return None
    if abs(samples).max(initial=0.0) < REFERENCE_PEAK:
        return None
    return Reference((audio.resample(samples, spec.sample_rate, rate), rate), text)

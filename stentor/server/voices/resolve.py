"""Voice that a request asks for: a built-in one, an uploaded one, reference audio or a speaker embedding."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from stentor.client_names import OPENAI_VOICES, is_elevenlabs_voice, openai_voice, own_voice
from stentor.models.info import ModelInfo, ReferenceAudio
from stentor.server.config import ServerConfig
from stentor.server.errors import invalid
from stentor.server.ignored import Ignored
from stentor.server.limits import LIMITS
from stentor.server.schemas import Shared, VoiceId
from stentor.server.voices.known import KnownVoices
from stentor.server.voices.recordings import Recordings
from stentor.server.voices.voice import PLACEHOLDERS, Voice

if TYPE_CHECKING:
    from stentor.server.model_hosts import ModelHost


@dataclass(frozen=True, eq=False)
class VoiceInput:
    """A request's voice in the arguments of TTS.request. Reference audio is as the model takes it."""

    name: str | None = None
    references: list[ReferenceAudio] = field(default_factory=list)
    prompt: ReferenceAudio | None = None
    embedding: list[float] | None = None

    @property
    def continued(self) -> bool:
        """Whether there is audio with its text, which some models continue."""
        return self.prompt is not None or any(r.text for r in self.references)


class VoiceResolver:
    """Finds what a body names: aliases, stored voices, inline and remote audio."""

    def __init__(self, config: ServerConfig, known: KnownVoices, recordings: Recordings) -> None:
        self.voices, self.known, self.recordings = known.voices, known, recordings
        self._aliases = config.aliases

    async def resolve(self, host: ModelHost, body: Shared, ignored: Ignored) -> VoiceInput:
        """ApiError names the field that is wrong. A name that says nothing to this model goes to `ignored`."""
        voice = await self._voice(host, body, ignored)
        given = await self._references(host, body)
        if body.speaker_embedding is not None and given:
            raise invalid("speaker_embedding", "stands for ref_audio: give one of them")
        if body.speaker_embedding is not None or given:  # what the request brings wins over a stored voice
            voice = VoiceInput(voice.name, given, embedding=body.speaker_embedding)
        return replace(voice, prompt=await self._prompt(host, body))

    async def _voice(self, host: ModelHost, body: Shared, ignored: Ignored) -> VoiceInput:
        """A built-in voice's name, or the reference or the speaker embedding of an uploaded one."""
        given = body.voice.id if isinstance(body.voice, VoiceId) else body.voice
        if given is not None and body.speaker is not None and given != body.speaker:
            ignored.field("speaker", "is another name for voice; give one of them")
        given = (given if given is not None else body.speaker) or "default"
        name = self._aliases.get(given.lower(), given).strip()
        if name.lower() in PLACEHOLDERS:
            return VoiceInput()
        own = own_voice(name, host.spec.voices)
        if own is not None:
            return VoiceInput(own)
        voice = await self.known.get(name)
        unknown = voice is None or not host.spec.takes_reference
        if unknown and name.lower() in OPENAI_VOICES:
            return VoiceInput(openai_voice(name, host.spec.voices))
        if unknown and (why := _needless(host.spec, body, name)) is not None:
            ignored.field("speaker" if body.voice is None else "voice", why)
            return VoiceInput()
        if voice is not None and not host.spec.takes_reference:
            raise invalid("voice", f"{host.name} speaks only with its own voices")
        found = None if voice is None else await self._uploaded(host, voice)
        if found is not None:
            return found
        uploaded, count = await asyncio.to_thread(self.voices.some_names, LIMITS.known_voices)
        more = [f"and {count - len(uploaded)} more"] if count > len(uploaded) else []
        known = ", ".join([*PLACEHOLDERS[:1], *host.spec.voices, *uploaded, *more])
        raise invalid("voice", f"{name[:80]!r} is not known; known: {known}", "voice_not_found")

    async def _uploaded(self, host: ModelHost, voice: Voice) -> VoiceInput | None:
        """An uploaded voice, or the one that has just replaced it. None: it has been deleted."""
        if voice.kind == "embedding":
            return VoiceInput(embedding=await self._embedding(host, voice.name))
        stored = await self.recordings.stored(host, voice)
        if stored is not None:
            return VoiceInput(references=[ReferenceAudio(stored, voice.text)])
        self.known.forget(voice.name)
        now = await self.known.get(voice.name)
        return None if now is None or now.identity == voice.identity else await self._uploaded(host, now)

    async def _embedding(self, host: ModelHost, name: str) -> list[float]:
        vector, size = await asyncio.to_thread(self.voices.embedding, name), host.spec.speaker_size
        held = 0 if vector is None else len(vector)
        if vector is None or held != size:
            takes = f"{host.name} takes {size}" if size else f"{host.name} takes no speaker embedding"
            raise invalid("voice", f"{name!r} is a speaker embedding of {held} numbers; {takes}")
        numbers: list[float] = vector.tolist()
        return numbers

    async def _references(self, host: ModelHost, body: Shared) -> list[ReferenceAudio]:
        """References to clone: ref_audio with ref_text, or the items of references."""
        found, param = _sources(body)
        if not found or not host.spec.takes_reference:  # an empty one: any other was named as ignored
            return []
        if len(found) > host.spec.max_references:
            limit = host.spec.max_references
            raise invalid(param, f"{host.name} takes at most {limit}, got {len(found)}")
        texts = [None if body.x_vector_only_mode else text or None for _, text in found]
        return [
            ReferenceAudio(await self.recordings.named(host, source, param), text)
            for (source, _), text in zip(found, texts, strict=True)
        ]

    async def _prompt(self, host: ModelHost, body: Shared) -> ReferenceAudio | None:
        if body.prompt_audio is None:
            if body.prompt_text is not None:
                raise invalid("prompt_text", "needs prompt_audio")
            return None
        if not host.spec.takes_prompt:
            raise invalid("prompt_audio", f"{host.name} takes none")
        recording = await self.recordings.named(host, body.prompt_audio, "prompt_audio")
        return ReferenceAudio(recording, body.prompt_text or None)


def _needless(spec: ModelInfo, body: Shared, name: str) -> str | None:
    """Why a name that is not known need not be. None: it must be known."""
    if body.ref_audio or body.references or body.speaker_embedding is not None:
        return "is not known, and the request brings a voice"
    if is_elevenlabs_voice(name):
        return "is a voice of ElevenLabs: the model's default voice speaks"
    if not spec.voices and not spec.takes_reference:
        return "this model has one voice"
    if not spec.voices and body.voice is None:
        return "this model has no voices of its own, and none of this name was uploaded"
    return None


def _sources(body: Shared) -> tuple[list[tuple[str, str | None]], str]:
    """(audio, transcript) of each reference, and the field that they came in."""
    audios = [body.ref_audio] if isinstance(body.ref_audio, str) else body.ref_audio or []
    texts: list[str | None] = [body.ref_text] if isinstance(body.ref_text, str) else [*(body.ref_text or [])]
    if body.references is None:
        if texts and len(texts) != len(audios):
            raise invalid("ref_text", f"is for {len(texts)} references, ref_audio has {len(audios)}")
        return list(zip(audios, texts or [None] * len(audios), strict=True)), "ref_audio"
    if audios or texts:
        raise invalid("references", "cannot be combined with ref_audio and ref_text")
    found = [(r.audio or r.audio_path or r.ref_audio or r.data, r.text or r.ref_text) for r in body.references]
    if any(source is None for source, _ in found):
        raise invalid("references", "each needs audio")
    return [(source, text) for source, text in found if source is not None], "references"

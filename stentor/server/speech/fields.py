"""Fields of a request that its model uses: its turns, its language, the options of the family. The
others are noted, and the request is served without them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from stentor.models.info import ModelInfo, ReferenceAudio
from stentor.server.errors import ApiError, invalid
from stentor.server.limits import LIMITS
from stentor.server.schemas import ALIASES, Ignored, Shared, SpeechBody, VoiceId
from stentor.server.voices.recordings import KnownVoices, Recordings
from stentor.server.voices.voice import PLACEHOLDERS, Voice
from stentor.speech.client_names import OPENAI_VOICES, is_elevenlabs_voice, openai_voice, own_voice
from stentor.speech.script import Turn, marked, scripted

if TYPE_CHECKING:
    from stentor.server.model_hosts import ModelHost

NOT_OPTIONS = {"user", "stream_options"}  # sent by OpenAI-style proxies, without a meaning here
OF_A_VOICE = (
    "voice",
    "speaker",
    "ref_audio",
    "ref_text",
    "references",
    "speaker_embedding",
    "prompt_audio",
    "prompt_text",
)
"""Fields that say which voice speaks."""
# ISO 639 codes (one and three letters apart from their English names), for languages that speech
# models know
CODES = {
    "ar": "arabic",
    "bn": "bengali",
    "bg": "bulgarian",
    "ca": "catalan",
    "zh": "chinese",
    "cmn": "chinese",
    "zho": "chinese",
    "mandarin": "chinese",
    "yue": "cantonese",
    "hr": "croatian",
    "cs": "czech",
    "da": "danish",
    "nl": "dutch",
    "en": "english",
    "eng": "english",
    "et": "estonian",
    "fi": "finnish",
    "fr": "french",
    "fra": "french",
    "de": "german",
    "deu": "german",
    "el": "greek",
    "he": "hebrew",
    "hi": "hindi",
    "hu": "hungarian",
    "id": "indonesian",
    "it": "italian",
    "ita": "italian",
    "ja": "japanese",
    "jpn": "japanese",
    "kk": "kazakh",
    "ko": "korean",
    "kor": "korean",
    "lv": "latvian",
    "lt": "lithuanian",
    "ms": "malay",
    "no": "norwegian",
    "nb": "norwegian",
    "fa": "persian",
    "pl": "polish",
    "pt": "portuguese",
    "por": "portuguese",
    "ro": "romanian",
    "ru": "russian",
    "rus": "russian",
    "sr": "serbian",
    "sk": "slovak",
    "sl": "slovenian",
    "es": "spanish",
    "spa": "spanish",
    "sw": "swahili",
    "sv": "swedish",
    "tl": "tagalog",
    "ta": "tamil",
    "te": "telugu",
    "th": "thai",
    "tr": "turkish",
    "uk": "ukrainian",
    "ur": "urdu",
    "vi": "vietnamese",
    "cy": "welsh",
}


def usable(body: Shared, spec: ModelInfo, ignored: Ignored) -> Shared:
    """The body without what its model cannot use. ApiError in a strict server."""
    dropped: dict[str, None] = {}
    for name, why in _unused(body, spec):
        ignored.field(name, why)
        dropped[name] = None
    for i, item in enumerate(body.references or []):
        for name in item.model_extra or {}:
            ignored.field(f"references[{i}].{name}", "is not known")
    return body.model_copy(update=dropped)


def _unused(body: Shared, spec: ModelInfo) -> Iterator[tuple[str, str]]:
    """Fields of a request that are not used, with the reason."""
    able = {
        "CustomVoice": bool(spec.voices),
        "VoiceDesign": spec.takes_instructions,
        "Base": spec.takes_reference,
    }
    if body.task_type is not None and not able[body.task_type]:
        yield (
            "task_type",
            f"this model can do: {', '.join(k for k, v in able.items() if v) or 'none of them'}",
        )
    for name in ("instructions", "instruct"):
        if getattr(body, name) and not spec.takes_instructions:
            yield name, "this model takes none"
    for name in ("ref_audio", "ref_text", "references"):
        if getattr(body, name) and not spec.takes_reference:
            yield name, "this model has only its own voice"
    if body.ref_text and not body.ref_audio and spec.takes_reference and body.references is None:
        yield "ref_text", "needs ref_audio"
    if body.speaker_embedding is not None and not spec.speaker_size:
        yield "speaker_embedding", "this model takes none"
    if body.prompt_audio is not None and not spec.takes_prompt:
        yield "prompt_audio", "this model takes none"
    if body.prompt_text and (body.prompt_audio is None or not spec.takes_prompt):
        yield "prompt_text", "needs prompt_audio" if spec.takes_prompt else "this model takes none"


def without_instructions(body: Shared, ignored: Ignored) -> Shared:
    """The body for a model that takes none beside audio that it continues."""
    for name in ("instructions", "instruct"):
        if getattr(body, name):
            ignored.field(name, "this model takes none beside audio with its text")
    return body.model_copy(update={"instructions": None, "instruct": None})


def language(body: Shared, spec: ModelInfo, ignored: Ignored) -> str:
    """The model's name of the language, or "auto"."""
    code = language_name(body.language, spec.languages)
    if code is None:
        if spec.languages:
            allowed = f"known: auto, {', '.join(spec.languages)}"
        else:
            allowed = "this model detects the language"
        ignored.field("language", allowed)
    return code or "auto"


def options(body: Shared, spec: ModelInfo, ignored: Ignored) -> dict[str, Any]:
    """The family's own options under any engine's name. The top level wins over extra_params and
    stage_params."""
    values: dict[str, Any] = {}
    for path, name, value in _given(body, spec):
        option = ALIASES.get(name, name)
        if value is None or name in NOT_OPTIONS:
            continue
        if option in spec.options:
            values[option] = value
        else:
            allowed = ", ".join(sorted(spec.options))
            ignored.field(path + name, f"is not a parameter of this model; its own are {allowed}")
    return values


def field_of(param: str, body: Shared, spec: ModelInfo) -> str:
    """The name of a family's option in a request body."""
    names = {
        ALIASES.get(name, name): path + name
        for path, name, value in _given(body, spec)
        if value is not None
    }
    return names.get(param, param)


def _given(body: Shared, spec: ModelInfo) -> Iterator[tuple[str, str, Any]]:
    """(where it stands if not at the top, name, value) of everything that may be an option. The
    last counts."""
    for stage, values in (body.stage_params or {}).items():
        yield from ((f"stage_params.{stage}.", k, v) for k, v in values.items())
    yield from (("", k, v) for k, v in (body.extra_params or {}).items())
    yield from (("", k, v) for k, v in (body.model_extra or {}).items())
    yield "", "max_new_tokens", body.max_new_tokens
    # else it drops the transcript
    if "x_vector_only" in spec.options or not (body.ref_audio or body.references):
        yield "", "x_vector_only_mode", body.x_vector_only_mode or None


def turns_of(body: SpeechBody) -> list[Turn]:
    """The turns of a body. ApiError or InvalidRequest names the field that is wrong."""
    if body.script is None:
        if body.input is None:
            raise invalid("input", "is required")
        return marked(body.input)
    if body.input is not None:
        raise invalid("script", "stands for input: give one of them")
    return scripted([{"voice": t.voice, "text": t.text, "pause": t.pause} for t in body.script])


def note_unused(body: SpeechBody, turns: Sequence[Turn], ignored: Ignored) -> None:
    """Name what of a dialogue is not used: fields of turns that nobody knows, and the request's own
    voice where each turn has another. ApiError in a strict server."""
    for i, turn in enumerate(body.script or []):
        for name in turn.model_extra or {}:
            ignored.field(f"script[{i}].{name}", "is not known")
    if all(turn.voice is not None for turn in turns):
        for name in OF_A_VOICE:
            if getattr(body, name):
                ignored.field(name, "every turn has its own voice")


def in_voice(body: Shared, voice: str | None) -> Shared:
    """The body for turns in a voice of that name. None: in its own."""
    if voice is None:
        return body
    return body.model_copy(update={**dict.fromkeys(OF_A_VOICE), "voice": voice})


def at_turn(error: ApiError, turn: Turn) -> ApiError:
    """An error of the voice of a turn, which names the field that the turn has it in."""
    if error.param != "voice" or turn.voice is None:
        return error
    return error.renamed("input" if turn.field is None else turn.named("voice"))


def language_name(given: str | None, languages: Sequence[str]) -> str | None:
    """The model's name of a language, "auto" for none, None where the model has no such
    language."""
    name = (given or "auto").strip().lower() or "auto"
    if name == "auto" or name in languages:
        return name
    first = name.replace("_", "-").replace(" ", "-").split("-")[0]  # "en-us", "english (uk)"
    full_name = CODES.get(first, first)
    if full_name in languages:
        return full_name
    return None


def codes() -> list[str]:
    """The codes of two letters of all languages that are known here."""
    return sorted({code_of(name) for name in CODES.values()})


def code_of(language: str) -> str:
    """The shortest code of a language by its English name, in any case: "en". The name itself where
    none is known."""
    return min(
        (code for code, name in CODES.items() if name == language.lower()),
        key=len,
        default=language,
    )


@dataclass(frozen=True, eq=False)
class VoiceInput:
    """A request's voice in the arguments of TTS.request. Reference audio is as the model takes
    it."""

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

    def __init__(
        self, aliases: Mapping[str, str], known: KnownVoices, recordings: Recordings
    ) -> None:
        """aliases: voices by their other names in lower case."""
        self.voices = known.voices
        self.known = known
        self.recordings = recordings
        self._aliases = aliases

    async def resolve(self, host: ModelHost, body: Shared, ignored: Ignored) -> VoiceInput:
        """ApiError names the field that is wrong. A name without meaning to this model goes to
        `ignored`."""
        voice = await self._voice(host, body, ignored)
        references = await self._references(host, body)
        if body.speaker_embedding is not None and references:
            raise invalid("speaker_embedding", "stands for ref_audio: give one of them")
        # what the request brings wins over a stored voice
        if body.speaker_embedding is not None or references:
            voice = VoiceInput(voice.name, references, embedding=body.speaker_embedding)
        return replace(voice, prompt=await self._prompt(host, body))

    async def _voice(self, host: ModelHost, body: Shared, ignored: Ignored) -> VoiceInput:
        """A built-in voice's name, or the reference or the speaker embedding of an uploaded one."""
        name_field = body.voice.id if isinstance(body.voice, VoiceId) else body.voice
        if name_field is not None and body.speaker is not None and name_field != body.speaker:
            ignored.field("speaker", "is another name for voice; give one of them")
        name_field = (name_field if name_field is not None else body.speaker) or "default"
        name = self._aliases.get(name_field.lower(), name_field).strip()
        if name.lower() in PLACEHOLDERS:
            return VoiceInput()
        built_in = own_voice(name, host.spec.voices, host.spec.voice_mixes)
        if built_in is not None:
            return VoiceInput(built_in)
        voice = await self.known.get(name)
        unknown = voice is None or not host.spec.takes_reference
        if unknown and name.lower() in OPENAI_VOICES:
            return VoiceInput(openai_voice(name, host.spec.voices))
        if unknown and (why := _needless(host.spec, body, name)) is not None:
            ignored.field("speaker" if body.voice is None else "voice", why)
            return VoiceInput()
        if voice is not None and not host.spec.takes_reference:
            raise invalid("voice", f"{host.name} speaks only with its own voices")
        if voice is None:
            uploaded_voice = None
        else:
            uploaded_voice = await self._uploaded(host, voice)
        if uploaded_voice is not None:
            return uploaded_voice
        uploaded, count = await asyncio.to_thread(self.voices.some_names, LIMITS.known_voices)
        if count > len(uploaded):
            more = [f"and {count - len(uploaded)} more"]
        else:
            more = []
        names = ", ".join([*PLACEHOLDERS[:1], *host.spec.voices, *uploaded, *more])
        raise invalid("voice", f"{name[:80]!r} is not known; known: {names}", "voice_not_found")

    async def _uploaded(self, host: ModelHost, voice: Voice) -> VoiceInput | None:
        """An uploaded voice, or the one that has just replaced it. None: it has been deleted."""
        if voice.kind == "embedding":
            return VoiceInput(embedding=await self._embedding(host, voice.name))
        stored = await self.recordings.stored(host, voice)
        if stored is not None:
            return VoiceInput(references=[ReferenceAudio(stored, voice.text)])
        self.known.forget(voice.name)
        now = await self.known.get(voice.name)
        if now is None or now.identity == voice.identity:
            return None
        return await self._uploaded(host, now)

    async def _embedding(self, host: ModelHost, name: str) -> list[float]:
        vector = await asyncio.to_thread(self.voices.embedding, name)
        size = host.spec.speaker_size
        if vector is None:
            length = 0
        else:
            length = len(vector)
        if vector is None or length != size:
            if size:
                takes = f"{host.name} takes {size}"
            else:
                takes = f"{host.name} takes no speaker embedding"
            raise invalid("voice", f"{name!r} is a speaker embedding of {length} numbers; {takes}")
        numbers: list[float] = vector.tolist()
        return numbers

    async def _references(self, host: ModelHost, body: Shared) -> list[ReferenceAudio]:
        """References to clone: ref_audio with ref_text, or the items of references."""
        sources, param = _sources(body)
        # an empty one: any other was named as ignored
        if not sources or not host.spec.takes_reference:
            return []
        if len(sources) > host.spec.max_references:
            limit = host.spec.max_references
            raise invalid(param, f"{host.name} takes at most {limit}, got {len(sources)}")
        texts = [None if body.x_vector_only_mode else text or None for _, text in sources]
        return [
            ReferenceAudio(await self.recordings.named(host, source, param), text)
            for (source, _), text in zip(sources, texts, strict=True)
        ]

    async def _prompt(self, host: ModelHost, body: Shared) -> ReferenceAudio | None:
        if body.prompt_audio is None:  # as `fields.usable` has it for a model that takes none
            if body.prompt_text is not None:
                raise invalid("prompt_text", "needs prompt_audio")
            return None
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
    if isinstance(body.ref_audio, str):
        audios = [body.ref_audio]
    else:
        audios = body.ref_audio or []
    texts: list[str | None] = (
        [body.ref_text] if isinstance(body.ref_text, str) else [*(body.ref_text or [])]
    )
    if body.references is None:
        if texts and len(texts) != len(audios):
            raise invalid(
                "ref_text", f"is for {len(texts)} references, ref_audio has {len(audios)}"
            )
        return list(zip(audios, texts or [None] * len(audios), strict=True)), "ref_audio"
    if audios or texts:
        raise invalid("references", "cannot be combined with ref_audio and ref_text")
    sources = [
        (r.audio or r.audio_path or r.ref_audio or r.data, r.text or r.ref_text)
        for r in body.references
    ]
    if any(source is None for source, _ in sources):
        raise invalid("references", "each needs audio")
    return [(source, text) for source, text in sources if source is not None], "references"

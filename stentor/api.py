"""The Python API: `TTS` generates speech."""

from __future__ import annotations

import logging
import weakref
from collections.abc import AsyncGenerator, AsyncIterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, overload

import numpy as np

from stentor import request
from stentor.align.aligner import Aligner, Aligners
from stentor.arguments import shown
from stentor.audio import Reference
from stentor.config import EngineConfig, path_of
from stentor.engine.engine import Engine
from stentor.engine.opening import Wanted, open_model
from stentor.engine.preparation import Preparation
from stentor.engine.seeds import random_seed
from stentor.engine.stream import AudioStream, Chunk
from stentor.errors import BatchError, CheckpointError, InvalidRequest, StentorError
from stentor.models.base import ModelSpec, Prompt, VoiceSource
from stentor.models.info import Adapter, ReferenceAudio, SpeechRequest
from stentor.models.model_names import DEFAULT_VOICE
from stentor.output.marks import Marks
from stentor.output.render import Output
from stentor.output.watermark import Make
from stentor.speech.opening import OpeningStream, opens
from stentor.speech.result import Speech
from stentor.speech.script import Turn, dialogue, marked, reading, scripted
from stentor.speech.spoken_text import SpeechStream, SpokenText, speak, speak_in_thread
from stentor.text.cleanup import ALL
from stentor.text.front_end import Check, proceed
from stentor.text.lexicon import Lexicon
from stentor.text.sentences import GRANULARITIES, MAX_CHARS

if TYPE_CHECKING:
    from stentor.speech.live_text import TextFeed

log = logging.getLogger("stentor.speech")


class TTS:
    """A loaded model and its engine. Thread-safe. Use `with` or call `close()`.

    model: a local directory, a Hugging Face Hub id, `dummy:NAME`, or None for the built-in voice.
    device: "auto", "cpu", "cuda", "cuda:N". dtype: "auto" (float32 on a CPU, the checkpoint's own
    on CUDA), "float32", "bfloat16", "float16", or "float64" (for checks). quantization: weights of
    the language models in "int8" or "fp8", or "auto" (as the checkpoint has them). runtime:
    "onnxruntime" for a checkpoint with graphs, such as the built-in voice, on a CPU; "torch" for
    every other; "auto" takes the first that serves the other arguments. There "auto" as dtype means
    products of 8 bits. name: what errors call the model, by default `model`. lexicon:
    pronunciations of words (docs/python_api.md): a mapping or the path of a YAML file. aligner:
    finds word times for models without their own, as `package:function` or the function itself
    (docs/word_times.md). Without it, English words are found. loras: LoRA adapters that requests
    may name (`lora=`), each a file or folder of weights, by name. provenance: mark files as made by
    a machine, in their metadata. watermark: makes what marks samples, as `package:function` or the
    function itself (docs/provenance.md). options: fields of EngineConfig (max_num_seqs, memory_gb,
    threads, ...) and the family's load options, such as `lora` (weights to merge) and `flow_steps`
    (the default of requests). docs/models lists them.
    """

    def __init__(
        self,
        model: str | Path | None = None,
        *,
        device: str = "auto",
        dtype: str = "auto",
        quantization: str = "auto",
        runtime: str = "auto",
        name: str | None = None,
        lexicon: Lexicon | Mapping[object, object] | str | Path | None = None,
        aligner: str | Aligner | None = None,
        loras: Mapping[str, str | Path] | None = None,
        provenance: bool = False,
        watermark: str | Make | None = None,
        **options: Any,
    ) -> None:
        _check_types(model, name, lexicon, loras, provenance)
        self.lexicon = Lexicon.of(lexicon)
        self._opening: weakref.WeakSet[OpeningStream] = weakref.WeakSet()
        self.aligners = Aligners(aligner)
        self._marks = Marks.of(provenance, watermark, model)
        config = EngineConfig(
            **{k: options.pop(k) for k in EngineConfig.__dataclass_fields__ if k in options}
        )
        self.name = name or ("the built-in voice" if model is None else str(model))
        request = Wanted(
            device=device,
            dtype=dtype,
            quantization=quantization,
            runtime=runtime,
            adapters=dict(loras or {}),
            options={key: value for key, value in options.items() if value is not None},
        )
        opened = open_model(self._named(model), self.name, request, config)
        self._model = opened.model
        self._adapters = opened.adapters
        self.engine = Engine(opened.model, opened.side, config)

    @staticmethod
    def _named(model: str | Path | None) -> str | Path:
        if model is not None:
            return model
        if not (DEFAULT_VOICE / "config.json").is_file():
            raise CheckpointError(
                "this build has no built-in voice; name a model: a local directory, a Hub id (owner/name) or dummy:toy"
            )
        return DEFAULT_VOICE

    @property
    def spec(self) -> ModelSpec:
        """Facts about the model: options with ranges, voices, languages, sample rate."""
        return self._model.spec

    @property
    def sample_rate(self) -> int:
        return self.spec.sample_rate

    @property
    def voices(self) -> tuple[str, ...]:
        return self.spec.voices

    @property
    def languages(self) -> tuple[str, ...]:
        """Values of `language=` besides "auto"."""
        return self.spec.languages

    @property
    def loras(self) -> tuple[str, ...]:
        """Names of the loaded adapters, values of `lora=`."""
        return tuple(self._adapters.loaded)

    @property
    def adapters(self) -> tuple[Adapter, ...]:
        """The loaded adapters."""
        return tuple(self._adapters.loaded.values())

    @property
    def lora_options(self) -> dict[str, Any]:
        """Arguments of TTS that make the same slots for adapters, also where those in `loras` are
        gone."""
        return self._adapters.options

    def load_lora(self, name: str, path: str | Path) -> None:
        """Load a LoRA adapter, a file or folder of weights, for requests that name it. Running
        requests go on.

        InvalidRequest: the name is taken, or all `max_loras` slots are. CheckpointError names the
        tensor that does not fit this model, its `max_lora_rank` or its `lora_targets`.
        """
        with self.engine.side.caller_thread():
            self._adapters.load(name, path)

    def unload_lora(self, name: str) -> None:
        """Refuse an adapter's name from now on. Requests that have it keep it to their end."""
        self._adapters.unload(name)

    @overload
    def generate(self, text: str | None = None, **options: Any) -> Speech: ...

    @overload
    def generate(self, text: Sequence[str], **options: Any) -> list[Speech]: ...

    def generate(
        self, text: str | Sequence[str] | None = None, **options: Any
    ) -> Speech | list[Speech]:
        """Generate speech for a text, or for several texts in one batch, which share all other
        arguments.

        Long text is cut at sentences, as the model wants it, and spoken piece by piece in one
        voice.

        Options: voice, language="auto", instructions, reference, prompt, speaker_embedding (in
        place of a reference, where `spec.speaker_size` is not 0), lora (the name of a loaded
        adapter), seed, and those in `spec.options` (temperature, top_k, top_p, cfg, flow_steps,
        min_frames, max_frames, ...). retries: tries for an utterance that runs on, default 3. Each
        takes the next seed. split_granularity: "auto", "none", "sentence", "clause". cleanup: steps
        of the clean-up of pasted text, "all" by default (docs/text.md). word_timestamps: have the
        times of words in `Speech.words`: by the model where it has `spec.alignment`, else of
        English, or of what the `aligner` knows. speed: 0.25 to 4, which keeps the pitch. format:
        have the audio as a file in `Speech.data` ("mp3", "opus", ...). script: turns of a dialogue,
        `{"voice", "text", "pause"}`, in place of a text. voices: what names of voices in it, and in
        marks `[voice: name]` of a text, stand for: a `Reference`, or one of `spec.voices`.
        InvalidRequest (a ValueError) names what is wrong. BatchError has the results of a list of
        which some texts failed. Overloaded: the queue has no room for the first text.
        """
        results = speak_in_thread(self._texts(text, options))
        if _several(text):
            return _speeches(results)
        return _speech(results[0])

    def stream(self, text: str | None = None, **options: Any) -> Iterator[Speech]:
        """Generate speech for a text and yield its audio as it comes. Leaving the loop early
        cancels the rest.

        This call checks and queues the request, before the first chunk is taken. Options: see
        generate.
        """
        return SpeechStream(self._text(text, options, tries=1, streaming=True))

    @overload
    async def agenerate(self, text: str | None = None, **options: Any) -> Speech: ...

    @overload
    async def agenerate(self, text: Sequence[str], **options: Any) -> list[Speech]: ...

    async def agenerate(
        self, text: str | Sequence[str] | None = None, **options: Any
    ) -> Speech | list[Speech]:
        """Generate speech as `generate` does, for asyncio. Cancelling the task cancels the
        request."""
        import asyncio  # takes 12 ms, as `awaited` does, which few callers need

        from stentor.speech import awaited

        texts = await asyncio.to_thread(self._texts, text, options)
        results = await speak(texts, awaited.LoopWaiting())
        if _several(text):
            return _speeches(results)
        return _speech(results[0])

    def astream(
        self, text: str | AsyncIterable[str] | None = None, **options: Any
    ) -> AsyncGenerator[Speech, None]:
        """Generate speech for a text and yield its audio as it comes, for asyncio. Leaving the loop
        cancels the rest.

        An async iterable brings text that is still being written, such as a language model's
        answer. It is spoken as soon as later text cannot change how. The last chunk has the end: at
        most 5 ms, and a pause that the text has there. `script` and `voices` are not taken.
        Options: see generate. The first chunk raises what is wrong with them.
        """
        from stentor.speech import awaited

        if isinstance(text, AsyncIterable):
            return awaited.live(partial(self._growing, options), text)
        return awaited.stream(partial(self._text, text, options, tries=1, streaming=True))

    def speaker_embedding(self, reference: Reference) -> np.ndarray:
        """The voice of a reference as a vector, float32 [spec.speaker_size], for later requests
        instead of audio.

        InvalidRequest where the model takes none, EngineError in a forked child.
        """
        if not self.spec.speaker_size:
            raise InvalidRequest("speaker_embedding", f"{self.name} takes none")
        self.engine.inbox.check_process()
        audio = self.load_reference(reference)
        return (
            self.engine.encoder.claim(VoiceSource(audio.recording, "reference"))
            .result()
            .features["speaker"]
        )

    def load_reference(self, reference: Reference | ReferenceAudio) -> ReferenceAudio:
        """Read, check and hash a reference once. `reference` and `prompt` take the result in its
        place, as often as wanted, for every model. Raises InvalidRequest if it cannot be used."""
        return request.load(self.spec, "reference", reference)

    def _texts(self, text: object, options: Mapping[str, Any]) -> list[SpokenText]:
        """The texts of a call. Nothing is queued."""
        load_options = dict(options)
        tries = request.retries(load_options.pop("retries", None))
        load_options = self._loaded(load_options)
        if _several(text):
            texts = request.texts(text)
        else:
            texts = [text]
        return [self._text(t, load_options, tries, streaming=False) for t in texts]

    def _loaded(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """The options of a call with its audio loaded, once for all texts."""
        loaded = dict(options)
        if options.get("reference") is not None:
            loaded["reference"] = request.load_references(
                self.spec, options["reference"], self.name
            )
        if options.get("prompt") is not None:
            loaded["prompt"] = request.load_prompt(self.spec, options["prompt"], self.name)
        if options.get("voices") is not None:
            loaded["voices"] = request.load_voices(self.spec, options["voices"], self.name)
        return loaded

    def _text(
        self, text: object, options: Mapping[str, Any], tries: int, streaming: bool
    ) -> SpokenText:
        """A text, or a script, cut into what is spoken at a time, and checked with its options.
        Nothing is queued."""
        how = self._reading_of(options)
        if how.options.get("seed") is None:
            how = replace(how, options={**how.options, "seed": random_seed()})  # of all its voices
        script = options.get("script")
        if script is not None and text is not None:
            raise InvalidRequest("script", "stands for text: give one of them")
        if script is None:
            turns = marked(request.check_text(text))
        else:
            turns = scripted(script)
        segments = dialogue(
            self.spec,
            turns,
            how.granularity,
            MAX_CHARS,
            self.lexicon,
            how.cleanup,
            how.language,
            streaming,
        )
        requests: dict[str | None, SpeechRequest] = {}
        for segment in segments:
            if segment.voice not in requests:
                is_unchanged = (
                    len(segments) == len(turns) == 1 and segment.spoken == turns[0].text.strip()
                )
                # as it is, with its spaces
                if is_unchanged:
                    spoken = turns[0].text
                else:
                    spoken = segment.spoken
                requests[segment.voice] = self._in_voice(
                    segment.voice, turns[segment.turn or 0], spoken, how
                )
        if None not in requests:
            for name in request.OF_A_VOICE:
                if how.options.get(name) is not None:
                    log.warning("%s is not used: every turn has its own voice", name)
        aligners = self._aligners(how, " ".join(segment.text for segment in segments))
        return SpokenText(
            self.engine,
            self.prompt,
            self.speakable,
            requests,
            segments,
            tries,
            streaming,
            aligners,
            how.output,
        )

    def _aligners(self, how: _How, text: str) -> Aligners | None:
        """Aligners for the times of words, if they are wanted. InvalidRequest if none knows this
        text's language."""
        if not how.words:
            return None
        if (why := self.aligners.missing(self.spec, how.language, text)) is not None:
            raise InvalidRequest("word_timestamps", why)
        return self.aligners

    def _in_voice(self, voice: str | None, turn: Turn, text: str, how: _How) -> SpeechRequest:
        """The request for a text in a voice of a dialogue. None: in the one of the call."""
        if voice is None:
            return self.request(text, **how.options)
        options = {
            name: value for name, value in how.options.items() if name not in request.OF_A_VOICE
        }
        stands_for = how.voices.get(voice.lower(), voice)
        voice_options = (
            {"voice": stands_for} if isinstance(stands_for, str) else {"reference": stands_for}
        )
        try:
            return self.request(text, **options, **voice_options)
        except InvalidRequest as e:
            raise InvalidRequest(
                turn.named("voice") if e.param in voice_options else e.param, e.message
            ) from e

    def _growing(self, options: Mapping[str, Any]) -> tuple[SpokenText, TextFeed]:
        """A text that grows, without any yet, and what cuts the text for it."""
        from stentor.speech.live_text import PROBE, TextFeed

        for name in ("script", "voices", "retries"):
            if options.get(name) is not None:
                raise InvalidRequest(name, "needs the complete text")
        how = self._reading_of(options)
        checked = self.request(PROBE, **how.options)
        live = how.granularity == "auto" and self.spec.live_text and self._takes_live(checked)
        read = reading(self.spec, self.lexicon, how.cleanup, how.language)
        feed = TextFeed(
            how.granularity,
            min(MAX_CHARS, self.spec.max_text),
            live,
            read,
            self.spec.split_granularity,
        )
        aligners = self._aligners(how, "")
        text = SpokenText(
            self.engine,
            self.prompt,
            self.speakable,
            {None: checked},
            [],
            1,
            True,
            aligners,
            how.output,
            growing=True,
        )
        return text, feed

    def _takes_live(self, checked: SpeechRequest) -> bool:
        """Whether the model takes text while it speaks with these options."""
        try:
            self.prompt(replace(checked, live=True))
        except InvalidRequest as e:
            if e.param != "live":
                raise
            return False
        return True

    def _reading_of(self, options: Mapping[str, Any]) -> _How:
        """The arguments of a call that are not the model's, checked, and the others."""
        if options.get("live"):
            raise InvalidRequest(
                "live", "is for submit(request(...)), whose stream takes the text that follows"
            )
        values = {name: value for name, value in options.items() if name != "script"}
        values = {"split_granularity": "auto", "word_timestamps": False, "cleanup": ALL, **values}
        granularity = values.pop("split_granularity")
        cleanup = values.pop("cleanup")
        if granularity not in GRANULARITIES:
            allowed = ", ".join(GRANULARITIES)
            raise InvalidRequest(
                "split_granularity", f"must be one of {allowed}, got {shown(granularity)}"
            )
        words = request.word_times(values.pop("word_timestamps"))
        output = Output.checked(values.pop("speed", None), values.pop("format", None), self._marks)
        values["speed"] = request.own_speed(self.spec, output.speed)
        output = replace(output, speed=output.speed / values["speed"])
        voices = request.load_voices(self.spec, values.pop("voices", None), self.name)
        return _How(granularity, cleanup, values.get("language"), words, output, voices, values)

    # -- for servers and tools --

    def request(self, text: str, **options: Any) -> SpeechRequest:
        """Check a request. Its reference audio is read. Nothing is queued."""
        arguments = {k: options.pop(k) for k in request.NAMED if k in options}
        lora = options.pop("lora", None)
        if lora is None:
            adapter = None
        else:
            adapter = self.adapter(lora)
        return request.build(
            self.spec, text, model=self.name, lora=adapter, options=options, **arguments
        )

    def adapter(self, name: str) -> Adapter:
        """The loaded adapter of a name, as a request has it (`lora`). InvalidRequest if there is
        none."""
        return self._adapters.named(name)

    def prompt(self, req: SpeechRequest) -> Prompt:
        """Tokenise a request and encode its reference audio (cached by content). Raises what
        `req.check` raises, and EngineError in a forked child."""
        preparation = self.prepare(req)
        try:
            with self.engine.side.caller_thread():
                return preparation.wait()
        finally:
            preparation.cancel()

    def prepare(self, req: SpeechRequest) -> Preparation:
        """Begin to make a prompt, for callers that must not wait for an encoding in a thread.
        EngineError in a forked child."""
        if not isinstance(req, SpeechRequest):
            raise InvalidRequest(
                "request", f"must be what TTS.request gives, got {type(req).__name__}"
            )
        self.engine.inbox.check_process()
        checked = replace(req, lora=self._adapters.current(req.lora))
        return Preparation(self._model, self.engine.encoder, self.engine.primer, checked)

    def speakable(self, text: str, check: Check = proceed) -> bool:
        """Whether a text has anything that the model can speak: not an emoji, "..." or a script
        that it cannot read."""
        return self._model.speakable(text, check)

    def submit(self, req: SpeechRequest, streaming: bool = True) -> AudioStream:
        """Queue a request. Its audio comes in small chunks at first if `streaming`, else in large
        ones, as the model makes it: without a watermark.

        Where `spec.live_text`, `request("The first words ", live=True)` generates as far as it has
        text. The stream's `append` adds text. Where all of it ends inside the first word, the
        request is queued once that is complete.
        """
        prompt = self.prompt(req)
        if not opens(req):
            return self.engine.submit(prompt, req.seed, streaming)
        stream = OpeningStream(self.engine, req, self.prompt, streaming)
        self._opening.add(stream)
        return stream

    def speech(self, chunks: Sequence[Chunk], seed: int) -> Speech:
        """Concatenate consecutive chunks."""
        samples = np.concatenate([c.samples for c in chunks])
        frames = np.concatenate([c.frames for c in chunks])
        return Speech(samples, self.sample_rate, frames, chunks[-1].finish, seed)

    def close(self) -> None:
        """Stop the engine. Open requests fail. Safe to call twice."""
        for stream in tuple(self._opening):
            stream.stop()
        self.engine.close()

    def __enter__(self) -> TTS:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        self.close()


@dataclass(frozen=True)
class _How:
    """The arguments of a call: how text is read and audio is returned, and the `options` of
    requests."""

    granularity: str
    cleanup: str
    language: str | None
    words: bool
    output: Output
    voices: Mapping[str, str | ReferenceAudio]
    options: Mapping[str, Any]


def _several(text: object) -> bool:
    """Whether a call is for a list of texts."""
    return text is not None and not isinstance(text, str)


def _speech(result: Speech | StentorError) -> Speech:
    if isinstance(result, StentorError):
        raise result
    return result


def _speeches(results: Sequence[Speech | StentorError]) -> list[Speech]:
    speeches = [r for r in results if isinstance(r, Speech)]
    if len(speeches) < len(results):
        raise BatchError(list(results))
    return speeches


def _check_types(
    model: object, name: object, lexicon: object, loras: object, provenance: object
) -> None:
    """InvalidRequest names the first that no model can be loaded with, before anything is."""
    if model is not None:
        path_of("model", model)
    if name is not None and not isinstance(name, str):
        raise InvalidRequest("name", f"must be a string, got {type(name).__name__}")
    if lexicon is not None and not isinstance(lexicon, Lexicon | Mapping):
        path_of("lexicon", lexicon)
    if loras is not None and not isinstance(loras, Mapping):
        raise InvalidRequest(
            "loras", f"must be a mapping of names to paths, got {type(loras).__name__}"
        )
    if not isinstance(provenance, bool):
        raise InvalidRequest("provenance", f"must be true or false, got {shown(provenance)}")


__all__ = ["TTS", "Reference", "Speech"]

"""The Python API: `TTS` generates speech."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, overload

import numpy as np
import torch

from stentor import registry, request
from stentor.arguments import shown
from stentor.audio import Reference
from stentor.config import EngineConfig, check_dtype, check_quantization, path_of
from stentor.engine.adapters import Adapters
from stentor.engine.device import Device, pick_device
from stentor.engine.engine import Engine
from stentor.engine.preparation import Preparation
from stentor.engine.stream import AudioStream, Chunk
from stentor.errors import BatchError, CheckpointError, InvalidRequest, StentorError
from stentor.models.base import ModelSpec, Prompt, ReferenceAudio, SpeechRequest
from stentor.models.lora import Adapter
from stentor.speech.passage import Passage, SpeechStream, speak
from stentor.speech.pieces import segments
from stentor.speech.result import Speech
from stentor.text.front_end import Check, proceed
from stentor.text.lexicon import Lexicon
from stentor.text.sentences import GRANULARITIES

DEFAULT_VOICE = Path(__file__).parent / "assets" / "voice"


class TTS:
    """A loaded model and its engine. Thread-safe. Use `with` or call `close()`.

    model: a local directory, a Hugging Face Hub id, `dummy:NAME`, or None for the embedded default voice.
    device: "auto", "cpu", "cuda", "cuda:N". dtype: "auto" (float32 on a CPU, the checkpoint's own on CUDA),
    "float32", "bfloat16", "float16", or "float64" (for checks). quantization: weights of the language models in "int8"
    or "fp8", or "auto" (as the checkpoint has them). name: what errors call the model, by default `model`.
    lexicon: how words are said (docs/python_api.md): a mapping or the path of a YAML file.
    loras: LoRA adapters that requests may name (`lora=`), each a file or folder of weights, by name.
    options: fields of EngineConfig (max_num_seqs, memory_gb, threads, ...) and the family's load options, such as
    `lora` (weights to merge) and `flow_steps` (the default of requests). docs/models lists them.
    """

    def __init__(
        self,
        model: str | Path | None = None,
        *,
        device: str = "auto",
        dtype: str = "auto",
        quantization: str = "auto",
        name: str | None = None,
        lexicon: Lexicon | Mapping[object, object] | str | Path | None = None,
        loras: Mapping[str, str | Path] | None = None,
        **options: Any,
    ) -> None:
        _check_types(model, name, lexicon, loras)
        check_dtype(dtype)
        eight_bits = {} if check_quantization(quantization) == "auto" else {"quantization": quantization}
        self.lexicon = Lexicon.of(lexicon)
        config = EngineConfig(**{k: options.pop(k) for k in EngineConfig.__dataclass_fields__ if k in options})
        where = Device(pick_device(device))
        load = {k: v for k, v in {**options, **eight_bits, "loras": loras or None}.items() if v is not None}
        precision = None if dtype == "auto" else getattr(torch, dtype)
        self.name = name or ("the embedded voice" if model is None else str(model))
        with where.current(), where.loading():
            self._model = registry.load(self._named(model), where.torch, precision, load)
            where.release_cached()  # what only the load needed
            self._adapters = Adapters(self._model.adapters, where)
            for lora, path in (loras or {}).items():
                self._adapters.load(lora, path)
            self.engine = Engine(self._model, where, config)

    @staticmethod
    def _named(model: str | Path | None) -> str | Path:
        if model is not None:
            return model
        if not (DEFAULT_VOICE / "config.json").is_file():
            raise CheckpointError(
                "this build has no embedded voice; name a model: a local directory, a Hub id (owner/name) or dummy:toy"
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
    def lora_options(self) -> dict[str, Any]:
        """Arguments of TTS that make the same slots for adapters, also where those in `loras` are gone."""
        return self._adapters.slots.options

    def load_lora(self, name: str, path: str | Path) -> None:
        """Load a LoRA adapter, a file or folder of weights, for requests that name it. Running requests go on.

        InvalidRequest: the name is taken, or all `max_loras` slots are. CheckpointError names the tensor that does not
        fit this model, its `max_lora_rank` or its `lora_targets`.
        """
        self._adapters.load(name, path)

    def unload_lora(self, name: str) -> None:
        """Refuse an adapter's name from now on. Requests that have it keep it to their end."""
        self._adapters.unload(name)

    @overload
    def generate(self, text: str, **options: Any) -> Speech: ...

    @overload
    def generate(self, text: Sequence[str], **options: Any) -> list[Speech]: ...

    def generate(self, text: str | Sequence[str], **options: Any) -> Speech | list[Speech]:
        """Generate speech for a text, or for several texts in one batch, which share all other arguments.

        Long text is cut at sentences, as the model wants it, and spoken piece by piece in one voice.

        Options: voice, language="auto", instructions, reference, prompt, speaker_embedding (in place of a reference,
        where `spec.speaker_size` is not 0), lora (the name of a loaded adapter), seed, and those in `spec.options`
        (temperature, top_k, top_p, cfg, flow_steps, min_frames, max_frames, ...). retries: tries for an utterance that
        runs on, default 3. Each takes the next seed. split_granularity: "auto", "none", "sentence", "clause".
        word_timestamps: have the times of words in `Speech.words`, for models with `spec.alignment`.
        InvalidRequest (a ValueError) names what is wrong. BatchError has the results of a list of which some texts
        failed. Overloaded: the queue has no room for the first text.
        """
        tries = request.retries(options.pop("retries", None))
        texts, options = request.texts(text), self._loaded(options)
        results = speak([self._passage(t, options, tries, streaming=False) for t in texts])
        if isinstance(text, str):
            if isinstance(results[0], StentorError):
                raise results[0]
            return results[0]
        speeches = [r for r in results if isinstance(r, Speech)]
        if len(speeches) < len(results):
            raise BatchError(results)
        return speeches

    def stream(self, text: str, **options: Any) -> Iterator[Speech]:
        """Generate speech for a text and yield its audio as it comes. Leaving the loop early cancels the rest.

        This call checks and queues the request, before the first chunk is taken. Options: see generate.
        """
        return SpeechStream(self._passage(text, options, tries=1, streaming=True))

    def speaker_embedding(self, reference: Reference) -> np.ndarray:
        """The voice of a reference as a vector, float32 [spec.speaker_size], for later requests instead of audio.

        InvalidRequest where the model takes none, EngineError in a forked child.
        """
        if not self.spec.speaker_size:
            raise InvalidRequest("speaker_embedding", f"{self.name} takes none")
        self.engine.inbox.check_process()
        audio = self.load_reference(reference)
        return self.engine.reference_encoder.encode(audio.recording, "reference")["speaker"]

    def load_reference(self, reference: Reference | ReferenceAudio) -> ReferenceAudio:
        """Read, check and hash a reference once. `reference` and `prompt` take the result in its place, as often as
        wanted, for every model. InvalidRequest says what is wrong with it."""
        return request.load(self.spec, "reference", reference)

    def _loaded(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """The options of a call with its audio loaded, once for all texts."""
        loaded = dict(options)
        if options.get("reference") is not None:
            loaded["reference"] = request.load_references(self.spec, options["reference"], self.name)
        if options.get("prompt") is not None:
            loaded["prompt"] = request.load_prompt(self.spec, options["prompt"], self.name)
        return loaded

    def _passage(self, text: str, options: Mapping[str, Any], tries: int, streaming: bool) -> Passage:
        """A text, cut into what is spoken at a time, and checked with its options. Nothing is queued."""
        if options.get("live"):
            raise InvalidRequest("live", "is for submit(request(...)), whose stream takes the text that follows")
        given = {"split_granularity": "auto", "word_timestamps": False, **options}
        granularity = given.pop("split_granularity")
        words = request.word_times(self.spec, given.pop("word_timestamps"), self.name)
        if granularity not in GRANULARITIES:
            allowed = ", ".join(GRANULARITIES)
            raise InvalidRequest("split_granularity", f"must be one of {allowed}, got {shown(granularity)}")
        pieces = segments(self.spec, request.check_text(text), granularity, lexicon=self.lexicon)
        whole = len(pieces) == 1 and pieces[0].spoken == text.strip()  # then it is spoken as it is, with its spaces
        checked = self.request(text if whole else pieces[0].spoken, **given)
        return Passage(self.engine, self.prompt, self.speakable, checked, pieces, tries, streaming, words)

    # -- for servers and tools --

    def request(self, text: str, **options: Any) -> SpeechRequest:
        """Check a request. Its reference audio is read. Nothing is queued."""
        named = {k: options.pop(k) for k in _NAMED if k in options}
        lora = options.pop("lora", None)
        adapter = None if lora is None else self.adapter(lora)
        return request.build(self.spec, text, model=self.name, lora=adapter, options=options, **named)

    def adapter(self, name: str) -> Adapter:
        """The loaded adapter of a name, as a request has it (`lora`). InvalidRequest if there is none."""
        return self._adapters.named(name)

    def prompt(self, req: SpeechRequest) -> Prompt:
        """Tokenise a request and encode its reference audio (cached by content). Raises what `req.check` raises,
        and EngineError in a forked child."""
        preparation = self.prepare(req)
        try:
            return preparation.wait()
        finally:
            preparation.leave()

    def prepare(self, req: SpeechRequest) -> Preparation:
        """The same for callers that must not wait for an encoding in a thread."""
        if not isinstance(req, SpeechRequest):
            raise InvalidRequest("request", f"must be what TTS.request gives, got {type(req).__name__}")
        return self.engine.prepare(replace(req, lora=self._adapters.current(req.lora)))

    def speakable(self, text: str, check: Check = proceed) -> bool:
        """Whether a text has anything that the model can speak: not an emoji, "..." or a script that it cannot read."""
        return self._model.speakable(text, check)

    def submit(self, req: SpeechRequest, streaming: bool = True) -> AudioStream:
        """Queue a request. Its audio comes in small chunks at first if `streaming`, else in large ones.

        Where `spec.live_text`, `request("The first words ", live=True)` generates as far as it has text. The stream's
        `append` adds text.
        """
        return self.engine.submit(self.prompt(req), req.seed, streaming)

    def speech(self, chunks: Sequence[Chunk], seed: int) -> Speech:
        """Concatenate consecutive chunks."""
        samples = np.concatenate([c.samples for c in chunks])
        frames = np.concatenate([c.frames for c in chunks])
        return Speech(samples, self.sample_rate, frames, chunks[-1].finish, seed)

    def close(self) -> None:
        """Stop the engine. Open requests fail. Safe to call twice."""
        self.engine.close()

    def __enter__(self) -> TTS:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()


def _check_types(model: object, name: object, lexicon: object, loras: object) -> None:
    """InvalidRequest names the first that no model can be loaded with, before anything is."""
    if model is not None:
        path_of("model", model)
    if name is not None and not isinstance(name, str):
        raise InvalidRequest("name", f"must be a string, got {type(name).__name__}")
    if lexicon is not None and not isinstance(lexicon, Lexicon | Mapping):
        path_of("lexicon", lexicon)
    if loras is not None and not isinstance(loras, Mapping):
        raise InvalidRequest("loras", f"must be a mapping of names to paths, got {type(loras).__name__}")


_NAMED = ("voice", "language", "instructions", "reference", "prompt", "speaker_embedding", "seed", "live")


__all__ = ["TTS", "Reference", "Speech"]

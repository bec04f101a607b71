"""The Python API: `TTS` generates speech, `Speech` is the result."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, overload

import numpy as np
import soundfile
import torch

from stentor import audio, registry, request, retry
from stentor.audio import Reference
from stentor.config import EngineConfig, check_dtype
from stentor.engine.device import Device, pick_device
from stentor.engine.engine import Engine
from stentor.engine.reference_encoder import NotEncoded
from stentor.engine.stream import AudioStream, Chunk
from stentor.errors import CheckpointError, InvalidRequest, Overloaded
from stentor.models.base import ModelSpec, Prompt, SpeechRequest
from stentor.text.front_end import Check, proceed

DEFAULT_VOICE = Path(__file__).parent / "assets" / "voice"


@dataclass(frozen=True, eq=False)
class Speech:
    """Audio and the frames that it was decoded from.

    samples: float32 [n] in [-1, 1] at `sample_rate` Hz. frames: the family's frames [T, ...] (latents or codes).
    finish_reason: "stop" (the model ended), "length" (max_frames was reached) or "cancelled". It is None for a chunk
    of a stream that has more. seed: repeats a request that runs alone (docs/serving.md, Seeds).
    """

    samples: np.ndarray
    sample_rate: int
    frames: np.ndarray
    finish_reason: str | None
    seed: int

    @property
    def duration(self) -> float:
        """Seconds."""
        return len(self.samples) / self.sample_rate

    @staticmethod
    def check_path(path: str | Path) -> None:
        """InvalidRequest when `save` could not write this kind of file."""
        suffix = Path(path).suffix.lower().lstrip(".")
        if suffix.upper() not in soundfile.available_formats():
            raise InvalidRequest("path", f"cannot write {suffix or 'a file without suffix'!r}; use .wav, .flac or .mp3")

    def save(self, path: str | Path) -> None:
        """Write an audio file. The suffix chooses the format (wav, flac, ogg, mp3)."""
        self.check_path(path)
        soundfile.write(path, self.samples, self.sample_rate)


class TTS:
    """A loaded model and its engine. Thread-safe. Use `with` or call `close()`.

    model: a local directory, a Hugging Face Hub id, `dummy:NAME`, or None for the embedded default voice.
    device: "auto", "cpu", "cuda", "cuda:N". dtype: "auto" (float32 on a CPU, the checkpoint's own on CUDA),
    "float32", "bfloat16", "float16", or "float64" (for checks). name: what errors call the model, by default `model`.
    options: fields of EngineConfig (max_num_seqs, memory_gb, threads, ...) and the family's load options, such as
    `lora` (weights to merge) and `flow_steps` (the default of requests). docs/models lists them.
    """

    def __init__(
        self,
        model: str | Path | None = None,
        *,
        device: str = "auto",
        dtype: str = "auto",
        name: str | None = None,
        **options: Any,
    ) -> None:
        check_dtype(dtype)
        config = EngineConfig(**{k: options.pop(k) for k in EngineConfig.__dataclass_fields__ if k in options})
        where = Device(pick_device(device))
        load = {k: v for k, v in options.items() if v is not None}
        precision = None if dtype == "auto" else getattr(torch, dtype)
        self.name = name or ("the embedded voice" if model is None else str(model))
        self._model = registry.load(self._named(model), where.torch, precision, load)
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

    @overload
    def generate(self, text: str, **options: Any) -> Speech: ...

    @overload
    def generate(self, text: Sequence[str], **options: Any) -> list[Speech]: ...

    def generate(self, text: str | Sequence[str], **options: Any) -> Speech | list[Speech]:
        """Generate speech for a text, or for several texts in one batch, which share all other arguments.

        Options: voice, language="auto", instructions, reference, prompt, speaker_embedding (in place of a reference,
        where `spec.speaker_size` is not 0), seed, and those in `spec.options` (temperature, top_k, top_p, cfg,
        flow_steps, min_frames, max_frames, ...). retries: tries for an utterance that runs on, default 3. Each takes
        the next seed. InvalidRequest (a ValueError) names what is wrong.
        """
        retries = options.pop("retries", None)
        if retries is not None and (
            not isinstance(retries, int) or isinstance(retries, bool) or not 1 <= retries <= 10
        ):
            raise InvalidRequest("retries", f"must be a whole number from 1 to 10, got {retries!r}")
        texts = [text] if isinstance(text, str) else list(text)
        _whole(options)
        jobs = [_Job(self, self.request(t, **options), retries or retry.TRIES) for t in texts]
        try:
            self._start(jobs)
            results = [job.result() for job in jobs]
        except BaseException:
            for job in jobs:
                job.cancel()
            raise
        return results[0] if isinstance(text, str) else results

    @staticmethod
    def _start(jobs: list[_Job]) -> None:
        """Queue all jobs. While the queue is full, wait for the oldest job before queueing the next."""
        waiting = iter(jobs)
        for job in jobs:
            while not job.started:
                try:
                    job.start()
                except Overloaded:
                    oldest = next(waiting)
                    if oldest is job:  # others fill the queue
                        raise
                    oldest.result()

    def stream(self, text: str, **options: Any) -> Iterator[Speech]:
        """Generate speech for a text and yield its audio as it comes. Leaving the loop early cancels the rest.

        This call checks and queues the request, before the first chunk is taken. Options: see generate.
        """
        _whole(options)
        return _SpeechStream(self, self.submit(self.request(text, **options)))

    def speaker_embedding(self, reference: Reference) -> np.ndarray:
        """The voice of a reference as a vector, float32 [spec.speaker_size], for later requests instead of audio.

        InvalidRequest where the model takes none.
        """
        if not self.spec.speaker_size:
            raise InvalidRequest("speaker_embedding", f"{self.name} takes none")
        samples = audio.load(reference, "reference", self.spec.reference_rate, self.spec.reference_seconds)
        return self.engine.reference_encoder.encode(samples, "reference")["speaker"]

    # -- for servers and tools --

    def request(self, text: str, **options: Any) -> SpeechRequest:
        """Check a request. Its reference audio is read and resampled. Nothing is queued."""
        named = {k: options.pop(k) for k in _NAMED if k in options}
        return request.build(self.spec, text, model=self.name, options=options, **named)

    def prompt(self, req: SpeechRequest) -> Prompt:
        """Tokenise a request and encode its reference audio (cached by content). Raises what `req.check` raises,
        and EngineError in a forked child."""
        self.engine.inbox.check_process()
        req.check()
        return self._model.prompt(req, self.engine.reference_encoder.encode)

    def prompt_if_encoded(self, req: SpeechRequest) -> Prompt | None:
        """The same without encoding any audio. None where the request has reference audio that is not in the cache."""
        req.check()
        try:
            return self._model.prompt(req, self.engine.reference_encoder.cached)
        except NotEncoded:
            return None

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


_NAMED = ("voice", "language", "instructions", "reference", "prompt", "speaker_embedding", "seed", "live")


def _whole(options: Mapping[str, Any]) -> None:
    if options.get("live"):
        raise InvalidRequest("live", "is for submit(request(...)), whose stream takes the text that follows")


class _SpeechStream(Iterator[Speech]):
    """The audio of `stream`. It cancels the rest when it is closed or dropped, also before its first chunk, where a
    generator would never have begun."""

    def __init__(self, tts: TTS, stream: AudioStream) -> None:
        self._tts, self._stream, self._chunks = tts, stream, iter(stream)

    def __next__(self) -> Speech:
        return self._tts.speech([next(self._chunks)], self._stream.seed)

    def close(self) -> None:
        """Cancel the rest."""
        self._stream.cancel()

    def __del__(self) -> None:
        self.close()


class _Job:
    """One utterance of `generate`, generated again with the next seed while it is a run-on and tries are left."""

    def __init__(self, tts: TTS, req: SpeechRequest, tries: int) -> None:
        self.tts, self.tries = tts, retry.Tries(req.seed, tries)
        self.prompt = tts.prompt(req)
        self.stream: AudioStream | None = None
        self.speech: Speech | None = None

    @property
    def started(self) -> bool:
        return self.stream is not None

    def start(self) -> None:
        self.stream = self.tts.engine.submit(self.prompt, self.tries.seed, streaming=False)

    def cancel(self) -> None:
        if self.stream is not None:
            self.stream.cancel()

    def result(self) -> Speech:
        """Wait for the utterance."""
        while self.speech is None:
            assert self.stream is not None
            speech = self.tts.speech(list(self.stream), self.tries.seed)
            limit = retry.runaway_frames(self.prompt)
            if self.tries.again(limit is not None and len(speech.frames) >= limit):
                try:
                    self.start()
                except Overloaded:
                    self.speech = speech  # a run-on, and the results of the others are kept
            else:
                self.speech = speech
        return self.speech


__all__ = ["TTS", "Reference", "Speech"]

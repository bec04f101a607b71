"""The two running sides of an engine: what its loop calls, over torch (`running`) or onnxruntime
(`running_onnx`).

Scheduler, requests, delivery and streams are the same above both.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Seq
from contextlib import AbstractContextManager
from typing import Any, Protocol

import numpy as np

from stentor.config import Policy
from stentor.engine.once import CacheCounts, Claim
from stentor.engine.scheduling.audio_scheduler import AudioJob
from stentor.engine.scheduling.sequence import Sequence
from stentor.engine.sizes import BufferSizes
from stentor.models.base import Prompt, Voice, VoiceSource
from stentor.models.codec_timing import CodecTiming


class Done(Protocol):
    """Work in flight."""

    def ready(self) -> bool: ...

    def wait_host(self) -> None:
        """Block until the work has run."""
        ...


class InFlightStep(Protocol):
    """A launched step: the requests that it names, and where their report will be."""

    @property
    def sequences(self) -> list[Sequence]: ...
    @property
    def finished(self) -> Done: ...
    @property
    def prefill(self) -> bool: ...
    @property
    def launched_at(self) -> float:
        """time.monotonic() at the launch."""
        ...

    @property
    def prefilled_at(self) -> float:
        """time.monotonic() once its prompts were launched, before their first frames."""
        ...

    def result(self) -> tuple[list[int], list[int], list[int]]:
        """Frames generated, stop value and audible frames of every slot. Blocks until the step has
        run."""
        ...


class InFlightAudio(Protocol):
    """A launched codec call. `rows` of its arrays belong to `jobs`."""

    @property
    def jobs(self) -> list[AudioJob]: ...
    @property
    def rows(self) -> Seq[int]: ...
    @property
    def finished(self) -> Done: ...

    def arrays(self) -> tuple[np.ndarray | list[np.ndarray], ...]:
        """Samples [B, n * hop], frames [B, n, *frame] and text positions [B, n, ATTENDED_WIDTH or
        0], once done: each padded, or a list of rows."""
        ...


class ModelRunner(Protocol):
    """Rows and steps of the language model. Every method is called from the engine's thread."""

    moved_on: bool  # whether a launch has made its frames, so that it cannot be tried again

    def admit(self, new: list[tuple[Sequence, Prompt, int]]) -> None:
        """Write the rows of requests, with their seeds."""
        ...

    def covering_evals(self, num_evals: int) -> int:
        """The loop length with which a row is launched that needs `num_evals`."""
        ...

    def extend(self, seq: Sequence, name: str, start: int, values: np.ndarray) -> None:
        """Write values of a column from index `start` on."""
        ...

    def save(self, seq: Sequence) -> Any:
        """Copy the row of a request that leaves its slot, for `restore`."""
        ...

    def restore(self, seq: Sequence, saved: Any) -> None: ...

    def set_pages(self, sequences: list[Sequence]) -> None:
        """Write the page tables of requests."""
        ...

    def fill_pages(self, seq: Sequence, prompt: Prompt) -> None:
        """Write the keys and values that a prompt brings."""
        ...

    def prefill(self, group: list[tuple[Sequence, Prompt]]) -> InFlightStep:
        """Run pieces of prompts, and make frame 0 where one ends."""
        ...

    def decode(self, sequences: list[Sequence]) -> InFlightStep:
        """Make one frame for each request."""
        ...


class CodecRunner(Protocol):
    """The codec's state per slot, and its calls. For the engine's thread only."""

    timing: CodecTiming
    moved_on: bool  # whether a call has written the codec's state: it cannot be tried again

    def admit(self, new: list[tuple[Sequence, Prompt]]) -> None:
        """Set the codec's state of new requests."""
        ...

    def save(self, seq: Sequence) -> Any:
        """Copy the codec's state of a request that leaves its slot, for `restore`."""
        ...

    def restore(self, seq: Sequence, saved: Any) -> None: ...

    def decode_first_frames(self, sequences: list[Sequence]) -> None:
        """Launch the first chunks of requests before the host has read that frame 0 exists."""
        ...

    def has_first_frame(self, seq: Sequence) -> bool:
        """Whether `decode_first_frames` has launched the first chunk of a request."""
        ...

    def launched_first(self, jobs: list[AudioJob]) -> tuple[Seq[InFlightAudio], list[AudioJob]]:
        """The calls of `decode_first_frames` that hold chunks of these, and the other chunks."""
        ...

    def parts(self, jobs: list[AudioJob]) -> list[list[AudioJob]]:
        """Jobs by call, chunks of one request in order."""
        ...

    def launch(self, jobs: list[AudioJob]) -> InFlightAudio:
        """Start one codec call for these chunks, one of the lists that `parts` returned. Does not
        wait for the device."""
        ...


class Encoder(Protocol):
    """Encodes recordings, each once for all requests."""

    def claim(self, source: VoiceSource) -> Claim[Voice]: ...
    def counts(self) -> CacheCounts: ...


class Primer(Protocol):
    """Makes the codec's state after a voice, once for all requests."""

    def claim(self, prompt: Prompt) -> Claim[Any]: ...
    def counts(self) -> CacheCounts: ...


class RunningSide(Protocol):
    """Buffers and launches of one model on one device."""

    @property
    def sizes(self) -> BufferSizes: ...
    @property
    def runner(self) -> ModelRunner: ...
    @property
    def codec(self) -> CodecRunner: ...
    @property
    def encoder(self) -> Encoder: ...
    @property
    def primer(self) -> Primer: ...
    @property
    def on_gpu(self) -> bool: ...
    @property
    def overlap_steps(self) -> int:
        """Launched steps whose report the host has not read, where the configuration leaves it
        open."""
        ...

    @property
    def eager_calls(self) -> int:
        """Launches since start that no CUDA graph served."""
        ...

    def policy(self, policy: Policy) -> Policy:
        """The scheduler's policy on this side."""
        ...

    def set_up_thread(self) -> None:
        """Apply the engine's settings to the calling thread: the last bits of a product depend on
        them."""
        ...

    def caller_thread(self) -> AbstractContextManager[object]:
        """Inside, a thread of a caller computes, which may be the first one of a forked process."""
        ...

    def warm_up(self) -> None:
        """Run what the first request would otherwise run cold, in the engine's thread."""
        ...

    def announces_audio(self, wake: Callable[[], None]) -> bool:
        """Have `wake` called whenever a codec call ends. False where nothing reports that, so that
        the engine has to check."""
        ...

    def serving(self) -> AbstractContextManager[object]:
        """Inside, the engine's thread may launch."""
        ...

    def is_fatal(self, error: Exception) -> bool:
        """Whether an error has broken the device."""
        ...

    def out_of_memory(self, error: Exception) -> bool: ...

    def release_cached(self) -> None:
        """Release memory that no buffer holds."""
        ...

    def device_bytes(self) -> int:
        """Bytes that are allocated on the device. 0 on a CPU."""
        ...

    def close(self) -> None:
        """Free threads and graphs, after the engine's thread has ended."""
        ...

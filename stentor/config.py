"""The configuration of an engine and of its scheduler. Both are frozen: they are read once and
nothing writes back.

Of the package, only arguments and the errors are imported here, so every room may import this file.
"""

from __future__ import annotations

import math
import numbers
import pkgutil
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stentor.arguments import as_path, shown, whole
from stentor.errors import InvalidRequest

DTYPES = ("auto", "float32", "bfloat16", "float16", "float64")  # of the language model

RUNTIMES = ("auto", "onnxruntime", "torch")
"""Runtimes of a model. auto: onnxruntime where a checkpoint has graphs for it and no argument needs
torch."""
# of the language model's weights. auto: as the checkpoint has them
QUANTIZATIONS = (
    "auto",
    "int8",
    "fp8",
)


def path_of(param: str, value: object) -> Path:
    """A path, with the folder of a user in place of `~`. InvalidRequest names `param` if the value
    is none."""
    try:
        return as_path(value)
    except ValueError as e:
        raise InvalidRequest(param, str(e)) from None


def function_of(param: str, given: object) -> Any:
    """A function, or what `package.module:function` names. InvalidRequest(param) if it is none."""
    function = given
    if isinstance(given, str):
        if not all(given.partition(":")):
            raise InvalidRequest(param, f"must be package:function, got {shown(given)}")
        try:
            function = pkgutil.resolve_name(given)
        except Exception as e:  # whatever the package raises
            raise InvalidRequest(
                param, f"{shown(given)} cannot be imported: {type(e).__name__}: {e}"
            ) from e
    if not callable(function):
        raise InvalidRequest(param, f"must be package:function, or a function, got {shown(given)}")
    return function


def check_device(name: str) -> str:
    """The name of a device, which may not exist here. InvalidRequest if no device can have this
    name."""
    if not isinstance(name, str) or not re.fullmatch(r"auto|cpu|cuda(:\d+)?", name):
        raise InvalidRequest("device", f"must be auto, cpu, cuda or cuda:N, got {shown(name)}")
    return name


def check_dtype(name: str) -> str:
    """The name of a dtype. InvalidRequest if it is none of DTYPES."""
    if name not in DTYPES:
        raise InvalidRequest("dtype", f"must be one of {', '.join(DTYPES)}, got {shown(name)}")
    return name


def check_quantization(name: str) -> str:
    """The name of a quantisation. InvalidRequest if it is none of QUANTIZATIONS."""
    if name not in QUANTIZATIONS:
        raise InvalidRequest(
            "quantization", f"must be one of {', '.join(QUANTIZATIONS)}, got {shown(name)}"
        )
    return name


def check_runtime(name: str) -> str:
    """The name of a runtime. InvalidRequest if it is none of RUNTIMES."""
    if name not in RUNTIMES:
        raise InvalidRequest("runtime", f"must be one of {', '.join(RUNTIMES)}, got {shown(name)}")
    return name


def _check(name: str, value: Any, least: float | None) -> None:
    """Raises InvalidRequest if a value is no number or below `least`."""
    if value is None:
        return
    real: Any = numbers.Real
    if isinstance(value, bool) or not isinstance(value, real):
        raise InvalidRequest(name, f"must be a number, got {shown(value)}")
    if least is not None and not value >= least:  # also for NaN
        raise InvalidRequest(name, f"must be at least {least:g}, got {shown(value)}")


def _whole(name: str, value: Any, least: int) -> int:
    """A whole number, also one of numpy, as an int. InvalidRequest if it is none or below
    `least`."""
    number = whole(value)
    if number is None:
        raise InvalidRequest(name, f"must be a whole number, got {shown(value)}")
    _check(name, number, least)
    return number


def _set_whole(config: Policy | EngineConfig, least: int, *names: str) -> None:
    """Check those of these fields that are set, and convert them to int."""
    for name in names:
        if (value := getattr(config, name)) is not None:
            object.__setattr__(config, name, _whole(name, value, least))


def _set_wholes(config: Policy | EngineConfig, name: str) -> None:
    """Check and set a field of several whole numbers."""
    if (values := getattr(config, name)) is not None:
        if not isinstance(values, tuple | list):
            raise InvalidRequest(name, f"must be a list of whole numbers, got {shown(values)}")
        object.__setattr__(config, name, tuple(_whole(name, value, 1) for value in values))


def _check_flags(config: Policy | EngineConfig, *names: str) -> None:
    """InvalidRequest if one of these fields is neither true nor false."""
    for name in names:
        if not isinstance(value := getattr(config, name), bool):
            raise InvalidRequest(name, f"must be true or false, got {shown(value)}")


@dataclass(frozen=True)
class Policy:
    """Parameters of the scheduler. Times are seconds."""

    max_prefill_tokens: int = (
        2048  # between two frames of a running stream. Longer prompts go in pieces
    )
    prefix_cache: bool = (
        True  # prompts that begin alike, such as with the same voice, share the pages of that
    )
    min_cached_tokens: int = (
        128  # less is computed again, so that a short prompt gives the same bytes every time
    )
    min_cached_voice_tokens: int = 32  # the same at most for a prompt with reference audio
    reserve_tokens: int = (
        64  # tokens for which pages are allocated ahead when a request needs another page
    )
    ramp: tuple[int, ...] | None = (
        None  # frames per chunk of a stream. The last value repeats. None: by the device
    )
    chunk: int | None = None  # frames of one codec chunk at most. None: by the codec
    max_frames_in_codec: int | None = (
        None  # that the codec holds before their audio has come. None: by the codec
    )
    max_ahead: float = 30.0  # audio that a stream may have buffered before it pauses
    max_prefill_delay: float = (
        0.3  # a queued request may wait so long for streams that would underrun
    )
    batching_window: float = (
        0.005  # a queued request may wait so long for the next where half of all rows run
    )
    max_queue: int = 1024  # requests that may wait for a slot
    parked_mb: float = 256.0  # MiB of the host for rows without a slot that wait for text
    unready_after: int = (
        5  # requests in a row that failed while they were served. One that finishes ends the count
    )

    def __post_init__(self) -> None:
        _set_whole(self, 1, "max_prefill_tokens", "chunk", "max_frames_in_codec", "unready_after")
        _set_whole(
            self, 0, "min_cached_tokens", "min_cached_voice_tokens", "reserve_tokens", "max_queue"
        )
        _set_wholes(self, "ramp")
        _check_flags(self, "prefix_cache")
        for name in (
            "max_ahead",
            "max_prefill_delay",
            "batching_window",
            "parked_mb",
        ):
            _check(name, getattr(self, name), 0)

    def min_cached(self, voice: bool) -> int:
        """Tokens that a prompt, with reference audio or without, must have in common with others to
        find them."""
        if voice:
            return min(self.min_cached_tokens, self.min_cached_voice_tokens)
        return self.min_cached_tokens


@dataclass(frozen=True)
class EngineConfig:
    """Sizes of an engine and how it runs. None means that the value is chosen from the device and
    the model."""

    max_num_seqs: int | None = (
        None  # requests served at once (slots). Default: 8 on a CPU, 64 on CUDA
    )
    page_size: int = 16  # tokens per key-value page
    max_frames: int = 4096  # frames that one request can hold
    memory_gb: float | None = (
        None  # GiB for key-value pages. Default: 1 or less on a CPU, all that is free on CUDA
    )
    gpu_memory_utilization: float = 0.9  # share of the free memory on CUDA that the engine may take
    max_memory_gb: float | None = (
        None  # GiB on CUDA for weights, slots, pages, graphs and all. Default: no limit
    )
    overlap_steps: int | None = (
        None  # launched steps whose report the host has not read. Default: 0 (CPU), 1 (CUDA)
    )
    batch_sizes: tuple[int, ...] | None = (
        None  # decode batches are padded up to these. Default on a CPU: no padding
    )
    deterministic: bool = (
        False  # on CUDA, a request gives the same bytes alone and beside others. Costs speed
    )
    require_graphs: bool = (
        False  # a CUDA graph that cannot be captured is an error instead of a warning
    )
    stream_priorities: bool = (
        True  # on CUDA, a step runs before audio is decoded, and both before references
    )
    threads: int | None = (
        None  # torch threads of the engine on a CPU. Default: the model's, else torch's
    )
    max_threads: int | None = (
        None  # limit of the default of `threads`: the share of an engine beside others
    )
    encoded_references: int = 64  # that are kept, by content
    codec_states_mb: float = 256.0  # MiB of the host for the codec's state after voices
    policy: Policy = field(default_factory=Policy)

    def __post_init__(self) -> None:
        _set_whole(
            self,
            1,
            "max_num_seqs",
            "page_size",
            "max_frames",
            "threads",
            "max_threads",
            "encoded_references",
        )
        _set_whole(self, 0, "overlap_steps")
        _set_wholes(self, "batch_sizes")
        _check_flags(self, "deterministic", "require_graphs", "stream_priorities")
        if not isinstance(self.policy, Policy):
            raise InvalidRequest(
                "policy", f"must be a stentor.config.Policy, got {type(self.policy).__name__}"
            )
        _check("codec_states_mb", self.codec_states_mb, 0)
        for name in ("memory_gb", "max_memory_gb"):
            value = getattr(self, name)
            _check(name, value, None)
            if value is not None and not 0 < value < math.inf:
                raise InvalidRequest(name, f"must be above 0, got {shown(value)}")
        _check("gpu_memory_utilization", self.gpu_memory_utilization, None)
        if not 0 < self.gpu_memory_utilization <= 1:
            raise InvalidRequest(
                "gpu_memory_utilization", f"must be in (0, 1], got {self.gpu_memory_utilization}"
            )

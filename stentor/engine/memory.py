"""Measurement of what a model takes for each part of memory, once at start. `engine.sizes` divides
the memory."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict

import torch
from torch import Tensor

from stentor import kernels
from stentor.config import EngineConfig
from stentor.engine.columns import engine_columns
from stentor.engine.running.codec_state import CodecStateTable, one_row
from stentor.engine.running.device import Device
from stentor.engine.scheduling.chunks import chunk_sizes
from stentor.engine.sizes import (
    CONTEXT,
    GIB,
    BufferSizes,
    Needs,
    Shares,
    bytes_with_graphs,
    fewer,
    fit,
    least_bytes,
    shares_of_pages,
)
from stentor.errors import EngineError
from stentor.host import machine
from stentor.layers.types import Column, Eager, eager, torch_dtype
from stentor.layers.windows import COLUMNS
from stentor.models.base import ModelSpec, SpeechModel
from stentor.models.codec_timing import UtteranceTiming
from stentor.models.info import ATTENDED_WIDTH

SLOTS = 64
CPU_SLOTS = 8
"""Default numbers of slots. On a GPU fewer, if these do not fit."""
CPU_PAGES = GIB
CPU_PAGES_SHARE = 0.25
"""Bytes of key-value pages on a CPU where nobody asked for a number, and at most this share of the
memory that the process may take."""
CODEC_COPIES = 3
"""A codec call's memory counts three times: for eager warm-up, for the graphs, and for
fragmentation."""
ENCODER_COPIES = 2
"""An encoding's memory counts twice: for the graphs, and for the eager warm-up of each."""
POSITIONS_PER_FRAME = 2
"""Positions for which there is memory beside each frame of page sets by frame, which take far more.
Speech has about 0.6 text tokens per frame at 6.25 Hz."""
ENCODER_SHARE = 0.2
"""Without `max_memory_gb`, the encoding of references takes at most this share of the memory beside
the weights. Where the longest does not fit, it is tried with what is left."""
ENCODER_COLUMNS = (COLUMNS[0], eager.columns)
"""Columns of the largest window of an encoding, where there is memory and where there is little."""


def _bytes(columns: Mapping[str, Column]) -> int:
    return sum(math.prod(c.shape) * torch_dtype(c.dtype).itemsize for c in columns.values())


def plan_memory(model: SpeechModel, config: EngineConfig, device: Device) -> BufferSizes:
    """Buffer sizes for `model` on `device`. Raises EngineError with what would fit if this does
    not.

    The weights and the slots for adapters have been made: what is free and what is taken count
    them.
    """
    spec = model.spec
    usable, total = _usable(config, device)
    encoder_bytes, encoder_columns = _encoder(
        model, device, usable, budget=config.max_memory_gb is not None
    )
    max_frames = min(config.max_frames, spec.max_model_len)
    needs = _needs(model, config, device, max_frames, encoder_bytes)
    shares = _shares(model, needs, config, usable, total)
    max_pages = min(shares.pages, needs.request_pages)
    return BufferSizes(
        **asdict(shares),
        max_frames=max_frames,
        page_size=config.page_size,
        max_pages=max_pages,
        max_model_len=min(spec.max_model_len, max_pages * config.page_size),
        slot_bytes=needs.slot,
        page_bytes=needs.page,
        encoder_bytes=encoder_bytes,
        encoder_columns=encoder_columns,
        frame_pages=shares.pages * _frames_per_page(spec, config),
        adapter_bytes=model.adapters.bytes,
    )


def frame_bytes(spec: ModelSpec) -> int:
    """Bytes of one frame in all page sets by frame."""
    sets = {
        n: Column((kv.layers, 2, kv.rows, kv.heads, kv.dim), kv.dtype)
        for n, kv in spec.frame_kv.items()
    }
    return _bytes(sets)


def _frames_per_page(spec: ModelSpec, config: EngineConfig) -> int:
    """Pages of one frame beside each page of positions."""
    if spec.frame_kv:
        return math.ceil(config.page_size / POSITIONS_PER_FRAME)
    return 0


def _needs(
    model: SpeechModel, config: EngineConfig, device: Device, max_frames: int, encoder_bytes: int
) -> Needs:
    """Measure the memory of each part. max_frames: frames that a slot holds. encoder_bytes: of
    encoding references."""
    spec = model.spec
    kv = spec.kv
    frames = Column((max_frames, *spec.frame.shape), spec.frame.dtype)
    hidden = {f"hidden {i}": column for i, column in enumerate(spec.hidden)}
    if spec.hides_frames:
        emit_columns = {"emitted_at": Column((max_frames,), "int64")}
    else:
        emit_columns = {}
    attended = Column((max_frames, ATTENDED_WIDTH if spec.alignment else 0))
    timing = spec.codec_timing
    if isinstance(timing, UtteranceTiming):
        chunk = timing.chunk
    else:
        chunk, _ = chunk_sizes(config.policy, timing)
    return Needs(
        slot=_bytes(
            {
                **engine_columns(spec),
                **spec.columns,
                **hidden,
                **emit_columns,
                "attended": attended,
                "frames": frames,
            }
        )
        + _bytes(model.codec.columns),
        page=_bytes({"kv": Column((kv.layers, 2, config.page_size, kv.heads, kv.dim), kv.dtype)})
        + _frames_per_page(spec, config) * frame_bytes(spec),
        codec_frame=_codec_frame(model, chunk, device, config.deterministic),
        encoder=encoder_bytes,
        page_size=config.page_size,
        request_pages=math.ceil(spec.max_model_len / config.page_size),
        chunk=chunk,
        priming=min(spec.codec_prefix, timing.chunk),  # frames of a call beside the others
    )


def _shares(
    model: SpeechModel, needs: Needs, config: EngineConfig, usable: int | None, total: int
) -> Shares:
    """How the memory beside the weights is divided. `usable` None: it is a CPU's, of which nothing
    is planned."""
    if usable is None or config.memory_gb is not None:
        return _with_pages(needs, config, usable)
    if config.max_num_seqs is not None:
        numbers = [config.max_num_seqs]
    else:
        numbers = fewer(SLOTS)
    shares = fit(needs, numbers, usable, total)
    if shares is not None:
        return shares
    raise EngineError(_no_memory(model, needs, config, numbers[-1], usable, total))


def _no_memory(
    model: SpeechModel, needs: Needs, config: EngineConfig, slots: int, usable: int, total: int
) -> str:
    if model.adapters.count:
        adapters = f", {model.adapters.bytes / GIB:.2f} GiB of adapters among them"
    else:
        adapters = ""
    if config.max_memory_gb is None:
        context = 0
    else:
        context = CONTEXT
    weights = f"{(total - usable) / GIB:.2f} GiB of {(total + context) / GIB:.2f} are taken by weights{adapters}"
    if context:
        weights += f", {context / GIB:.2f} by CUDA itself"
    if needs.encoder:
        weights += f", {needs.encoder / GIB:.2f} are for encoding references"
    enough = total - usable + least_bytes(needs, slots) + context
    return (
        f"no memory for key-value pages with {slots} slots: {weights}; "
        f"{enough / GIB:.2f} GiB hold {slots} slots"
    )


def _with_pages(needs: Needs, config: EngineConfig, usable: int | None) -> Shares:
    """Take the configured number of pages. Slots that were not are as many as fit beside them,
    graphs and codec calls.

    `usable` None: it is a CPU's, of which nothing is planned. EngineError if slots and pages alone
    are too many.
    """
    pages = (
        _cpu_pages() if config.memory_gb is None else int(config.memory_gb * GIB)
    ) // needs.page
    if pages < 1:
        raise EngineError(f"no memory for key-value pages: one takes {needs.page / GIB:.4f} GiB")
    if usable is None:
        return shares_of_pages(needs, config.max_num_seqs or CPU_SLOTS, pages)
    numbers = [config.max_num_seqs] if config.max_num_seqs else fewer(SLOTS)
    candidates = [shares_of_pages(needs, n, pages) for n in numbers]
    shares = next((s for s in candidates if bytes_with_graphs(needs, s) <= usable), candidates[-1])
    least = needs.buffers(shares.slots, shares.pages)
    if least <= usable:
        return shares
    slots = f"{shares.slots} slots with memory_gb {config.memory_gb:g} take {least / GIB:.2f} GiB"
    free = f"{usable / GIB:.2f} are free after the weights"
    raise EngineError(f"{slots}, and {free}; use a smaller max_num_seqs or memory_gb")


def _cpu_pages() -> int:
    """Bytes of key-value pages on a CPU. They fill in time, and a container that has no more memory
    is killed."""
    memory = machine.memory()
    if memory is None:
        return CPU_PAGES
    return min(CPU_PAGES, int(CPU_PAGES_SHARE * memory))


def _usable(config: EngineConfig, device: Device) -> tuple[int | None, int]:
    """Bytes beside the weights, and bytes with them. On a CPU None."""
    free = device.free_bytes()
    weights = device.allocated_bytes()
    if free is None:
        return None, 0
    usable = int(free * config.gpu_memory_utilization)
    if config.max_memory_gb is not None:
        usable = min(usable, int(config.max_memory_gb * GIB) - CONTEXT - weights)
    return usable, usable + weights


def _codec_frame(model: SpeechModel, chunk: int, device: Device, deterministic: bool) -> int:
    """Bytes of a codec call, by frame. A call of one row is measured, as it will be served. On a
    CPU 0."""
    if device.free_bytes() is None:
        return 0
    frame = model.spec.frame
    where = device.torch
    frames = torch.zeros(1, chunk, *frame.shape, dtype=torch_dtype(frame.dtype), device=where)
    with torch.inference_mode(), kernels.batch_invariant(deterministic):
        state = CodecStateTable(model.codec.columns, 1, where).columns
        call = one_row(where, chunk)
        # compiles kernels and makes the libraries' workspaces
        model.codec.decode(frames, state, call)
        return math.ceil(
            CODEC_COPIES
            * device.peak_bytes(lambda: model.codec.decode(frames, state, call))
            / chunk
        )


def _encoder(
    model: SpeechModel, device: Device, usable: int | None, budget: bool
) -> tuple[int, int]:
    """Bytes to leave for the encoding of references, one at a time, and columns of the largest
    window of it.

    The encoding of the longest one is measured, in the largest windows whose encoding takes its
    share of memory at most. budget: it must not be exceeded, so all that the smallest take is left,
    however much that is. On a CPU 0 bytes.
    """
    spec = model.spec
    if usable is None or not spec.takes_reference:
        return 0, eager.columns
    room = int(ENCODER_SHARE * max(0, usable))
    wav = torch.zeros(int(spec.reference_seconds[1] * spec.reference_rate), device=device.torch)
    num_bytes = 0
    with torch.inference_mode():
        model.encode(
            wav[: spec.reference_rate], "reference"
        )  # compiles kernels and makes the libraries' workspaces
        for columns in ENCODER_COLUMNS:
            num_bytes = ENCODER_COPIES * _peak(model, device, wav, Eager(columns), room)
            if num_bytes <= room:
                break
    return num_bytes if budget else min(num_bytes, room), columns


def _peak(model: SpeechModel, device: Device, wav: Tensor, launch: Eager, room: int) -> int:
    """Bytes that an encoding takes at its peak. `room` if there is no memory for it."""
    try:
        return device.peak_bytes(lambda: model.encode(wav, "reference", launch))
    except torch.OutOfMemoryError:  # with what is free, which pages will take later
        device.release_cached()
        return room

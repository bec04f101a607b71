"""Sizes of the engine's buffers, computed once at start from the device's memory and logged."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch

from stentor.config import EngineConfig
from stentor.engine.buffer_sizes import GIB, MIB, BufferSizes
from stentor.engine.codec_state import CodecStateTable
from stentor.engine.device import Device
from stentor.engine.reference_encoder import ENCODINGS
from stentor.engine.slot_table import engine_columns
from stentor.errors import EngineError
from stentor.layers.types import Column
from stentor.models.base import SpeechModel

GRAPHS = 6 * GIB
"""Bytes left free on CUDA for the language model's graphs and eager calls."""
SPARE = 0.3
"""At most this share of the free memory is left for graphs of the language model and of the codec."""
CODEC_FRAMES = 512
"""Rows times frames of one codec call, such as 64 chunks of 8 frames or 20 of 25. An H200 decodes no more audio per
second in larger calls, and the next chunk waits for them."""
CODEC_SHARE, CODEC_COPIES = 0.1, 3
"""Codec calls take at most this share of the free memory. A call's memory counts three times: for eager warm-up, for
the graphs, and for fragmentation."""
ENCODER_SHARE = 0.2
"""Encodings of references take at most this share of the free memory. Where two do not fit, one runs at a time, and
where not even the longest fits, it is tried with what is left."""


def _bytes(columns: Mapping[str, Column]) -> int:
    return sum(math.prod(c.shape) * torch.empty(0, dtype=c.dtype).element_size() for c in columns.values())


def plan_memory(model: SpeechModel, config: EngineConfig, device: Device) -> BufferSizes:
    """Buffer sizes for `model` on `device`. EngineError when not even one request fits.

    The weights and the slots for adapters have been made: what is free and what is taken count them.
    """
    spec, kv = model.spec, model.spec.kv
    slots, page_size = config.max_num_seqs or (64 if device.cuda else 8), config.page_size
    max_frames = min(config.max_frames, spec.max_model_len)
    frames = Column((max_frames, *spec.frame.shape), spec.frame.dtype)
    slot_bytes = _bytes({**engine_columns(spec), **spec.columns, "frames": frames}) + _bytes(model.codec.columns)
    page_bytes = _bytes({"kv": Column((kv.layers, 2, page_size, kv.heads, kv.dim), kv.dtype)})
    codec_frames, codec_bytes = _codec(model, config.policy.chunk, slots, device)
    encodings, encoder_bytes = _encoder(model, device)
    wanted = math.ceil(spec.max_model_len / page_size)  # per request
    pages = min(slots * wanted, _budget(config, device, slots * slot_bytes + encoder_bytes, codec_bytes) // page_bytes)
    if pages < 1:
        adapters = f" and adapters of {model.adapters.bytes / GIB:.2f} GiB" if model.adapters.count else ""
        each = f"{slots} slots of {slot_bytes / GIB:.3f} GiB each"
        raise EngineError(f"no memory for key-value pages beside {each}{adapters}")
    max_pages = min(pages, wanted)
    states = int(config.codec_states_mb * MIB) // _bytes(model.codec.columns) if spec.codec_prefix else 0
    return BufferSizes(
        slots=slots,
        max_frames=max_frames,
        page_size=page_size,
        pages=pages,
        max_pages=max_pages,
        max_model_len=min(spec.max_model_len, max_pages * page_size),
        slot_bytes=slot_bytes,
        page_bytes=page_bytes,
        codec_frames=codec_frames,
        codec_bytes=codec_bytes,
        encodings=encodings,
        encoder_bytes=encoder_bytes,
        codec_states=states,
        adapter_bytes=model.adapters.bytes,
    )


def _codec(model: SpeechModel, chunk: int, slots: int, device: Device) -> tuple[int, int]:
    """Frames of the largest codec call, and bytes to leave for codec calls. A call of one row is measured."""
    frames = min(CODEC_FRAMES, slots * chunk)
    free = device.free_bytes()
    if free is None:
        return frames, 0
    spec = model.spec.frame
    given = torch.zeros(1, chunk, *spec.shape, dtype=spec.dtype, device=device.torch)
    with torch.inference_mode():
        state = CodecStateTable(model.codec.columns, 1, device.torch).columns
        model.codec.decode(given, state)  # compiles kernels and makes the libraries' workspaces
        each = CODEC_COPIES * device.peak_bytes(lambda: model.codec.decode(given, state)) / chunk
    priming = min(model.spec.codec_prefix, model.spec.codec_chunk)  # frames of a call beside the others
    frames = min(frames, max(chunk, int(CODEC_SHARE * free / max(each, 1.0)) - priming))
    return frames, int((frames + priming) * each)


def _encoder(model: SpeechModel, device: Device) -> tuple[int, int]:
    """References encoded at a time, and bytes to leave for it. An encoding of the longest one is measured."""
    spec, free = model.spec, device.free_bytes()
    if free is None or not spec.takes_reference:
        return ENCODINGS, 0
    wav = torch.zeros(int(spec.reference_seconds[1] * spec.reference_rate), device=device.torch)
    with torch.inference_mode():
        model.encode(wav[: spec.reference_rate], "reference")  # compiles kernels and makes the libraries' workspaces
        try:
            each = device.peak_bytes(lambda: model.encode(wav, "reference"))
        except torch.OutOfMemoryError:  # with what is free, which pages will take later
            device.release_cached()
            each = free
    count = ENCODINGS if ENCODINGS * each <= ENCODER_SHARE * free else 1
    return count, min(count * each, int(ENCODER_SHARE * free))


def _budget(config: EngineConfig, device: Device, taken: int, codec_bytes: int) -> int:
    """Bytes for key-value pages. `taken`: bytes of slots and of encodings."""
    if config.memory_gb is not None:
        return int(config.memory_gb * GIB)
    free = device.free_bytes()
    if free is None:
        return GIB
    usable = free * config.gpu_memory_utilization
    if config.max_memory_gb is not None:
        usable = min(usable, config.max_memory_gb * GIB - device.allocated_bytes())
    return int(usable - min(GRAPHS + codec_bytes, free * SPARE)) - taken

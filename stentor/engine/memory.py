"""What fits: slots, key-value pages and what they cost, worked out once at start and printed."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch

from stentor.config import EngineConfig
from stentor.engine.device import Device
from stentor.engine.slots import engine_columns
from stentor.errors import EngineError
from stentor.models.base import Column, SpeechModel

GIB = 1 << 30
GRAPHS = 12 * GIB
"""Left free on CUDA for activations and what graphs hold; at most GRAPHS_SHARE of what is free."""
GRAPHS_SHARE = 0.3


@dataclass(frozen=True)
class Sizes:
    """Shapes of the engine's buffers. `capacity`: tokens (prompt + frames) that one request can take."""

    slots: int
    max_frames: int
    page: int
    pages: int
    max_pages: int  # per request
    capacity: int
    slot_bytes: int
    page_bytes: int

    def describe(self) -> str:
        kv, rows = self.pages * self.page_bytes / GIB, (self.slots + 1) * self.slot_bytes / GIB
        return (
            f"{self.slots} slots ({rows:.2f} GiB), {self.pages} pages of {self.page} tokens ({kv:.2f} GiB), "
            f"{self.capacity} tokens per request"
        )


def _bytes(columns: Mapping[str, Column]) -> int:
    return sum(math.prod(c.shape) * torch.empty(0, dtype=c.dtype).element_size() for c in columns.values())


def fit(model: SpeechModel, config: EngineConfig, device: Device) -> Sizes:
    """Buffer sizes for `model` on `device`. EngineError when not even one request fits."""
    spec, kv = model.spec, model.spec.kv
    slots = config.slots or (64 if device.cuda else 8)
    max_frames = min(config.max_frames, spec.max_tokens)
    columns = {
        **engine_columns(spec),
        **spec.columns,
        "frames": Column((max_frames, *spec.frame.shape), spec.frame.dtype),
    }
    slot_bytes = _bytes(columns) + _bytes(model.codec.columns)
    page_bytes = _bytes({"kv": Column((kv.layers, 2, config.page, kv.heads, kv.dim), kv.dtype)})
    wanted = slots * math.ceil(spec.max_tokens / config.page)
    pages = min(wanted, (_budget(config, device, slots * slot_bytes)) // page_bytes)
    max_pages = min(pages, math.ceil(spec.max_tokens / config.page))
    if pages < 1:
        raise EngineError(f"no memory for key-value pages beside {slots} slots of {slot_bytes / GIB:.3f} GiB each")
    capacity = min(spec.max_tokens, max_pages * config.page)
    return Sizes(slots, max_frames, config.page, pages, max_pages, capacity, slot_bytes, page_bytes)


def _budget(config: EngineConfig, device: Device, slot_bytes: int) -> int:
    """Bytes for key-value pages."""
    if config.memory_gb is not None:
        return int(config.memory_gb * GIB)
    free = device.free_bytes()
    if free is None:
        return GIB
    most = free * config.gpu_memory_utilization
    if config.max_memory_gb is not None:
        most = min(most, config.max_memory_gb * GIB - device.allocated_bytes())
    return int(most - min(GRAPHS, free * GRAPHS_SHARE)) - slot_bytes

"""Policy of a server that shares a GPU: which engines run under CUDA MPS, with which part of it and
with which stream priorities. One function without side effects."""

from __future__ import annotations

from dataclasses import dataclass

from stentor.server.config import ServerConfig, value_at


@dataclass(frozen=True)
class GpuUse:
    """Use of a GPU by one engine.

    mps: beside other engines at the same time, instead of in turns with them. share: the percentage
    of multiprocessors that it can use, None for all. stream_priorities: a step runs before audio is
    decoded."""

    mps: bool = False
    share: float | None = None
    stream_priorities: bool = True


def policy(config: ServerConfig, has_gpu: bool) -> list[GpuUse]:
    """Decide how each engine uses its GPU. With `auto`, engines run under MPS if they share a GPU
    or have a share of one. has_gpu: whether this process sees a GPU.

    Under MPS, streams have no priorities: they hold across processes, so that the steps of one
    engine would stop the codec of another."""
    devices = [place.shared_device for place in config.engines]
    uses = []
    for place, device in zip(config.engines, devices, strict=True):
        share = None
        if config.gpu_share:
            share = value_at(config.gpu_share, place.model) / config.engines_like(place)

        on_gpu = device != "cpu" and (has_gpu or place.device != "auto")
        is_shared = devices.count(device) > 1 or share is not None
        if on_gpu and (config.mps == "on" or (config.mps == "auto" and is_shared)):
            uses.append(GpuUse(mps=True, share=share, stream_priorities=False))
        else:
            uses.append(GpuUse())
    return uses

"""One frozen configuration object for an engine. Flags become it in one place (cli.py) and nothing writes back."""

from __future__ import annotations

from dataclasses import dataclass, field

from stentor.engine.scheduler import Policy
from stentor.errors import InvalidRequest


@dataclass(frozen=True)
class EngineConfig:
    """How big an engine is and how it runs. None means: chosen from the device and the model."""

    slots: int | None = None  # requests served at once; default 8 on a CPU, 64 on CUDA
    page: int = 16  # tokens per key-value page
    max_frames: int = 4096  # frames one request can hold
    memory_gb: float | None = None  # for key-value pages; default 1 on a CPU, what is free on CUDA
    gpu_memory_utilization: float = 0.9  # share of the free memory on CUDA that the engine may take
    max_memory_gb: float | None = None  # on CUDA, for weights, rows, pages, graphs and all; default: no other limit
    lag: int | None = None  # steps the host reads behind; default 0 on a CPU, 1 on CUDA
    batch_sizes: tuple[int, ...] | None = None  # decode batches are padded up to these; default exact on a CPU
    require_graphs: bool = False
    threads: int | None = None  # torch threads of the engine on a CPU; default the model's own, or torch's
    policy: Policy = field(default_factory=Policy)

    def __post_init__(self) -> None:
        for name in ("slots", "page", "max_frames", "threads"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise InvalidRequest(name, f"must be at least 1, got {value}")
        if self.lag is not None and self.lag < 0:
            raise InvalidRequest("lag", f"must be at least 0, got {self.lag}")
        for name in ("memory_gb", "max_memory_gb"):
            value = getattr(self, name)
            if value is not None and value <= 0:
                raise InvalidRequest(name, f"must be above 0, got {value}")
        if not 0 < self.gpu_memory_utilization <= 1:
            raise InvalidRequest("gpu_memory_utilization", f"must be in (0, 1], got {self.gpu_memory_utilization}")

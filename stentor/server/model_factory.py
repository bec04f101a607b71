"""How a server starts its engines: the arguments of TTS for each model, as plain data for its process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from stentor.machine import cpus
from stentor.server.config import ServerConfig
from stentor.server.engines.client import RECORDINGS_BYTES
from stentor.server.engines.launch import ProcessEngine, RunningEngine
from stentor.server.engines.messages import Ready
from stentor.server.engines.process import Load
from stentor.server.limits import LIMITS
from stentor.server.load_options import load_options

Given = TypeVar("Given")


@dataclass(frozen=True)
class EngineFactory:
    """Starts the engine of a model: calling it runs a process. at: its place among the server's models."""

    name: str
    model: str | None
    config: ServerConfig
    at: int = 0

    def __call__(self, adapters: Mapping[str, str], last: Ready | None, warm_up: bool) -> RunningEngine:
        """Start it with these adapters. The first start has all that the flags name, or fails. A later one has slots
        as the first, and what cannot be loaded again is left out."""

        load = Load(
            options=self.options(last),
            if_taken=self.if_taken(last),
            policy=self.policy(),
            adapters=dict(adapters),
            warm_up=warm_up,
            recordings_bytes=RECORDINGS_BYTES,
            trim_seconds=LIMITS.trim_seconds,
            log_level=self.config.uvicorn_log_level,
            log_format=self.config.log_format,
        )
        return ProcessEngine(self.name, load)

    def _own(self, given: Sequence[Given]) -> Given | None:
        """This model's of values for each, or the one for all. None: none is given."""
        return given[self.at if len(given) > 1 else 0] if given else None

    def options(self, last: Ready | None) -> dict[str, Any]:
        """Arguments of TTS."""
        c = self.config
        models = max(1, len(c.models))
        adapted: dict[str, Any] = {"loras": c.loras_of(self.name)}
        if adapted["loras"] or models == 1:
            adapted |= self._slots
        if adapted["loras"] and last is not None:  # those of the start need not be there any more
            adapted = {"loras": None, **last.lora_options}
        return {
            "model": self.model,
            "name": self.name,
            "device": c.device,
            "dtype": c.dtype,
            "quantization": self._own(c.quantization) or "auto",
            "lora": c.lora,
            "lexicon": c.lexicon,
            "max_num_seqs": c.max_num_seqs,
            "memory_gb": c.memory_gb,
            # equal shares, one after another
            "gpu_memory_utilization": c.gpu_memory_utilization / (models - self.at),
            "max_memory_gb": self._own(c.max_memory_gb),
            "deterministic": c.deterministic,
            "require_graphs": c.require_graphs,
            "threads": c.threads,
            "max_threads": cpu_share(models),
            "encoded_references": LIMITS.encoded_references,
            "codec_states_mb": LIMITS.codec_states_mb,
            "codec_pages_mb": LIMITS.codec_pages_mb,
            **load_options(c.load_options),
            **adapted,
        }

    def if_taken(self, last: Ready | None) -> dict[str, Any]:
        """Slots for adapters at run time, beside other models: this one may be of a family that has none."""
        if len(self.config.models) < 2 or self.config.loras_of(self.name):
            return {}
        return {k: v for k, v in self._slots.items() if v is not None} if last is None else dict(last.lora_options)

    @property
    def _slots(self) -> dict[str, Any]:
        return {"max_loras": self.config.max_loras, "max_lora_rank": self.config.max_lora_rank}

    def policy(self) -> dict[str, Any]:
        """Fields of the engine's Policy."""
        return {
            "max_queue": self.config.max_queued_requests,
            "max_unread": LIMITS.max_unread_seconds,
            "parked_mb": LIMITS.parked_mb,
            "unready_after": LIMITS.unready_after,
        }


def cpu_share(models: int) -> int | None:
    """CPU threads that each of several models takes at most. None: there is one, which may take all."""
    return None if models <= 1 else max(1, cpus() // models)

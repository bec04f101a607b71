"""How a server makes its models: TTS with the server's options."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from stentor.api import TTS
from stentor.config import Policy
from stentor.server.config import ServerConfig
from stentor.server.limits import LIMITS
from stentor.server.load_options import load_options
from stentor.server.loader import cpu_share

Given = TypeVar("Given")


@dataclass(frozen=True)
class ModelFactory:
    """Creates a model: calling it runs TTS with the server's options. at: its place among the server's models."""

    name: str
    model: str | None
    config: ServerConfig
    at: int = 0

    def _own(self, given: Sequence[Given]) -> Given | None:
        """This model's of values for each, or the one for all. None: none is given."""
        return given[self.at if len(given) > 1 else 0] if given else None

    def __call__(self, **adapters: Any) -> TTS:
        """Load the model. adapters: arguments in place of those that say which adapters it has."""
        c = self.config
        models = max(1, len(c.models))
        loras = c.loras_of(self.name)
        adapted = bool(loras) or self.at == 0
        given = {
            "loras": loras,
            "max_loras": c.max_loras if adapted else None,
            "max_lora_rank": c.max_lora_rank if adapted else None,
        }
        return TTS(
            self.model,
            name=self.name,
            device=c.device,
            dtype=c.dtype,
            quantization=self._own(c.quantization) or "auto",
            lora=c.lora,
            lexicon=c.lexicon,
            max_num_seqs=c.max_num_seqs,
            memory_gb=c.memory_gb,
            gpu_memory_utilization=c.gpu_memory_utilization / (models - self.at),  # equal shares, one after another
            max_memory_gb=self._own(c.max_memory_gb),
            deterministic=c.deterministic,
            require_graphs=c.require_graphs,
            capture_all=c.capture_all or models > 1,  # the next one plans with memory that is free, and others speak
            threads=c.threads,
            max_threads=cpu_share(models),
            encoded_references=LIMITS.encoded_references,
            codec_states_mb=LIMITS.codec_states_mb,
            codec_pages_mb=LIMITS.codec_pages_mb,
            policy=Policy(
                max_queue=c.max_queued_requests,
                max_unread=LIMITS.max_unread_seconds,
                parked_mb=LIMITS.parked_mb,
                unready_after=LIMITS.unready_after,
            ),
            **{**load_options(c.load_options), **given, **adapters},
        )

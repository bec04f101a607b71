"""How a server makes its models: TTS with the server's options."""

from __future__ import annotations

from dataclasses import dataclass

from stentor.api import TTS
from stentor.config import Policy
from stentor.server.config import ServerConfig
from stentor.server.limits import LIMITS


@dataclass(frozen=True)
class ModelFactory:
    """Creates a model: calling it runs TTS with the server's options."""

    name: str
    model: str | None
    config: ServerConfig

    def __call__(self) -> TTS:
        c = self.config
        return TTS(
            self.model,
            name=self.name,
            device=c.device,
            dtype=c.dtype,
            lora=c.lora,
            lexicon=c.lexicon,
            max_num_seqs=c.max_num_seqs,
            memory_gb=c.memory_gb,
            gpu_memory_utilization=c.gpu_memory_utilization,
            max_memory_gb=c.max_memory_gb,
            require_graphs=c.require_graphs,
            threads=c.threads,
            encoded_references=LIMITS.encoded_references,
            codec_states_mb=LIMITS.codec_states_mb,
            policy=Policy(
                max_queue=c.max_queued_requests,
                max_unread=LIMITS.max_unread_seconds,
                parked_mb=LIMITS.parked_mb,
                unready_after=LIMITS.unready_after,
            ),
        )

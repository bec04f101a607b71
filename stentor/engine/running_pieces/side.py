"""The running side of a family without steps."""

from __future__ import annotations

import logging
import math
from dataclasses import replace

from stentor.config import EngineConfig, Policy
from stentor.engine.on_host import HostSide, Workers
from stentor.engine.running_pieces.codec_runner import PieceCodecRunner
from stentor.engine.running_pieces.model_runner import PieceModelRunner
from stentor.engine.sizes import BufferSizes
from stentor.errors import InvalidRequest
from stentor.models.base import ModelSpec
from stentor.models.codec_timing import PieceTiming
from stentor.models.info import ATTENDED_WIDTH
from stentor.models.piece_model import PieceModel

log = logging.getLogger("stentor.engine")

SLOTS = 8
"""Requests served at once, where nobody asked for a number and a call has fewer pieces."""
FLOAT = 4
"""Bytes of a number in frames and text positions."""


class PieceSide(HostSide):
    """Implements engine.side.RunningSide."""

    def __init__(self, model: PieceModel, timing: PieceTiming, config: EngineConfig) -> None:
        """timing: that of the model."""
        if config.deterministic:
            raise InvalidRequest(
                "deterministic", "is not needed: a piece never depends on those beside it"
            )
        self.model = model
        self.sizes = piece_sizes(model.spec, timing, config)
        log.info("memory: %s", self.sizes.describe())
        # one thread more than calls: the engine's own plans the next pieces meanwhile
        super().__init__(Workers(timing.calls + 1, self.set_up_worker))
        self.runner = PieceModelRunner(model, timing, self.sizes.slots, self.workers)
        self.codec = PieceCodecRunner(model, timing, self.runner, self.workers)

    def set_up_worker(self) -> None:
        """Prepare a thread that plans and speaks."""

    def policy(self, policy: Policy) -> Policy:
        """Prompts share no pages: nothing is kept of a text."""
        return replace(policy, prefix_cache=False)


def piece_sizes(spec: ModelSpec, timing: PieceTiming, config: EngineConfig) -> BufferSizes:
    """Sizes of the rows. Nothing is allocated, and pages never run out."""
    slots = config.max_num_seqs or max(SLOTS, timing.pieces)
    per_request = math.ceil((spec.max_model_len + 1) / config.page_size)
    frame = math.prod(spec.frame.shape) + ATTENDED_WIDTH + spec.hop
    return BufferSizes(
        slots=slots,
        prefill_tokens=config.policy.max_prefill_tokens,
        codec_frames=timing.frames,
        graph_bytes=0,
        codec_bytes=0,
        pages=slots * per_request,
        max_frames=config.max_frames,
        page_size=config.page_size,
        max_pages=per_request,
        max_model_len=spec.max_model_len + 1,
        slot_bytes=config.max_frames * frame * FLOAT,
        page_bytes=0,
        encoder_bytes=0,
        encoder_columns=0,
    )

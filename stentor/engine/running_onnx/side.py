"""The running side over onnxruntime: a model's rows and workers on the CPU."""

from __future__ import annotations

import logging
import math
from dataclasses import replace

from stentor.config import EngineConfig, Policy
from stentor.engine.on_host import HostSide, Workers, threads_of
from stentor.engine.running_onnx.codec_runner import GraphCodecRunner
from stentor.engine.running_onnx.model_runner import GraphModelRunner
from stentor.engine.scheduling.chunks import GENTLE_RAMP, chunk_sizes
from stentor.engine.sizes import BufferSizes
from stentor.errors import EngineError, InvalidRequest
from stentor.models.base import ModelSpec
from stentor.models.graph_model import GraphModel

log = logging.getLogger("stentor.engine")

SLOTS = 8
"""Requests served at once, where nobody asked for a number."""
FLOAT = 4
"""Bytes of a number in keys, values and frames."""


class GraphSide(HostSide):
    """Implements engine.side.RunningSide."""

    def __init__(self, model: GraphModel, config: EngineConfig) -> None:
        if config.deterministic:
            raise InvalidRequest(
                "deterministic", "needs a CUDA GPU; here audio never depends on others"
            )
        self.model = model
        self.sizes = plan_rows(model.spec, config)
        log.info("memory on CPU: %s", self.sizes.describe())
        super().__init__(Workers(threads_of(config)))
        self.runner = GraphModelRunner(model, self.sizes.slots, self.workers)
        self.codec = GraphCodecRunner(model, self.runner, self.workers)

    def policy(self, policy: Policy) -> Policy:
        """Prompts share no pages, as rows hold their own keys and values."""
        ramp = GENTLE_RAMP if policy.ramp is None else policy.ramp
        return replace(policy, ramp=ramp, prefix_cache=False)


def plan_rows(spec: ModelSpec, config: EngineConfig) -> BufferSizes:
    """Sizes of the rows. Nothing is allocated: pages only bound how many positions run at once."""
    slots = config.max_num_seqs or SLOTS
    max_frames = min(config.max_frames, spec.max_model_len)
    chunk, _ = chunk_sizes(config.policy, spec.codec_timing)
    per_request = math.ceil(spec.max_model_len / config.page_size)
    position = 2 * spec.kv.layers * spec.kv.heads * spec.kv.dim * FLOAT
    frame = math.prod(spec.frame.shape) * FLOAT
    page = position * config.page_size
    pages = slots * per_request
    if config.memory_gb is not None:
        pages = min(pages, int(config.memory_gb * (1 << 30)) // page)
    if pages < 1:
        raise EngineError(f"no memory for key-value pages: one takes {page / (1 << 30):.4f} GiB")
    max_pages = min(pages, per_request)
    return BufferSizes(
        slots=slots,
        prefill_tokens=config.policy.max_prefill_tokens,
        codec_frames=chunk,
        graph_bytes=0,
        codec_bytes=0,
        pages=pages,
        max_frames=max_frames,
        page_size=config.page_size,
        max_pages=max_pages,
        max_model_len=min(spec.max_model_len, max_pages * config.page_size),
        slot_bytes=max_frames * (frame + position),
        page_bytes=0,  # a slot counts the keys and values of its row
        encoder_bytes=0,
        encoder_columns=0,
    )

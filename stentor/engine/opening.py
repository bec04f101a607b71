"""Open a model: choose what runs it, load it, and make its side of the engine.

Only the modules of the chosen runtime are imported, so that torch need not be installed for a model
with graphs.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from stentor import registry
from stentor.config import (
    EngineConfig,
    check_device,
    check_dtype,
    check_quantization,
    check_runtime,
)
from stentor.engine.adapters import Adapters
from stentor.engine.side import RunningSide
from stentor.errors import InvalidRequest
from stentor.host.installed import pip_install
from stentor.host.machine import has_nvidia_gpu
from stentor.models.base import HostModel
from stentor.models.codec_timing import PieceTiming
from stentor.models.model_names import check, graphs_of, has_released_graph

if TYPE_CHECKING:
    from stentor.models.graph_model import GraphModel
    from stentor.models.piece_model import PieceModel

log = logging.getLogger("stentor.engine")

GRAPH_DTYPES = ("auto", "float32")
GRAPH_OPTIONS = ("flow_steps",)
"""Load options of a family with graphs. Others need torch."""


@dataclass(frozen=True)
class Wanted:
    """How a model is to be loaded: arguments of TTS. InvalidRequest names one that no model can
    have.

    adapters: files of LoRA weights by name. options: load options of the family.
    """

    device: str = "auto"
    dtype: str = "auto"
    quantization: str = "auto"
    runtime: str = "auto"
    adapters: Mapping[str, str | Path] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_device(self.device)
        check_dtype(self.dtype)
        check_quantization(self.quantization)
        check_runtime(self.runtime)

    def needs_torch(self) -> str | None:
        """The argument for which torch must run a model that has graphs. None: there is none."""
        if self.runtime == "torch":
            return "runtime"
        if not self._runs_on_cpu():
            return "device"
        if self.dtype not in GRAPH_DTYPES:
            return "dtype"
        if self.quantization != "auto":
            return "quantization"
        if self.adapters:
            return "loras"
        return next((name for name in self.options if name not in GRAPH_OPTIONS), None)

    def _runs_on_cpu(self) -> bool:
        """Whether the device is the CPU. CUDA is probed only where there is a GPU, and torch to use
        it."""
        if self.device != "auto":
            return self.device == "cpu"
        if not has_nvidia_gpu() or find_spec("torch") is None:
            return True
        from stentor.engine.running.device import pick_device

        return pick_device(self.device) == "cpu"


@dataclass(frozen=True)
class Opened:
    """A loaded model, its side of the engine, and its adapters."""

    model: HostModel
    side: RunningSide
    adapters: Adapters


def open_model(model: str | Path, name: str, wanted: Wanted, config: EngineConfig) -> Opened:
    """Load a model directory, a Hub id or `dummy:NAME`. name: what errors call it.

    InvalidRequest names an argument that this model does not take, or the extra that it needs.
    """
    checkpoint = graphs_of(model)
    blocker = wanted.needs_torch()
    if checkpoint is not None and blocker is None:
        return _with_graphs(checkpoint, wanted, config)
    if wanted.runtime == "onnxruntime":
        why = f"{blocker} asks for what needs torch" if checkpoint else f"{name} has no graphs"
        raise InvalidRequest("runtime", f"onnxruntime cannot run this: {why}")
    if find_spec("torch") is None:
        check(model)  # a name that is wrong everywhere is reported as that
        raise InvalidRequest(
            blocker if checkpoint and blocker else "model", torch_message(checkpoint, name, wanted)
        )
    return _with_torch(model, wanted, config)


def torch_message(checkpoint: Path | None, name: str, wanted: Wanted) -> str:
    """The line that installs what is missing."""
    extra = "cuda" if wanted.device.startswith("cuda") else "torch"
    subject = "this" if checkpoint else name
    return f"{subject} needs PyTorch, which is not installed: {pip_install(extra)}"


def _with_graphs(checkpoint: Path, wanted: Wanted, config: EngineConfig) -> Opened:
    from stentor.graphs.exactness import adds_exactly

    eight_bits = wanted.dtype == "auto"
    released = has_released_graph(checkpoint)
    if released and not eight_bits:
        raise InvalidRequest("dtype", f"{checkpoint} has a graph in 8 bits: leave dtype out")
    if eight_bits and not released and not adds_exactly():
        log.info("this CPU does not add products of 8 bits exactly: the model runs in float32")
        eight_bits = False
    model = registry.load_graphs(checkpoint, eight_bits, wanted.options)
    return Opened(model, _graph_side(model, config), Adapters())


def _graph_side(model: HostModel, config: EngineConfig) -> RunningSide:
    """The side that runs a model by onnxruntime: in steps, or whole pieces."""
    timing = model.spec.codec_timing
    if isinstance(timing, PieceTiming):
        from stentor.engine.running_pieces.side import PieceSide

        return PieceSide(cast("PieceModel", model), timing, config)
    from stentor.engine.running_onnx.side import GraphSide

    return GraphSide(cast("GraphModel", model), config)


def _with_torch(model: str | Path, wanted: Wanted, config: EngineConfig) -> Opened:
    import torch

    from stentor.engine.running.adapter_writer import AdapterWriter
    from stentor.engine.running.device import Device, pick_device
    from stentor.engine.running.forked import one_thread
    from stentor.engine.running.pieces import TorchPieceSide
    from stentor.engine.running.side import TorchSide

    device = Device(pick_device(wanted.device), config.stream_priorities)
    dtype = None if wanted.dtype == "auto" else getattr(torch, wanted.dtype)
    options = dict(wanted.options)
    if wanted.quantization != "auto":
        options["quantization"] = wanted.quantization
    if wanted.adapters:
        options["loras"] = wanted.adapters
    with device.current(), device.loading(), one_thread() as threads:
        if threads is not None:
            config = replace(config, max_threads=min(threads, config.max_threads or threads))
        loaded = registry.load(model, device.torch, dtype, options)
        device.release_cached()  # what only the load needed
        adapters = Adapters(loaded.adapters, AdapterWriter(loaded.adapters, device))
        for name, path in wanted.adapters.items():
            adapters.load(name, path)
        timing = loaded.spec.codec_timing
        if isinstance(timing, PieceTiming):
            pieces = cast("PieceModel", loaded)
            return Opened(loaded, TorchPieceSide(pieces, timing, device, config), adapters)
        return Opened(loaded, TorchSide(loaded, device, config), adapters)

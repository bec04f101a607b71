"""Sessions of onnxruntime over the graphs of a checkpoint."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from stentor.errors import CheckpointError
from stentor.graphs.tensors import TensorFile
from stentor.graphs.weights import SCALE, Weight
from stentor.host.onnx_runtime import onnxruntime as ort
from stentor.models.model_names import GRAPHS

FATAL = 3  # onnxruntime's log level for errors: it warns of options that are set on purpose
Value: TypeAlias = Any
"""An onnxruntime.OrtValue: an array that calls take and return without a copy."""


def value_of(array: np.ndarray) -> Value:
    """An array as onnxruntime takes it."""
    return ort.OrtValue.ortvalue_from_numpy(np.ascontiguousarray(array))


class Session:
    """One graph. Thread-safe: calls from several threads run at the same time."""

    def __init__(
        self,
        data: bytes,
        weights: Mapping[str, np.ndarray],
        threads: int,
        convolutions: bool = False,
    ) -> None:
        """threads: of one call. weights: by the names of the graph's external initializers.
        convolutions: there are some, which run in the layout of this CPU.
        """
        options = ort.SessionOptions()
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
        options.log_severity_level = FATAL
        # The graph was rewritten when it was made. Here that would take longer than the first
        # words. Only the layout is chosen here, as it depends on the width of vectors.
        level = ort.GraphOptimizationLevel
        options.graph_optimization_level = level.ORT_DISABLE_ALL
        if convolutions:
            options.graph_optimization_level = level.ORT_ENABLE_ALL
        options.enable_mem_pattern = False
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        if weights:
            values = [value_of(value) for value in weights.values()]
            options.add_external_initializers(list(weights), values)
        self._session = ort.InferenceSession(data, options, providers=["CPUExecutionProvider"])
        self._outputs = [output.name for output in self._session.get_outputs()]

    def __call__(self, feeds: Mapping[str, Value]) -> list[Value]:
        """All outputs, in the graph's order."""
        values: list[Value] = self._session.run_with_ort_values(self._outputs, feeds)
        return values


@dataclass(frozen=True)
class GraphTable:
    """The table of a checkpoint's graphs, `graphs.json`.

    codec_states: shapes of the codec's histories. files: by graph, the file with its tensors.
    """

    folder: Path
    codec_states: Sequence[tuple[int, ...]]
    files: Mapping[str, str]
    weights: Mapping[str, Mapping[str, Weight]]

    @classmethod
    def read(cls, checkpoint: Path) -> GraphTable:
        """Raises CheckpointError for a table that is not one."""
        file = checkpoint / GRAPHS
        try:
            data: dict[str, Any] = json.loads(file.read_bytes())
            graphs = data["weights"]
            return cls(
                checkpoint,
                [tuple(shape) for shape in data["codec_states"]],
                {name: graph["file"] for name, graph in graphs.items()},
                {
                    name: {key: Weight.parse(w) for key, w in graph["tensors"].items()}
                    for name, graph in graphs.items()
                },
            )
        except (OSError, ValueError, KeyError, TypeError) as e:
            raise CheckpointError(f"{file} is no table of graphs: {e}") from e

    def session(
        self,
        name: str,
        files: Mapping[str, TensorFile],
        eight_bits: bool,
        convolutions: bool = False,
    ) -> Session:
        """Make the session of a graph, with one thread per call. eight_bits: with products in 8
        bits. convolutions: see Session."""
        suffix = ".int8" if eight_bits else ""
        path = self.folder / GRAPHS.parent / f"{name}{suffix}.onnx"
        try:
            data = path.read_bytes()
        except OSError as e:
            raise CheckpointError(f"{path} cannot be read: {e}") from e
        arrays = arrays_of(self.weights[name], files[self.files[name]], eight_bits)
        return Session(data, arrays, threads=1, convolutions=convolutions)


def arrays_of(
    weights: Mapping[str, Weight], file: TensorFile, eight_bits: bool
) -> dict[str, np.ndarray]:
    """The arrays of a graph's weights, by the names of its initializers."""
    arrays: dict[str, np.ndarray] = {}
    for name, weight in weights.items():
        if eight_bits and weight.has_eight_bits:
            arrays[name], arrays[name + SCALE] = weight.narrow(file)
        else:
            arrays[name] = weight.wide(file)
    return arrays

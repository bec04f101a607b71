"""Exported graphs as they are checked in: products in 8 bits, fused nodes, and weights by name
only."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from stentor.graphs.exactness import INPUTS, LARGEST
from stentor.graphs.weights import INT8_UPSAMPLING, PRODUCT, SCALE, Weight
from stentor.host.onnx_runtime import onnxruntime as ort

CONTRIB = "com.microsoft"
ZERO = 64
"""Integer of 0 where rows have scales of their own. With 128 the noise is 2 dB louder."""
LEAST = 1e-20
"""Scale of a row of zeros."""


def in_eight_bits(model: onnx.ModelProto, weights: Mapping[str, Weight]) -> None:
    """Replace products by weights, and the bias behind each, by products in 8 bits with one scale
    per call.

    The initializers become int8 and scales. They are made as the checkpoint was: largest magnitude
    over 127.
    """
    graph = model.graph
    values = {t.name: t for t in graph.initializer}
    users: dict[str, list[onnx.NodeProto]] = {}
    for node in graph.node:
        for name in node.input:
            users.setdefault(name, []).append(node)

    replaced: dict[str, onnx.NodeProto] = {}  # by the name of the node that goes
    dropped: set[str] = set()
    for node in graph.node:
        weight = node.input[1] if node.op_type == "MatMul" else ""
        if weight not in weights or weights[weight].layout != PRODUCT:
            continue
        bias, after = _bias_behind(node, users, values)
        output = node.output[0] if after is None else after.output[0]
        inputs = [node.input[0], weight, weight + SCALE, "", bias]
        product = helper.make_node(
            "DynamicQuantizeMatMul", inputs, [output], node.name, domain=CONTRIB
        )
        replaced[node.name] = product
        if after is not None:
            dropped.add(after.name)
        _quantize(graph, values[weight], axis=0)

    nodes = [replaced.get(n.name, n) for n in graph.node if n.name not in dropped]
    del graph.node[:]
    graph.node.extend(nodes)
    if not any(o.domain == CONTRIB for o in model.opset_import):
        model.opset_import.append(helper.make_opsetid(CONTRIB, 1))


def _bias_behind(
    node: onnx.NodeProto,
    users: Mapping[str, list[onnx.NodeProto]],
    values: Mapping[str, TensorProto],
) -> tuple[str, onnx.NodeProto | None]:
    """The bias that is added to a product and to nothing else, and the node that adds it. ("",
    None): there is none."""
    following = users.get(node.output[0], [])
    if len(following) == 1 and following[0].op_type == "Add":
        for name in following[0].input:
            if name in values and len(values[name].dims) == 1:
                return name, following[0]
    return "", None


def upsample_in_eight_bits(model: onnx.ModelProto, weights: Mapping[str, Weight]) -> None:
    """Replace the upsamplings that are stored in 8 bits by products in 8 bits, with a scale for
    each row: audio does not depend on which frames share a call.

    Inputs times the scales of the weight become integers from 0 to 255, of which ZERO stands for 0:
    behind a Snake they are more often large than small.
    """
    graph = model.graph
    values = {t.name: t for t in graph.initializer}
    constants = {
        "up": np.float32(1 / (255 - ZERO)),
        "down": np.float32(-1 / ZERO),
        "least": np.float32(LEAST),
        "zero": np.float32(ZERO),
        "zero_point": np.uint8(ZERO),
        "last": np.array([-1]),
    }
    graph.initializer.extend(
        numpy_helper.from_array(np.asarray(value), f"rows/{name}")
        for name, value in constants.items()
    )
    nodes: list[onnx.NodeProto] = []
    for node in graph.node:
        weight = node.input[1] if node.op_type == "MatMul" else ""
        if weight in weights and weights[weight].layout == INT8_UPSAMPLING:
            nodes += _by_rows(node.input[0], weight, node.output[0])
            _quantize(graph, values[weight], axis=1)
        else:
            nodes.append(node)
    del graph.node[:]
    graph.node.extend(nodes)


def _by_rows(x: str, weight: str, y: str) -> list[onnx.NodeProto]:
    """Nodes of y = x times a weight in 8 bits."""

    def node(kind: str, inputs: str, output: str, **attributes: int) -> onnx.NodeProto:
        names = {"x": x, "weight": weight, "weight_scale": weight + SCALE, "y": y}
        constants = ("up", "down", "least", "zero", "zero_point", "last")

        def full(name: str) -> str:
            if name in constants:
                return f"rows/{name}"
            return names.get(name, f"{weight}/{name}")

        return helper.make_node(kind, [*map(full, inputs.split())], [full(output)], **attributes)

    return [
        node("Mul", "x weight_scale", "scaled"),
        node("ReduceMax", "scaled last", "largest", keepdims=1),
        node("ReduceMin", "scaled last", "smallest", keepdims=1),
        node("Mul", "largest up", "above"),
        node("Mul", "smallest down", "below"),
        node("Max", "above below least", "scale"),
        node("Div", "scaled scale", "steps"),
        node("Round", "steps", "rounded"),
        node("Add", "rounded zero", "shifted"),
        node("Cast", "shifted", "integers", to=TensorProto.UINT8),
        node("MatMulInteger", "integers weight zero_point", "sums"),
        node("Cast", "sums", "wide", to=TensorProto.FLOAT),
        node("Mul", "wide scale", "y"),
    ]


def _quantize(graph: onnx.GraphProto, tensor: TensorProto, axis: int) -> None:
    """Make a weight [in, out] int8 in place, with its scales as an initializer beside it: those of
    the outputs (axis 0), or of the inputs."""
    value = numpy_helper.to_array(tensor)
    largest = np.abs(value).max(axis, keepdims=True)
    scale = (largest / 127).astype(np.float32)
    integers = np.rint(value / np.where(scale > 0, scale, 1)).astype(np.int8)
    graph.initializer.append(numpy_helper.from_array(scale.reshape(-1), tensor.name + SCALE))
    tensor.CopyFrom(numpy_helper.from_array(integers, tensor.name))


def probe() -> bytes:
    """The model of `stentor.graphs.exactness`: x [1, INPUTS] times a weight of the largest
    integers."""
    weight = numpy_helper.from_array(np.full((INPUTS, 16), LARGEST, np.int8), "weight")
    scale = numpy_helper.from_array(np.ones(16, np.float32), "scale")
    product = helper.make_node(
        "DynamicQuantizeMatMul", ["x", "weight", "scale"], ["y"], domain=CONTRIB
    )
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, INPUTS])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 16])
    graph = helper.make_graph([product], "probe", [x], [y], [weight, scale])
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid(CONTRIB, 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    data: bytes = model.SerializeToString(deterministic=True)
    return data


def fused(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model after onnxruntime's own rewriting, which then need not be done at each load."""
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "source.onnx"
        target = Path(folder) / "target.onnx"
        onnx.save(model, str(source))
        options = ort.SessionOptions()
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
        options.optimized_model_filepath = str(target)
        options.add_session_config_entry("session.disable_prepacking", "1")
        options.log_severity_level = 3
        ort.InferenceSession(str(source), options, providers=["CPUExecutionProvider"])
        return onnx.load(str(target))


def strip(model: onnx.ModelProto, weights: Mapping[str, Weight]) -> dict[str, Weight]:
    """Leave only the names of these weights in the model. Returns those that it has.

    A weight that a fusion has transposed or merged must not be among them: its value is compared.
    """
    del model.graph.value_info[:], model.graph.metadata_props[:], model.metadata_props[:]
    model.graph.doc_string = ""
    for node in model.graph.node:
        del node.metadata_props[:]
        node.doc_string = ""
        node.name = ""
    kept = {}
    for tensor in model.graph.initializer:
        name = tensor.name.removesuffix(SCALE)
        if name not in weights:
            continue
        kept[name] = weights[name]
        size = numpy_helper.to_array(tensor).nbytes
        for field in ("raw_data", "float_data", "int32_data"):
            tensor.ClearField(field)
        tensor.data_location = TensorProto.EXTERNAL
        entries = (("location", "checkpoint"), ("offset", "0"), ("length", str(size)))
        for key, value in entries:
            tensor.external_data.add(key=key, value=value)
    return kept

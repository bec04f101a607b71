"""From the names of exported weights to the tensors of a VoxCPM2 checkpoint."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import numpy_helper

from stentor.graphs.tensors import TensorFile
from stentor.graphs.weights import INT8_UPSAMPLING, PRODUCT, UPSAMPLING, Weight
from stentor.models.weights import checkpoint_names

DECODER = "decoder"
SMALL = 16  # numbers. A constant of the network, such as a factor, is no weight


def language_weights(model: onnx.ModelProto, file: TensorFile) -> dict[str, Weight]:
    """Weights of `lm` and `flow`, which keep the names of the modules."""
    weights = {}
    for tensor in model.graph.initializer:
        value = numpy_helper.to_array(tensor)
        name = tensor.name.removeprefix("net.").replace("dit.", "feat_decoder.estimator.", 1)
        stored = tuple(checkpoint_names(name))
        if value.size < SMALL or stored[0] not in file:
            continue
        product = value.ndim == 2 and f"{stored[0]}_scale" in file
        layout = PRODUCT if product else "plain"
        weights[tensor.name] = _checked(Weight(stored, layout, value.shape), file, value)
    return weights


def codec_weights(model: onnx.ModelProto, file: TensorFile, bucket: int) -> dict[str, Weight]:
    """Weights of `codec`. bucket: row of the sample-rate tables."""
    weights = {}
    for tensor in model.graph.initializer:
        value = numpy_helper.to_array(tensor)
        if not tensor.name.startswith("weights.") or value.size < SMALL:
            continue
        stored, layout, row = _codec_origin(tensor.name.removeprefix("weights."), value, file)
        weight = Weight((stored,), layout, value.shape, bucket if row else None)
        weights[tensor.name] = _checked(weight, file, value)
    return weights


def _codec_origin(key: str, value: np.ndarray, file: TensorFile) -> tuple[str, str, bool]:
    """The tensor behind a key such as `model_2_block_1_bias`, its layout, and whether it is a row
    of a table."""
    for prefix, table in (("scale", "scale_embed"), ("shift", "bias_embed")):
        if key.startswith(prefix):
            index = key.removeprefix(prefix)
            return f"{DECODER}.sr_cond_model.{index}.{table}.weight", "plain", True
    name, _, part = key.partition("_bias")
    inverse = key.endswith("_inverse")
    name = f"{DECODER}.{name.removesuffix('_inverse').replace('_', '.')}"
    assert not part, key
    if key.endswith("_bias"):
        repeated = file.stored(f"{name}.bias").size < value.size
        return f"{name}.bias", "repeated" if repeated else "plain", False
    if f"{name}.alpha" in file:
        return f"{name}.alpha", "inverse" if inverse else "plain", False
    if value.ndim > 2:
        return f"{name}.weight", "plain", False
    _, inputs, _ = file.stored(f"{name}.weight_v").shape  # of a convolution
    if len(value) != inputs:
        integers = file.stored(f"{name}.weight_v").dtype == np.int8
        return f"{name}.weight", INT8_UPSAMPLING if integers else UPSAMPLING, False
    return f"{name}.weight", "taps", False


def _checked(weight: Weight, file: TensorFile, value: np.ndarray) -> Weight:
    """The weight, which must have the value of the exported one."""
    made = weight.wide(file)
    np.testing.assert_allclose(made, value, rtol=2e-3, atol=1e-6, err_msg=str(weight))
    return weight

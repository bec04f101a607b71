"""Checkpoints that come quantised, by torchao or compressed-tensors: weights of 8 bits, by channel
or group.

config.json's `quantization_config` describes them. It is checked first, so that no other scheme is
read as one of these. The formats are those of torchao 0.16 in safetensors, and of
compressed-tensors 0.8 to 0.13.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from stentor.errors import CheckpointError
from stentor.layers.quantized import LARGEST
from stentor.models.config_reader import ConfigReader

FORMATS = ("pack-quantized", "int-quantized", "float-quantized", "naive-quantized")
TORCHAO = ("Int8WeightOnlyConfig", "Float8WeightOnlyConfig")
BYTES_OF_INT32 = 4


def read_quantized(
    config: Mapping[str, Any], tensors: Mapping[str, Tensor], source: str
) -> dict[str, Tensor]:
    """A checkpoint's tensors, with `X.weight` in 8 bits and `X.weight_scale` [outputs, groups] for
    quantised layers.

    config: config.json. Without a `quantization_config` in it tensors have these names already.
    CheckpointError names the field or the tensor that stentor does not read, and what it does.
    """
    has_config = config.get("quantization_config") is not None
    plain = (
        _renamed(ConfigReader(config).section("quantization_config"), tensors, source)
        if has_config
        else tensors
    )
    for name, value in plain.items():
        # Where no scheme is named, float8 may be no more than a dtype. Integers never are weights
        # by themselves.
        quantized = not value.is_floating_point() or (has_config and value.element_size() == 1)
        if name.endswith(".weight") and quantized and f"{name}_scale" not in plain:
            raise CheckpointError(
                f"{source}: tensor {name}_scale is missing: {name} is stored in {value.dtype}"
            )
    return {
        k: _scales(v, plain, k, source) if k.endswith(".weight_scale") else v
        for k, v in plain.items()
    }


def _renamed(
    settings: ConfigReader, tensors: Mapping[str, Tensor], source: str
) -> dict[str, Tensor]:
    """The tensors of a checked scheme, under the names of this module."""
    method = settings.text("quant_method", "")
    if method == "torchao":
        _check_torchao(settings)
        return _torchao(tensors)
    if method == "compressed-tensors":
        _check_compressed(settings)
        return _compressed(tensors, source)
    raise settings.error("quant_method", f"must be torchao or compressed-tensors, got {method!r}")


def _check_torchao(settings: ConfigReader) -> None:
    kinds = settings.section("quant_type")
    if list(kinds.data) != ["default"]:
        raise kinds.error(
            "default", f"must be the only entry, got {', '.join(map(str, kinds.data))}"
        )
    default = kinds.section("default")
    if default.text("_type", "") not in TORCHAO:
        raise default.error(
            "_type", f"must be one of {', '.join(TORCHAO)}, got {default.data.get('_type')!r}"
        )
    stored = default.section("_data", {}).section("weight_dtype", {"_data": "float8_e4m3fn"})
    if stored.text("_data") != "float8_e4m3fn":
        raise stored.error("_data", f"must be float8_e4m3fn, got {stored.data['_data']!r}")


def _torchao(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """`X._weight_qdata`, `X._weight_scale` and, of zeros, `X._weight_zero_point`."""
    renamed = {
        k.replace("._weight_qdata", ".weight").replace("._weight_", ".weight_"): v
        for k, v in tensors.items()
    }
    return _without_zero_points(renamed)


def _check_compressed(settings: ConfigReader) -> None:
    for name in ("kv_cache_scheme", "sparsity_config", "transform_config"):
        value = settings.data.get(name)
        if value and not (isinstance(value, dict) and value.get("format") == "dense"):
            raise settings.error(name, f"is not supported, got {value!r}")
    settings.choice("format", FORMATS, FORMATS[0])
    groups = settings.section("config_groups")
    for name in groups.data:
        group = groups.section(name)
        for part in ("input_activations", "output_activations"):
            if group.data.get(part) is not None:
                raise group.error(part, "must be null: only weights may be quantised")
        if group.data.get("format") is not None:
            group.choice("format", FORMATS, FORMATS[0])
        _check_scheme(group.section("weights"))


def _check_scheme(weights: ConfigReader) -> None:
    """Check the compressed-tensors scheme of a group of layers."""
    if weights.integer("num_bits", 8) != 8:
        raise weights.error("num_bits", f"must be 8, got {weights.data['num_bits']}")
    weights.choice("type", ("int", "float"), "int")
    weights.choice("strategy", ("channel", "group", "tensor"), "channel")
    for name, expected in (("symmetric", True), ("dynamic", False)):
        if weights.flag(name, expected) is not expected:
            raise weights.error(name, f"must be {str(expected).lower()}")
    if weights.data.get("actorder") not in (None, False, "weight", "static"):
        raise weights.error(
            "actorder", f"must be null, weight or static, got {weights.data['actorder']!r}"
        )


def _compressed(tensors: Mapping[str, Tensor], source: str) -> dict[str, Tensor]:
    """`X.weight` or, four to an int32, `X.weight_packed` with `X.weight_shape`. Then
    `X.weight_scale`."""
    unpacked = _without_zero_points(tensors)
    for name in [k for k in unpacked if k.endswith(".weight_packed")]:
        layer = name.removesuffix("_packed")
        packed = unpacked.pop(name)
        shape = unpacked.pop(f"{layer}_shape", None)
        if packed.dtype != torch.int32 or packed.ndim != 2 or shape is None or shape.numel() != 2:
            raise CheckpointError(
                f"{source}: tensor {name} must be int32 of two dimensions beside {layer}_shape"
            )
        rows, columns = (int(n) for n in shape)
        if rows != len(packed) or -(-columns // BYTES_OF_INT32) != packed.shape[1]:
            raise CheckpointError(
                f"{source}: tensor {name} has shape {list(packed.shape)} for {[rows, columns]} weights"
            )
        unpacked[layer] = _unpacked(packed, columns)
    return unpacked


def _unpacked(packed: Tensor, columns: int) -> Tensor:
    """int32 [N, K / 4] -> int8 [N, K]. The lowest byte is the first, and each stands for its value
    + 128."""
    shifts = torch.arange(0, 32, 8, dtype=torch.int32)
    values = ((packed[:, :, None] >> shifts) & 0xFF) - 128
    return values.to(torch.int8).flatten(1)[:, :columns].contiguous()


def _without_zero_points(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Zero points may be there, of zeros: the schemes that are read are symmetric. Others are left,
    to be refused."""
    return {
        k: v for k, v in tensors.items() if not k.endswith(".weight_zero_point") or bool(v.any())
    }


def _scales(scale: Tensor, tensors: Mapping[str, Tensor], name: str, source: str) -> Tensor:
    """`scale` as [outputs, groups]. One number is for all outputs."""
    weight = tensors.get(name.removesuffix("_scale"))
    if weight is None or weight.dtype not in LARGEST or weight.ndim != 2:
        raise CheckpointError(
            f"{source}: tensor {name} stands beside no weight [out, in] of int8 or float8 (e4m3)"
        )
    outputs, inputs = weight.shape
    if scale.numel() == 1:
        return scale.reshape(1, 1).repeat(outputs, 1)
    fits = scale.shape[0] == outputs and scale.numel() and not scale.numel() % outputs
    if not fits or inputs % (scale.numel() // outputs):
        raise CheckpointError(
            f"{source}: tensor {name} has shape {list(scale.shape)} for weights {[outputs, inputs]}"
        )
    return scale.reshape(outputs, -1)

"""Weights of language models in 8 bits: quantised as they are loaded, or as a checkpoint has them.

A quantised layer of a checkpoint is `X.weight` in int8 or float8 and `X.weight_scale` [outputs,
groups]. `models/quantized_checkpoint.py` brings the formats of others to that. Only the four linear
layers of the blocks of language models and depth loops stay in 8 bits. Others that a checkpoint has
in 8 bits are widened when it is loaded.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from concurrent.futures import Executor, Future
from typing import NamedTuple

import torch
from torch import Tensor, nn

from stentor.config import QUANTIZATIONS, check_quantization
from stentor.errors import CheckpointError, InvalidRequest
from stentor.layers.linear import Linear, QuantizedLinear
from stentor.layers.packed import PackedLinear
from stentor.layers.quantized import LARGEST, dequantize, quantize
from stentor.models.weights import checkpoint_names

QUANTIZATION = "quantization"
"""Load option of every family that has language models."""
DEPTH = torch.int8, 1
"""The only (dtype, scales of each output) in which depth loops stay in 8 bits: float8 has three
bits of mantissa, and the fastest kernels, which make it worth while, read neither that nor
groups."""
DTYPES = dict(zip(QUANTIZATIONS, (None, *LARGEST), strict=True))


class EightBits(NamedTuple):
    """Linear layers that may have 8 bits: those of the blocks of `stacks`, and those of the depth
    loops `depth`.

    dtype: requested, or None for the checkpoint's own.
    """

    dtype: torch.dtype | None
    stacks: tuple[str, ...]
    depth: tuple[str, ...] = ()


ONLY_WIDENED = EightBits(None, ())


def quantization(options: Mapping[str, object]) -> torch.dtype | None:
    """Return the requested dtype of quantised weights, or None for the checkpoint's own. Raises
    InvalidRequest."""
    return DTYPES[check_quantization(str(options.get(QUANTIZATION, "auto")))]


def quantize_layers(
    net: nn.Module, stacks: Iterable[str], dtype: torch.dtype | None, depth: Iterable[str] = ()
) -> None:
    """Make every linear layer of these stacks of `net` a quantised one. Their weights are not kept.
    None: no layer.

    depth: names of depth loops, which take part in `DEPTH` only.
    """
    if dtype is None:
        return
    names = _linears(net, stacks)
    if (dtype, 1) == DEPTH:
        names += _linears(net, depth)
    for name in names:
        _replace(net, name, dtype, 1)


def place_quantized(
    net: nn.Module,
    stacks: Iterable[str],
    tensors: Mapping[str, Tensor],
    dtype: torch.dtype | None,
    source: str,
    device: torch.device,
    depth: Iterable[str] = (),
) -> dict[str, Tensor]:
    """The checkpoint's tensors as `net` takes them, whose linear layers in these stacks become
    quantised ones.

    net: on the meta device. stacks: their names in it. tensors: by the checkpoint's names. dtype:
    quantise to that what is not quantised yet, on `device`. depth: names of depth loops, which take
    part in `DEPTH` only, and are widened where the checkpoint has them in other 8 bits.
    InvalidRequest if the checkpoint is quantised to another dtype. CheckpointError names the tensor
    that does not fit.
    """
    placed = dict(tensors)
    loops = _linears(net, depth)
    for name in (*_linears(net, stacks), *loops):
        parts = [part.removesuffix(".weight") for part in checkpoint_names(f"{name}.weight")]
        if not any(f"{part}.weight_scale" in placed for part in parts):
            if dtype is None or any(f"{part}.weight" not in placed for part in parts):
                continue  # load_weights names what is missing
            if name in loops and (dtype, 1) != DEPTH:
                continue
            for part in parts:
                original = placed[f"{part}.weight"]
                weight, scale = quantize(original.to(device), dtype)
                # a device would hold parts beside the layer that stacks them
                home = original.device
                placed[f"{part}.weight"] = weight.to(home)
                placed[f"{part}.weight_scale"] = scale.to(home)
        stored = _stored(placed, parts, dtype, source)
        if name not in loops or stored == DEPTH:
            _replace(net, name, *stored)
    scale_names = {
        part for name in _quantized(net) for part in checkpoint_names(f"{name}.weight_scale")
    }
    unused = [n for n in placed if n.endswith(".weight_scale") and n not in scale_names]
    for name in unused:
        layer = name.removesuffix("_scale")
        if layer in placed:  # load_weights names a scale without a weight
            scale = placed.pop(name)
            placed[layer] = dequantize(placed[layer], scale.float(), scale.dtype)
    return placed


def pack_layers(
    net: nn.Module, stacks: Iterable[str], tensors: Mapping[str, Tensor], pool: Executor
) -> dict[str, Tensor]:
    """Pack the linear layers of these stacks of `net` in 16 bits, for a device that `packed.packs`
    is true of.

    net: on the meta device, in float32. stacks, tensors: as in `place_quantized`, of which this
    returns what was not packed. A layer that has a bias, or whose tensors are not all there in the
    right shapes, stays for `load_weights`. pool: its threads do the work, which holds no lock of
    Python's.
    """
    rest = dict(tensors)
    waiting: list[tuple[str, Future[PackedLinear]]] = []
    for name in _linears(net, stacks):
        parts = [part.removesuffix(".weight") for part in checkpoint_names(f"{name}.weight")]
        layer = net.get_submodule(name)
        assert isinstance(layer, Linear)
        if _fit(layer, parts, rest):
            own_layers = [
                (rest.pop(f"{part}.weight"), rest.pop(f"{part}.weight_scale", None))
                for part in parts
            ]
            waiting.append((name, pool.submit(_packed, own_layers)))
    for name, packed in waiting:
        parent, _, leaf = name.rpartition(".")
        net.get_submodule(parent).register_module(leaf, packed.result())
    return rest


def _fit(layer: Linear, parts: list[str], tensors: Mapping[str, Tensor]) -> bool:
    """Whether these parts make up a layer, which has a weight and no bias."""
    if [name for name, _ in layer.named_parameters()] != ["weight"]:
        return False
    outputs = 0
    for part in parts:
        weight = tensors.get(f"{part}.weight")
        if weight is None or weight.ndim != 2 or weight.shape[1] != layer.in_features:
            return False
        outputs += len(weight)
    return [outputs, layer.in_features] == list(layer.weight.shape)


@torch.no_grad()
def _packed(parts: Iterable[tuple[Tensor, Tensor | None]]) -> PackedLinear:
    """A layer of weights [out, in] of its parts, which have scales [out, groups] where they are
    quantised."""
    widened = []
    for weight, scale in parts:
        if scale is None:
            widened.append(weight)
        else:
            widened.append(dequantize(weight, scale.float(), scale.dtype))
    if len(widened) == 1:
        stacked = widened[0]
    else:
        stacked = torch.cat(widened)
    return PackedLinear(stacked.to(torch.float32))


def _stored(
    tensors: Mapping[str, Tensor], parts: list[str], target: torch.dtype | None, source: str
) -> tuple[torch.dtype, int]:
    """(dtype, scales of each output) of the parts of a layer, which agree and are what was
    wanted."""
    kinds = set()
    for part in parts:
        weight = tensors.get(f"{part}.weight")
        scale = tensors.get(f"{part}.weight_scale")
        if weight is None or scale is None:
            raise CheckpointError(
                f"{source}: tensor {part}.weight{'_scale' if weight is not None else ''} is missing: "
                f"{' and '.join(parts)} are one layer here, quantised alike"
            )
        kinds.add((weight.dtype, scale.shape[1]))
    if len(kinds) > 1:
        raise CheckpointError(
            f"{source}: {' and '.join(parts)} are one layer here, and are quantised differently"
        )
    dtype, groups = kinds.pop()
    if target not in (None, dtype):
        name = next(n for n, t in DTYPES.items() if t == dtype)
        raise InvalidRequest(QUANTIZATION, f"this checkpoint comes in {name}: leave it out")
    return dtype, groups


def _linears(net: nn.Module, stacks: Iterable[str]) -> list[str]:
    return [
        f"{stack}.layers.{name}"
        for stack in stacks
        for name, module in net.get_submodule(f"{stack}.layers").named_modules()
        if isinstance(module, nn.Linear)
    ]


def _quantized(net: nn.Module) -> list[str]:
    return [name for name, module in net.named_modules() if isinstance(module, QuantizedLinear)]


def _replace(net: nn.Module, name: str, dtype: torch.dtype, groups: int) -> None:
    path, _, leaf = name.rpartition(".")
    parent = net.get_submodule(path)
    base = parent.get_submodule(leaf)
    assert isinstance(base, nn.Linear)
    setattr(parent, leaf, QuantizedLinear(base, dtype, groups))

"""From the released tensor names to stentor's modules."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from stentor.errors import CheckpointError
from stentor.models.quantized_checkpoint import read_quantized
from stentor.models.weights import (
    WEIGHT_NORM,
    errors_name,
    fold_weight_norm,
    read_pickle,
    read_sharded,
    renamed,
)

_BLOCK = {
    "attention.wq.": "self_attn.q_proj.",
    "attention.wk.": "self_attn.k_proj.",
    "attention.wv.": "self_attn.v_proj.",
    "attention.wo.": "self_attn.o_proj.",
    "attention.q_norm.": "self_attn.q_norm.",
    "attention.k_norm.": "self_attn.k_norm.",
    "attention_norm.": "input_layernorm.",
    "ffn_norm.": "post_attention_layernorm.",
    "feed_forward.w1.": "mlp.gate_proj.",
    "feed_forward.w3.": "mlp.up_proj.",
    "feed_forward.w2.": "mlp.down_proj.",
}
"""Names inside a transformer block -> names inside layers.transformer.Block."""

_TOP = {
    "text_model.model.embeddings.": "embeddings.",
    "audio_decoder.codebook_embeddings.": "codebook_embeddings.",
    "audio_decoder.embeddings.": "fast_embeddings.",
    "audio_decoder.output.": "fast_output.",
    "audio_decoder.": "fast.",
    "text_model.model.": "slow.",
    "fast_layers.": "fast.layers.",
    "fast_norm.": "fast.norm.",
    "layers.": "slow.layers.",
    "norm.": "slow.norm.",
}
"""Name prefixes of the language model, the more specific ones first. The last four are those of
model.pth."""

_SCALED = {
    ".attention_layer_scale.gamma": ".self_attn.o_proj",
    ".ffn_layer_scale.gamma": ".mlp.down_proj",
    ".gamma": ".pwconv2",
}
"""A per-channel gain on a branch -> the linear layer that ends the branch, which takes the gain
into its weights."""

_UNUSED = ("causal_mask", "freqs_cis")
"""Buffers in the released codec file that no code reads."""


def read_language_model(path: Path, config: Mapping[str, Any]) -> dict[str, Tensor]:
    """Both transformers, from shards, one safetensors file or model.pth, under stentor's names.
    config: config.json."""
    if any((path / f).is_file() for f in ("model.safetensors.index.json", "model.safetensors")):
        tensors = read_sharded(path)
    elif (path / "model.pth").is_file():
        tensors = read_pickle(path / "model.pth")
    else:
        raise CheckpointError(f"{path} has neither model.safetensors (or its index) nor model.pth")
    tensors = read_quantized(config, tensors, str(path))
    with errors_name(path):
        return language_model(tensors)


def read_codec(path: Path) -> dict[str, Tensor]:
    """codec.pth under stentor's names, weight norms and gains folded, in float32."""
    file = path / "codec.pth"
    tensors = read_pickle(file, ("state_dict", "generator"))
    with errors_name(file):
        return codec(tensors)


def language_model(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Released names of the language model -> module names. Fused QKV rows are split."""
    return _split_qkv({module_name(name): tensor for name, tensor in tensors.items()})


def module_name(name: str) -> str:
    """The module name of a released one of the language model. Fused QKV stays fused."""
    prefix = next((p for p in _TOP if name.startswith(p)), "")
    return _TOP.get(prefix, "") + renamed(name.removeprefix(prefix), _BLOCK)


def released_name(name: str) -> str:
    """A module name of the language model as the released shards spell it, for messages."""
    for old, new in _TOP.items():
        if name.startswith(new):
            name = old + name.removeprefix(new)
            break
    return re.sub(
        r"attention\.w[qkv]\.",
        "attention.wqkv.",
        renamed(name, {new: old for old, new in _BLOCK.items()}),
    )


def codec(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Released names of the codec -> module names, with everything folded that folds."""
    plain = {k.removeprefix("generator."): v for k, v in tensors.items() if not k.endswith(_UNUSED)}
    one_style = {renamed(k, WEIGHT_NORM): v for k, v in plain.items()}
    folded = fold_weight_norm(one_style)
    codec_tensors = {
        re.sub(r"\.conv\.(weight|bias)$", r".\1", renamed(k, _BLOCK)): v for k, v in folded.items()
    }
    return _fold_gains(_split_qkv(codec_tensors))


def _split_qkv(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """`wqkv` rows are q, k, v in this order. k and v have equally many, and `wo` has as many
    columns as q has rows. Scales of a quantised weight split like its rows."""
    split: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        before, fused, kind = name.partition("attention.wqkv.")
        if not fused or kind not in ("weight", "weight_scale"):
            split[name] = tensor
            continue
        stem = before + "self_attn."
        out = tensors.get(f"{stem}o_proj.weight")
        if out is None:
            raise CheckpointError(f"tensor {name.replace('wqkv', 'wo')} is missing beside {name}")
        if out.ndim == 2:
            queries = out.shape[1]
        else:
            queries = 0
        if tensor.ndim:
            rest = tensor.shape[0] - queries
        else:
            rest = 0
        if queries <= 0 or rest <= 0 or rest % 2:
            shapes = f"tensor {name} has shape {list(tensor.shape)} beside {list(out.shape)} of the output"
            raise CheckpointError(f"{shapes}, and does not split into q, k, v")
        split[f"{stem}q_proj.{kind}"] = tensor[:queries]
        split[f"{stem}k_proj.{kind}"] = tensor[queries : queries + rest // 2]
        split[f"{stem}v_proj.{kind}"] = tensor[queries + rest // 2 :]
    return split


def _fold_gains(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """gamma * (W x + b) = (gamma W) x + gamma b."""
    folded = {k: v for k, v in tensors.items() if not k.endswith(".gamma")}
    for name, gain in tensors.items():
        suffix = next((s for s in _SCALED if name.endswith(s)), None)
        if suffix is None:
            continue
        target = name.removesuffix(suffix) + _SCALED[suffix]
        weight = folded.get(f"{target}.weight")
        bias = folded.get(f"{target}.bias", gain)
        if weight is None or weight.ndim != 2 or not gain.shape == bias.shape == weight.shape[:1]:
            raise CheckpointError(
                f"tensor {name} has shape {list(gain.shape)} and no layer that it fits"
            )
        folded[f"{target}.weight"] = gain[:, None] * weight
        if f"{target}.bias" in folded:
            folded[f"{target}.bias"] = gain * bias
    return folded


def size(tensors: Mapping[str, Tensor], name: str, dim: int, least: int = 1) -> int:
    """One dimension of a tensor that must be there. least: of its values."""
    if name not in tensors:
        raise CheckpointError(f"codec.pth: tensor {name} is missing")
    shape = list(tensors[name].shape)
    if len(shape) <= dim or shape[dim] < least:
        raise CheckpointError(
            f"codec.pth: tensor {name} has shape {shape}, and dimension {dim} must be {least} or more"
        )
    return shape[dim]


def count(tensors: Mapping[str, Tensor], pattern: str, first: int = 0) -> int:
    """How many numbers the only group of `pattern` takes among the tensor names: at least one, no
    gap."""
    numbers = {int(m.group(1)) for name in tensors if (m := re.match(pattern, name))}
    if not numbers or numbers != set(range(first, first + len(numbers))):
        raise CheckpointError(
            f"codec.pth: tensors {pattern!r} are numbered {sorted(numbers)}: some are missing"
        )
    return len(numbers)

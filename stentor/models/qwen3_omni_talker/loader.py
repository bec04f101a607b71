"""Loading a released checkpoint: of its shards only those that hold the talker, code2wav and the table of text rows."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from stentor.config import path_of
from stentor.errors import CheckpointError
from stentor.models.load_options import (
    CODEC_DTYPE,
    at_least_float32,
    check_load_options,
    codec_dtype,
    model_dtype,
)
from stentor.models.lora import ADAPTER_OPTIONS, AdapterPlan, install_adapters
from stentor.models.lora_files import merge, read_peft
from stentor.models.quantization import QUANTIZATION, place_quantized, quantization
from stentor.models.quantized_checkpoint import read_quantized
from stentor.models.qwen3_omni_talker import READS
from stentor.models.qwen3_omni_talker.codec import Decoder
from stentor.models.qwen3_omni_talker.config import parse
from stentor.models.qwen3_omni_talker.model import OmniTalker
from stentor.models.qwen3_omni_talker.spec import generation_defaults
from stentor.models.qwen3_omni_talker.talker import Weights
from stentor.models.qwen3_omni_talker.tokenizer import read_tokenizer
from stentor.models.weights import load_weights, meta_init, read_sharded

LOAD_OPTIONS = (CODEC_DTYPE, QUANTIZATION, "lora", *ADAPTER_OPTIONS)
QUANTIZED, QUANTIZED_DEPTH = ("talker.model",), ("talker.code_predictor.model",)
"""The language models and depth loops whose weights may have 8 bits."""
USUAL_TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj")
"""Layers that get slots for adapters where nothing else is asked for."""
UNUSED = ("talker.hidden_projection.",)
"""Read by nobody where all that the talker hears is text."""
EXPERT = re.compile(r"(.+\.experts)\.(\d+)\.(.+)")
Built = TypeVar("Built", bound=nn.Module)


def build(make: Callable[[], Built], dtype: torch.dtype) -> Built:
    """A module on the meta device, in evaluation mode, with parameters of `dtype`."""
    with meta_init():
        return make().to(dtype).eval().requires_grad_(False)


def load(
    path: Path, raw: Mapping[str, Any], device: torch.device, dtype: torch.dtype | None, options: Mapping[str, Any]
) -> OmniTalker:
    """`raw` is config.json. `dtype` None: the checkpoint's own on a GPU, float32 on a CPU.

    Load options: `codec_dtype`, `quantization` of the talker's weights, `lora` (a PEFT folder to merge), and those of
    adapters (models/lora.py). Raises CheckpointError and InvalidRequest.
    """
    check_load_options(options, LOAD_OPTIONS)
    plan = AdapterPlan.of(options, read_peft, USUAL_TARGETS)
    audio_dtype = codec_dtype(options, device, dtype)
    c, source = parse(raw, str(path / "config.json")), str(path)
    tensors = read_quantized(raw, read_sharded(path, prefixes=READS), source)
    codec = {name: tensors.pop(name) for name in list(tensors) if name.startswith("code2wav.")}
    # The codec first: its weights are rounded on the device, and those of the talker fill what that leaves.
    decoder = build(lambda: Decoder(c.decoder), at_least_float32(audio_dtype))
    load_weights(decoder, _codec_names(codec), f"{path}: code2wav", device)
    decoder.process_weights_after_loading(audio_dtype)
    if "lora" in options:
        tensors = merge(tensors, read_peft(path_of("lora", options["lora"])))
    norm = tensors.get("talker.model.norm.weight")  # never quantised
    own = torch.float32 if norm is None else norm.dtype
    weights = build(lambda: Weights(c), model_dtype(dtype, own, device))
    experts = c.talker.stack.experts
    tensors = stack_experts(tensors, 0 if experts is None else experts.count, source)
    tensors = place_quantized(weights, QUANTIZED, tensors, quantization(options), source, device, QUANTIZED_DEPTH)
    load_weights(weights, tensors, source, device, ignore=UNUSED)
    del tensors
    adapters = install_adapters(weights, plan, serves_adapters, read_peft)
    return OmniTalker(c, weights, decoder, read_tokenizer(path), generation_defaults(path), adapters)


def serves_adapters(name: str) -> bool:
    """Whether a request's adapter may change this layer: those of the talker's blocks that every token takes."""
    return name.startswith("talker.model.layers.") and ".mlp.experts." not in name


def _codec_names(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Without the prefix and without the wrapper `.conv` of the reference's padded convolutions."""
    return {name.removeprefix("code2wav.").replace(".conv.", "."): value for name, value in tensors.items()}


def stack_experts(tensors: Mapping[str, Tensor], count: int, source: str) -> dict[str, Tensor]:
    """The tensors X.experts.0.Y, X.experts.1.Y, ... under one another as X.experts.Y, and all others as they are.

    CheckpointError names an expert that is missing, or one of more than `count`.
    """
    found: dict[str, Tensor] = {}
    parts: dict[tuple[str, str], dict[int, Tensor]] = {}
    for name, value in tensors.items():
        if match := EXPERT.fullmatch(name):
            parts.setdefault((match[1], match[3]), {})[int(match[2])] = value
        else:
            found[name] = value
    for (experts, leaf), own in parts.items():
        if wrong := set(range(count)) ^ set(own):
            e = min(wrong)
            problem = "is not part of this model" if e in own else "is missing"
            raise CheckpointError(f"{source}: tensor {experts}.{e}.{leaf} {problem}")
        if len({part.shape for part in own.values()}) > 1:
            raise CheckpointError(f"{source}: tensors {experts}.*.{leaf} differ in shape")
        found[f"{experts}.{leaf}"] = torch.cat([own[e] for e in range(count)])
    return found

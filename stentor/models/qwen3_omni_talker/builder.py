"""Building a model: of a checkpoint's shards only those are read that hold the talker, code2wav and
the table of text rows."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from stentor.errors import CheckpointError
from stentor.models.dummy import DummyTokenizer
from stentor.models.frame_talker import LOAD_OPTIONS, codec_part, eight_bits, talker_dtype
from stentor.models.load_options import CODEC_DTYPE, at_least_float32, codec_dtype
from stentor.models.lora import USUAL_TARGETS, AdapterPlan, install_adapters
from stentor.models.lora_files import merge_option, read_peft
from stentor.models.quantized_checkpoint import read_quantized
from stentor.models.qwen3_omni_talker import READS
from stentor.models.qwen3_omni_talker.codec import Decoder
from stentor.models.qwen3_omni_talker.config import parse
from stentor.models.qwen3_omni_talker.model import OmniTalker, Weights
from stentor.models.qwen3_omni_talker.prompt import PromptBuilder
from stentor.models.qwen3_omni_talker.spec import GENERATION, make_spec
from stentor.models.qwen3_omni_talker.tokenizer import read_tokenizer
from stentor.models.source import Checkpoint, Source
from stentor.models.weights import on_meta, read_sharded

FILE_OPTIONS = (CODEC_DTYPE, "lora")
"""Load options of a checkpoint."""
UNUSED = ("talker.hidden_projection.",)
"""Read by nobody where all that the talker hears is text."""
EXPERT = re.compile(r"(.+\.experts)\.(\d+)\.(.+)")


def build(
    source: Source, device: torch.device, dtype: torch.dtype | None, options: Mapping[str, Any]
) -> OmniTalker:
    """`dtype` None: the checkpoint's own on a GPU, float32 on a CPU, where the released sizes take
    16 GB.

    Load options: `quantization` of the talker's weights, those of adapters (models/lora.py), and of
    a checkpoint `codec_dtype` and `lora` (a PEFT folder to merge). Raises CheckpointError and
    InvalidRequest.
    """
    source.check_options(options, LOAD_OPTIONS, FILE_OPTIONS)
    plan = AdapterPlan.of(options, read_peft, USUAL_TARGETS)
    audio_dtype = codec_dtype(options, device, dtype)
    c = parse(source.config, f"{source.name}/config.json")
    tensors = source.tensors(
        lambda path: read_quantized(source.config, read_sharded(path, prefixes=READS), str(path))
    )
    codec = codec_part(tensors, "code2wav.")
    tensors = {name: value for name, value in tensors.items() if not name.startswith("code2wav.")}
    # The codec first: its weights are rounded on the device, and those of the talker fill what that
    # leaves.
    decoder = on_meta(lambda: Decoder(c.decoder), at_least_float32(audio_dtype))
    source.fill(decoder, codec, f"{source.name}: code2wav", device, 1)
    decoder.process_weights_after_loading(audio_dtype)
    tensors = merge_option(tensors, options, read_peft)
    weights = on_meta(lambda: Weights(c), talker_dtype(tensors, dtype, device))
    experts = c.talker.stack.experts
    tensors = stack_experts(tensors, 0 if experts is None else experts.count, source.name)
    source.fill(
        weights, tensors, source.name, device, ignore=UNUSED, eight_bits=eight_bits(options)
    )
    del tensors
    adapters = install_adapters(weights, plan, serves_adapters, read_peft)
    if isinstance(source, Checkpoint):
        encode = read_tokenizer(source.path)
    else:
        encode = DummyTokenizer(source.words, source.special).encode
    spec = make_spec(
        c, source.json(GENERATION, {}), weights.talker.codec_head.weight.dtype, adapters.columns
    )
    return OmniTalker(
        c, weights, decoder, spec, PromptBuilder(c, encode, spec.max_model_len), adapters
    )


def serves_adapters(name: str) -> bool:
    """Whether a request's adapter may change this layer: those of the talker's blocks that every
    token takes."""
    return name.startswith("talker.model.layers.") and ".mlp.experts." not in name


def stack_experts(tensors: Mapping[str, Tensor], count: int, source: str) -> dict[str, Tensor]:
    """The tensors X.experts.0.Y, X.experts.1.Y, ... under one another as X.experts.Y, and all
    others as they are.

    CheckpointError names an expert that is missing, or one of more than `count`.
    """
    stacked: dict[str, Tensor] = {}
    parts: dict[tuple[str, str], dict[int, Tensor]] = {}
    for name, value in tensors.items():
        if match := EXPERT.fullmatch(name):
            parts.setdefault((match[1], match[3]), {})[int(match[2])] = value
        else:
            stacked[name] = value
    for (experts, leaf), tensors_by_expert in parts.items():
        if wrong := set(range(count)) ^ set(tensors_by_expert):
            e = min(wrong)
            if e in tensors_by_expert:
                problem = "is not part of this model"
            else:
                problem = "is missing"
            raise CheckpointError(f"{source}: tensor {experts}.{e}.{leaf} {problem}")
        if len({part.shape for part in tensors_by_expert.values()}) > 1:
            raise CheckpointError(f"{source}: tensors {experts}.*.{leaf} differ in shape")
        stacked[f"{experts}.{leaf}"] = torch.cat([tensors_by_expert[e] for e in range(count)])
    return stacked

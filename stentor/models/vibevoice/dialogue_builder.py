"""Building a model for dialogues: the network, the codec's three halves and the tokenizer."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch

from stentor.models.dummy import dummy_tokens
from stentor.models.load_options import (
    CODEC_DTYPE,
    at_least_float32,
    codec_dtype,
    model_dtype,
)
from stentor.models.lora import ADAPTER_OPTIONS, USUAL_TARGETS, AdapterPlan, install_adapters
from stentor.models.lora_files import merge_option, read_peft
from stentor.models.quantization import QUANTIZATION, EightBits, quantization
from stentor.models.source import Checkpoint, Source
from stentor.models.vibevoice.checkpoint import (
    ACOUSTIC,
    DECODER,
    FACTORS,
    SEMANTIC,
    file_name,
    in_release_layout,
    of_half,
    of_network,
)
from stentor.models.vibevoice.codec import Decoder, Encoder
from stentor.models.vibevoice.config import parse_dialogue
from stentor.models.vibevoice.model import VibeVoiceDialogue
from stentor.models.vibevoice.network import DialogueNet
from stentor.models.vibevoice.prompt import DialoguePrompts, Tokens
from stentor.models.vibevoice.solver import times_table
from stentor.models.vibevoice.tokenizer import SPECIAL, read_tokenizer
from stentor.models.weights import meta_init, read_sharded

LOAD_OPTIONS = (CODEC_DTYPE, QUANTIZATION, *ADAPTER_OPTIONS)
FILE_OPTIONS = ("lora",)
"""Load options of a checkpoint."""
STACKS = ("model.language_model",)
"""The stack whose weights may have 8 bits, and adapters."""
HEAD = "lm_head.weight"


def build(
    source: Source, device: torch.device, dtype: torch.dtype | None, options: Mapping[str, Any]
) -> VibeVoiceDialogue:
    """See builder.py."""
    source.check_options(options, LOAD_OPTIONS, FILE_OPTIONS)
    plan = AdapterPlan.of(options, read_peft, USUAL_TARGETS)
    c = parse_dialogue(source.config)
    if isinstance(source, Checkpoint):
        tokenizer = read_tokenizer(source.path)
        tokens = Tokens(tokenizer.encode, **{n: tokenizer.special[t] for n, t in SPECIAL.items()})
    else:
        special = {name: source.special[token] for name, token in SPECIAL.items()}
        tokens = Tokens(partial(dummy_tokens, vocab=source.words), **special)
    with meta_init():  # the codec is loaded in float32 whatever the language model is
        net = DialogueNet(c).to(model_dtype(dtype, torch.bfloat16, device))
        decoder = Decoder(c.decoder)
        acoustic = Encoder(c.acoustic)
        semantic = Encoder(c.semantic)
    tensors = in_release_layout(source.tensors(read_sharded))
    if c.tied:
        tensors.pop(HEAD, None)
    tensors = merge_option(tensors, options, read_peft)
    eight_bits = EightBits(quantization(options), STACKS)
    source.fill(net, of_network(tensors), source.name, device, eight_bits=eight_bits)
    halves = ((decoder, DECODER, FACTORS), (acoustic, ACOUSTIC, ()), (semantic, SEMANTIC, ()))
    for number, (half, prefix, factors) in enumerate(halves, start=1):
        weights = of_half(tensors, prefix, factors)
        names = partial(file_name, prefix)
        source.fill(half, weights, source.name, device, number=number, file_name=names)
    for module in (net, decoder, acoustic, semantic):
        module.eval().requires_grad_(False)
    adapters = install_adapters(net, plan, _takes_adapter, read_peft)
    net.model.prediction_head.process_weights_after_loading(times_table())
    net.process_weights_after_loading(tokens.choices)
    audio_dtype = codec_dtype(options, device, dtype)
    decoder.process_weights_after_loading(audio_dtype)
    semantic.process_weights_after_loading(audio_dtype)
    acoustic.process_weights_after_loading(at_least_float32(audio_dtype))
    return VibeVoiceDialogue(
        c, net, decoder, (acoustic, semantic), DialoguePrompts(c, tokens, decoder), adapters
    )


def _takes_adapter(name: str) -> bool:
    return name.startswith("model.language_model.layers.")

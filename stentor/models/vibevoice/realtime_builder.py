"""Building Realtime: the network, the decoder, the tokenizer and the voices."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
import torch

from stentor.models.base import Voice
from stentor.models.dummy import dummy_tokens
from stentor.models.load_options import CODEC_DTYPE, codec_dtype, model_dtype
from stentor.models.lora import ADAPTER_OPTIONS, USUAL_TARGETS, AdapterPlan, install_adapters
from stentor.models.lora_files import merge_option, read_peft
from stentor.models.quantization import QUANTIZATION, EightBits, quantization
from stentor.models.source import Checkpoint, Source
from stentor.models.vibevoice.checkpoint import (
    ACOUSTIC,
    DECODER,
    FACTORS,
    file_name,
    of_half,
    of_network,
)
from stentor.models.vibevoice.codec import Decoder
from stentor.models.vibevoice.config import RealtimeConfig, parse_realtime
from stentor.models.vibevoice.realtime_model import VibeVoiceRealtime
from stentor.models.vibevoice.realtime_network import RealtimeNet
from stentor.models.vibevoice.realtime_prompt import PromptBuilder
from stentor.models.vibevoice.realtime_voices import read_voices
from stentor.models.vibevoice.solver import times_table
from stentor.models.vibevoice.tokenizer import read_tokenizer
from stentor.models.weights import meta_init, read_sharded

LOAD_OPTIONS = (CODEC_DTYPE, QUANTIZATION, *ADAPTER_OPTIONS)
FILE_OPTIONS = ("lora",)
"""Load options of a checkpoint."""
STACKS = ("model.language_model", "model.tts_language_model")
"""The stacks whose weights may have 8 bits, and adapters."""
UNUSED = ("model.tts_language_model.embed_tokens.", ACOUSTIC)
"""Tensors that nothing reads: the upper layers get no tokens, and the encoder is not released."""
DUMMY_VOICE = (100, 250)
"""Places of text and positions of the voice beside random weights, as in the releases."""


def build(
    source: Source, device: torch.device, dtype: torch.dtype | None, options: Mapping[str, Any]
) -> VibeVoiceRealtime:
    """See builder.py."""
    source.check_options(options, LOAD_OPTIONS, FILE_OPTIONS)
    plan = AdapterPlan.of(options, read_peft, USUAL_TARGETS)
    c = parse_realtime(source.config)
    voices: Mapping[str, Voice]
    if isinstance(source, Checkpoint):
        encode = read_tokenizer(source.path).encode
        voices = read_voices(source.path, c)
    else:
        encode = partial(dummy_tokens, vocab=c.vocab)
        voices = {"noise": _noise(c)}
    with meta_init():  # the decoder is loaded in float32 whatever the language model is
        net = RealtimeNet(c).to(model_dtype(dtype, torch.bfloat16, device))
        decoder = Decoder(c.decoder)
    tensors = merge_option(source.tensors(read_sharded), options, read_peft)
    eight_bits = EightBits(quantization(options), STACKS)
    source.fill(net, of_network(tensors), source.name, device, ignore=UNUSED, eight_bits=eight_bits)
    source.fill(
        decoder,
        of_half(tensors, DECODER, FACTORS),
        source.name,
        device,
        number=1,
        file_name=partial(file_name, DECODER),
    )
    for module in (net, decoder):
        module.eval().requires_grad_(False)
    adapters = install_adapters(net, plan, _takes_adapter, read_peft)
    net.model.prediction_head.process_weights_after_loading(times_table())
    decoder.process_weights_after_loading(codec_dtype(options, device, dtype))
    return VibeVoiceRealtime(c, net, decoder, PromptBuilder(c, encode, voices), adapters)


def _takes_adapter(name: str) -> bool:
    return name.startswith(tuple(f"{stack}.layers." for stack in STACKS))


def _noise(c: RealtimeConfig) -> Voice:
    """A voice of noise, as long as those of the releases."""
    generator = np.random.default_rng(0)
    text, positions = DUMMY_VOICE
    lower = (c.lower.layers, 2, text, c.lower.kv_heads, c.lower.head_dim)
    upper = (c.upper.layers, 2, positions, c.upper.kv_heads, c.upper.head_dim)
    negative = (c.upper.layers, 2, 1, c.upper.kv_heads, c.upper.head_dim)
    shapes = {"lower": lower, "upper": upper, "negative": negative, "hidden": (c.upper.hidden,)}
    features = {
        name: generator.standard_normal(shape, np.float32) for name, shape in shapes.items()
    }
    return Voice("noise", features)

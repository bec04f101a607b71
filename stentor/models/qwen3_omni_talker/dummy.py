"""The model at its released sizes with random weights and without files."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import torch

from stentor.layers.experts import ExpertsConfig
from stentor.layers.frame_decoder import FrameDecoderConfig
from stentor.layers.transformer import StackConfig
from stentor.models.dummy import dummy_tokens, initialize_dummy_weights
from stentor.models.frame_talker import TransformerConfig
from stentor.models.load_options import at_least_float32, check_load_options, codec_dtype, model_dtype
from stentor.models.lora import ADAPTER_OPTIONS, AdapterPlan, install_adapters
from stentor.models.lora_files import read_peft
from stentor.models.quantization import QUANTIZATION, quantization, quantize_layers
from stentor.models.qwen3_omni_talker.codec import Decoder
from stentor.models.qwen3_omni_talker.config import Config, Ids
from stentor.models.qwen3_omni_talker.loader import QUANTIZED, QUANTIZED_DEPTH, USUAL_TARGETS, build, serves_adapters
from stentor.models.qwen3_omni_talker.model import OmniTalker
from stentor.models.qwen3_omni_talker.talker import Weights

SEED = 20250922
SPECIAL = {"<|im_start|>": 151644, "<|im_end|>": 151645}
MARKS = re.compile(r"(<\|im_start\|>|<\|im_end\|>)")
WORDS = 151643  # ids that words may have
CONSTANTS = {"scale": 0.1, "gamma": 0.1, "alpha": 0.0, "beta": 0.0}  # the last two are logarithms of gains


def config() -> Config:
    """The released values of Qwen3-Omni-30B-A3B-Instruct."""
    experts = ExpertsConfig(count=128, chosen=6, ffn=384, shared=768, normalised=True)
    talker = StackConfig(1024, 2048, 20, heads=16, kv_heads=2, head_dim=128, eps=1e-6, qk_norm=True, experts=experts)
    predictor = StackConfig(1024, 3072, 5, heads=16, kv_heads=8, head_dim=128, eps=1e-6, qk_norm=True)
    decoder = FrameDecoderConfig(
        stack=StackConfig(hidden=1024, ffn=3072, layers=8, heads=16, kv_heads=16, head_dim=64, eps=1e-5),
        theta=1e4,
        window=72,
        latent=1024,
        codebook_size=2048,
        codebooks=16,
        width=1536,
        rates=(8, 5, 4, 3),
        ratios=(2, 2),
        trims_both=True,
    )
    return Config(
        talker=TransformerConfig(talker, 3072, 1e6, 65536),
        predictor=TransformerConfig(predictor, 2048, 1e6, 32768),
        decoder=decoder,
        text_vocab=152064,
        text_hidden=2048,
        text_inner=2048,
        codebooks=16,
        ids=Ids(151671, 151672, 151673, 2148, 2149, 2150, 2155, 2156, 2157),
        speakers={"chelsie": 2301, "ethan": 2302, "aiden": 2303},
    )


def encode(text: str) -> list[int]:
    """One id per word, and the ids of special tokens."""
    ids: list[int] = []
    for part in MARKS.split(text):
        if part in SPECIAL:
            ids.append(SPECIAL[part])
        elif part:
            ids.extend(dummy_tokens(part, WORDS))
    return ids


def make(name: str, device: torch.device, dtype: torch.dtype | None, options: Mapping[str, Any]) -> OmniTalker:
    """The dummy `name`. `dtype` None: bfloat16 on a GPU, float32 on a CPU, where it takes 16 GB.

    Load options: `quantization`, and those of adapters (models/lora.py).
    """
    check_load_options(options, (QUANTIZATION, *ADAPTER_OPTIONS))
    plan = AdapterPlan.of(options, read_peft, USUAL_TARGETS)
    return make_dummy(config(), device, dtype, quantization(options), plan)


def make_dummy(
    c: Config, device: torch.device, dtype: torch.dtype | None, eight_bits: torch.dtype | None, plan: AdapterPlan
) -> OmniTalker:
    """A model of any sizes."""
    # The codec first, as in the loader: it is rounded on the device.
    audio_dtype = codec_dtype({}, device, dtype)
    decoder = build(lambda: Decoder(c.decoder), at_least_float32(audio_dtype))
    initialize_dummy_weights(decoder, device, SEED + 1, constants=CONSTANTS)
    decoder.process_weights_after_loading(audio_dtype)
    weights = build(lambda: Weights(c), model_dtype(dtype, torch.bfloat16, device))
    quantize_layers(weights, QUANTIZED, eight_bits, QUANTIZED_DEPTH)
    initialize_dummy_weights(weights, device, SEED, constants=CONSTANTS)
    adapters = install_adapters(weights, plan, serves_adapters, read_peft)
    return OmniTalker(c, weights, decoder, encode, {}, adapters)

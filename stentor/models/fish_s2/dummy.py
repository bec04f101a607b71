"""The model at its released sizes with random weights and without files."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from stentor.models.dummy import dummy_tokens, initialize_dummy_weights
from stentor.models.fish_s2 import config
from stentor.models.fish_s2.codec_config import CodecConfig, stack_config
from stentor.models.fish_s2.language_model import Language
from stentor.models.fish_s2.loader import QUANTIZED, QUANTIZED_DEPTH, build_model, make_codec
from stentor.models.fish_s2.lora import USUAL_TARGETS, reader, serves_adapters
from stentor.models.fish_s2.model import FishS2
from stentor.models.fish_s2.tokenizer import Tokens, select_tokens
from stentor.models.load_options import check_load_options, codec_dtype, encoder_dtype, model_dtype
from stentor.models.lora import ADAPTER_OPTIONS, AdapterPlan, install_adapters
from stentor.models.quantization import QUANTIZATION, quantization, quantize_layers

SEED = 0
IDS = {"<|im_start|>": 151644, "<|im_end|>": 151645, "<|voice|>": 151673}
IDS.update({f"<|semantic:{i}|>": 151678 + i for i in (0, 4095)})
"""Special ids of the released tokenizer. All other ids are below them."""

RELEASED: Mapping[str, Any] = {
    "semantic_start_token_id": 151678,
    "semantic_end_token_id": 155773,
    "eos_token_id": 151645,
    "text_config": {
        "dim": 2560,
        "n_head": 32,
        "n_local_heads": 8,
        "head_dim": 128,
        "n_layer": 36,
        "intermediate_size": 9728,
        "rope_base": 1_000_000,
        "norm_eps": 1e-6,
        "vocab_size": 155_776,
        "max_seq_len": 32_768,
        "attention_qk_norm": True,
    },
    "audio_decoder_config": {
        "dim": 2560,
        "n_head": 32,
        "n_local_heads": 8,
        "head_dim": 128,
        "n_layer": 4,
        "intermediate_size": 9728,
        "vocab_size": 4096,
        "num_codebooks": 10,
        "attention_qk_norm": False,
    },
}
"""config.json of fishaudio/s2-pro, as far as it is read."""

RELEASED_CODEC = CodecConfig(
    encoder_dim=64,
    encoder_strides=(2, 4, 8, 8),
    decoder_dim=1536,
    decoder_strides=(8, 8, 4, 2),
    latent=1024,
    downsample=(2, 2),
    encoder_stack=stack_config(1024, 3072, 4),
    pre_stack=stack_config(1024, 3072, 8),
    post_stack=stack_config(1024, 3072, 8),
    semantic_codes=4096,
    residual_codes=1024,
    residual_books=9,
    code_dim=8,
)
"""Sizes of its codec.pth."""


def make(name: str, device: torch.device, dtype: torch.dtype | None, options: Mapping[str, Any]) -> FishS2:
    """The dummy `name`. `dtype` None: bfloat16 on a GPU, float32 on a CPU.

    Load options: `quantization`, and those of adapters (models/lora.py).
    """
    check_load_options(options, (QUANTIZATION, *ADAPTER_OPTIONS))
    c = config.parse(RELEASED)
    read = reader(c)
    plan = AdapterPlan.of(options, read, USUAL_TARGETS)
    tokens = make_tokens(c.codes, c.vocab)
    language = Language(c, tokens.semantic, tokens.im_end, model_dtype(dtype, torch.bfloat16, device))
    quantize_layers(language, QUANTIZED, quantization(options), QUANTIZED_DEPTH)
    audio_dtype = codec_dtype({}, device, dtype)
    codec = make_codec(RELEASED_CODEC, c, audio_dtype, encoder_dtype(audio_dtype, device))
    for module in (language, codec):
        initialize_dummy_weights(module, device, SEED)
    adapters = install_adapters(language, plan, serves_adapters, read)
    return build_model(language, codec, tokens, device, adapters)


def make_tokens(codes: int, vocab: int) -> Tokens:
    """The released special ids, and one id per word of text."""
    return select_tokens(lambda text: dummy_tokens(text, min(IDS.values())), IDS, codes, vocab, "the dummy tokenizer")

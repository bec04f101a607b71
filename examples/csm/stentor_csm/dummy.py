"""`dummy:csm-1b`: the released sizes with random weights."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from stentor.layers.transformer import StackConfig
from stentor.models.dummy import dummy_tokens, initialize_dummy_weights
from stentor.models.load_options import CODEC_DTYPE, at_least_float32, check_load_options, codec_dtype, model_dtype
from stentor.models.quantization import QUANTIZATION, quantization, quantize_layers
from stentor_csm.codec_decoder import Decoder
from stentor_csm.codec_encoder import Encoder
from stentor_csm.config import Config, MimiConfig, RopeConfig
from stentor_csm.loader import QUANTIZED, QUANTIZED_DEPTH, build
from stentor_csm.model import Csm
from stentor_csm.tokenizer import Tokens
from stentor_csm.weights import Weights

SEED = 20250313
CONSTANTS = {"scale": 0.1, "cluster_usage": 1.0}
CONFIG = Config(
    backbone=StackConfig(hidden=2048, ffn=8192, layers=16, heads=32, kv_heads=8, head_dim=64, eps=1e-5),
    rope=RopeConfig(500000.0, 32.0, 0.125, 0.5, 1024),
    depth=StackConfig(hidden=1024, ffn=8192, layers=4, heads=8, kv_heads=2, head_dim=128, eps=1e-5),
    depth_rope=RopeConfig(500000.0, 32.0, 0.001953125, 0.0078125, 16),
    codebooks=32,
    vocab=2051,
    text_vocab=128256,
    eos=0,
    positions=2048,
    codec=MimiConfig(
        stack=StackConfig(hidden=512, ffn=2048, layers=8, heads=8, kv_heads=8, head_dim=64, eps=1e-5),
        rope=RopeConfig(10000.0),
        sample_rate=24000,
        window=250,
        filters=64,
        kernel=7,
        last_kernel=3,
        residual_kernel=3,
        growth=2,
        compress=2,
        ratios=(8, 6, 5, 4),
        codebook_size=2048,
        codebook_dim=256,
        quantizer_dim=256,
        quantizers=32,
        stride=2,
    ),
)


def make(name: str, device: torch.device, dtype: torch.dtype | None, options: Mapping[str, Any]) -> Csm:
    """The dummy `name`. `dtype` None: bfloat16 on a GPU, float32 on a CPU. Load options as in the loader."""
    check_load_options(options, (CODEC_DTYPE, QUANTIZATION))
    audio = codec_dtype(options, device, dtype)
    decoder = build(lambda: Decoder(CONFIG.codec), at_least_float32(audio))
    encoder = build(lambda: Encoder(CONFIG.codec), at_least_float32(audio))
    weights = build(lambda: Weights(CONFIG), model_dtype(dtype, torch.bfloat16, device))
    quantize_layers(weights, QUANTIZED, quantization(options), QUANTIZED_DEPTH)
    for at, module in enumerate((decoder, encoder, weights)):
        initialize_dummy_weights(module, device, SEED + at, constants=CONSTANTS)
    decoder.process_weights_after_loading(CONFIG.codebooks, audio)
    tokens = Tokens(lambda text: dummy_tokens(text, 128000), 128000, 128001)
    return Csm(CONFIG, weights, decoder, encoder, tokens, {})

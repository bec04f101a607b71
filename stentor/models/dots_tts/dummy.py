"""The models at their released sizes with random weights and without files."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import nn

from stentor.models.dots_tts.config import parse, with_solver
from stentor.models.dots_tts.loader import DUMMY_OPTIONS, QUANTIZED, USUAL_TARGETS, build_model, make_modules
from stentor.models.dots_tts.model import DotsTTS
from stentor.models.dots_tts.tokenizer import GEN_END, GEN_SPAN, GEN_START, TEXT_END
from stentor.models.dummy import dummy_tokens, initialize_dummy_weights
from stentor.models.load_options import check_load_options, codec_dtype
from stentor.models.lora import AdapterPlan
from stentor.models.lora_files import read_peft
from stentor.models.quantization import quantization, quantize_layers

SEED = 0
LAYERS = {"num_heads": 16, "hidden_size": 1024, "ffn_hidden_size": 4096, "qkv_bias": False, "norm_layer": "RMSNorm"}
RELEASED: dict[str, Any] = {
    "model_type": "dots_tts",
    "latent_dim": 128,
    "patch_size": 4,
    "campplus_embedding_size": 512,
    "xvec_max_audio_seconds": 10.0,
    "fm_sigma": 0.0,
    "PatchEncoder": {**LAYERS, "num_layers": 24},
    "DiT": {**LAYERS, "num_layers": 18, "qk_norm": True, "rotary_bias": True, "rotary_theta": 10000.0},
    "vocoder": {
        "sample_rate": 48000,
        "latent_dim": 128,
        "upsample_rates": [10, 6, 4, 2, 2, 2],
        "upsample_kernel_sizes": [20, 12, 8, 4, 4, 4],
        "upsample_initial_channel": 1536,
        "resblock": "1",
        "resblock_kernel_sizes": [3, 7, 11],
        "resblock_dilation_sizes": [[1, 3, 5]] * 3,
        "downsample_rates": [2, 2, 2, 4, 6, 10],
        "downsample_channels": [12, 24, 48, 96, 192, 384, 768],
        "activation": "snakebeta",
        "snake_logscale": True,
        "causal": True,
        "causal_encoder": True,
        "mi_num_layers": 4,
        "use_bias_at_final": False,
        "use_tanh_at_final": False,
    },
}
LANGUAGE: dict[str, Any] = {
    "vocab_size": 151_672,
    "hidden_size": 1536,
    "intermediate_size": 8960,
    "num_hidden_layers": 28,
    "num_attention_heads": 12,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1e6,
    "max_position_embeddings": 131_072,
}
MEANFLOW = {"meanflow": {"enabled": True, "use_duration_embedding": True}}
ONE_STEP = {"solver": "flow_matching", "ode_method": "euler", "num_steps": 1, "guidance_scale": 0.0}
TWO_STEPS = {"solver": "scm", "num_steps": 2, "guidance_scale": 0.0}
STREAMING = {"interleave_mode": "buffered_ratio", "initial_lookahead": 3, "ta_per_tta": 2, "warmup_ta": 1}
RELEASES: dict[str, dict[str, Any]] = {
    "dots-tts": {},
    "dots-tts-mf": MEANFLOW,
    "dots-tts-mf-1step": {**MEANFLOW, "sampling": ONE_STEP},
    "dots-tts-mf-2steps": {**MEANFLOW, "sampling": TWO_STEPS},
    "dots-tts-mf-2steps-stts": {**MEANFLOW, "sampling": TWO_STEPS, "streaming": STREAMING},
}
"""Additions of each released checkpoint to config.json."""
SPECIAL = {GEN_START: 151_668, GEN_SPAN: 151_669, GEN_END: 151_670, TEXT_END: 151_671}
CONSTANTS = {"alpha": 0.0, "beta": 0.0, "filter": 1 / 12}


def make(name: str, device: torch.device, dtype: torch.dtype | None, options: Mapping[str, Any]) -> DotsTTS:
    """The dummy `name`. `dtype` None: bfloat16 on a GPU, float32 on a CPU. Words take the place of tokens.

    Load options: those of `loader.load` but for `lora`.
    """
    check_load_options(options, DUMMY_OPTIONS)
    plan = AdapterPlan.of(options, read_peft, USUAL_TARGETS)
    c = with_solver(parse({**RELEASED, **RELEASES[name]}, LANGUAGE), options)
    modules = make_modules(c, device, dtype)
    quantize_layers(modules[0], QUANTIZED, quantization(options))
    for module in modules:
        initialize_dummy_weights(module, device, SEED, gain=1.0, constants=CONSTANTS)
        _set_statistics(module)
    stats = np.zeros(c.latent, np.float32), np.ones(c.latent, np.float32)
    first = min(SPECIAL.values())
    audio_dtype = codec_dtype(options, device, dtype)
    return build_model(c, modules, device, audio_dtype, lambda t: dummy_tokens(t, first), SPECIAL, stats, plan)


def _set_statistics(module: nn.Module) -> None:
    """Give batch norms a mean of zero and a variance of one."""
    for norm in module.modules():
        if isinstance(norm, nn.BatchNorm1d | nn.BatchNorm2d):
            norm.reset_running_stats()

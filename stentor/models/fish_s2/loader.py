"""Loading a released directory: config.json, tokenizer.json, the shards of the language model and codec.pth."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from stentor.config import path_of
from stentor.errors import CheckpointError
from stentor.models.fish_s2 import codec_config, config
from stentor.models.fish_s2.checkpoint import read_codec, read_language_model, released_name
from stentor.models.fish_s2.codec import FishCodec
from stentor.models.fish_s2.language_model import Language
from stentor.models.fish_s2.lora import USUAL_TARGETS, reader, serves_adapters
from stentor.models.fish_s2.model import FishS2
from stentor.models.fish_s2.spec import REFERENCE_SECONDS, SAMPLE_RATE
from stentor.models.fish_s2.tokenizer import Tokens, read_tokens
from stentor.models.load_options import CODEC_DTYPE, check_load_options, codec_dtype, encoder_dtype, model_dtype
from stentor.models.lora import ADAPTER_OPTIONS, NO_ADAPTERS, AdapterPlan, AdapterSlots, install_adapters
from stentor.models.lora_files import merge
from stentor.models.quantization import QUANTIZATION, place_quantized, quantization
from stentor.models.weights import load_weights

LOAD_OPTIONS = (CODEC_DTYPE, QUANTIZATION, "lora", *ADAPTER_OPTIONS)
QUANTIZED, QUANTIZED_DEPTH = ("slow",), ("fast",)
"""The language models and depth loops whose weights may have 8 bits."""


def load(
    path: Path, raw: Mapping[str, Any], device: torch.device, dtype: torch.dtype | None, options: Mapping[str, Any]
) -> FishS2:
    """`raw` is config.json. `dtype` None: the checkpoint's own on a GPU, float32 on a CPU.

    Load options: `codec_dtype` of the codec, `quantization` of the slow transformer's weights, `lora` (a PEFT folder to
    merge), and those of adapters (models/lora.py). Raises CheckpointError and InvalidRequest.
    """
    check_load_options(options, LOAD_OPTIONS)
    audio_dtype = codec_dtype(options, device, dtype)
    c = config.parse(raw)
    read = reader(c)
    plan = AdapterPlan.of(options, read, USUAL_TARGETS)
    tokens = read_tokens(path, c.codes, c.vocab)
    tensors = read_language_model(path, raw)
    if "lora" in options:
        tensors = merge(tensors, read(path_of("lora", options["lora"])))
    own = tensors["embeddings.weight"].dtype if "embeddings.weight" in tensors else torch.bfloat16
    language = Language(c, tokens.semantic, tokens.im_end, model_dtype(dtype, own, device))
    dtype_8 = quantization(options)
    tensors = place_quantized(language, QUANTIZED, tensors, dtype_8, str(path), device, QUANTIZED_DEPTH)
    load_weights(language, tensors, str(path), device, file_name=released_name)
    del tensors
    adapters = install_adapters(language, plan, serves_adapters, read)
    codec_tensors = read_codec(path)
    codec = make_codec(codec_config.infer(codec_tensors), c, audio_dtype, encoder_dtype(audio_dtype, device))
    load_weights(codec, codec_tensors, str(path / "codec.pth"), device)
    return build_model(language, codec, tokens, device, adapters)


def make_codec(
    sizes: codec_config.CodecConfig, c: config.LanguageConfig, dtype: torch.dtype, encoder: torch.dtype
) -> FishCodec:
    """A codec without weights, for streams and references of any length that the model takes."""
    if sizes.residual_books + 1 != c.books:
        raise CheckpointError(f"codec.pth has {sizes.residual_books + 1} codebooks, config.json says {c.books}")
    if sizes.semantic_codes != c.codes:
        raise CheckpointError(f"codec.pth has {sizes.semantic_codes} semantic codes, config.json says {c.codes}")
    longest_reference = math.ceil(REFERENCE_SECONDS[1] * SAMPLE_RATE / sizes.encoder_hop) + sizes.hop
    return FishCodec(sizes, max(c.max_model_len, longest_reference), dtype, encoder)


def build_model(
    language: Language,
    codec: FishCodec,
    tokens: Tokens,
    device: torch.device,
    adapters: AdapterSlots = NO_ADAPTERS,
) -> FishS2:
    """A model of loaded parts, all on `device`."""
    for module in (language, codec):
        module.to(device).requires_grad_(False).eval()
    language.process_weights_after_loading()
    codec.process_weights_after_loading()
    return FishS2(language, codec, tokens, adapters)

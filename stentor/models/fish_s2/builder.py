"""Building a model: the language model, the codec and the tokenizer."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial
from typing import Any

import torch

from stentor.errors import CheckpointError
from stentor.models.dummy import dummy_tokens
from stentor.models.fish_s2 import codec as codecs
from stentor.models.fish_s2 import config
from stentor.models.fish_s2.checkpoint import read_codec, read_language_model, released_name
from stentor.models.fish_s2.codec import FishCodec
from stentor.models.fish_s2.language_model import Language
from stentor.models.fish_s2.lora import reader, serves_adapters
from stentor.models.fish_s2.model import FishS2
from stentor.models.fish_s2.spec import REFERENCE_SECONDS, SAMPLE_RATE
from stentor.models.fish_s2.tokenizer import Tokens, read_tokens, select_tokens
from stentor.models.load_options import CODEC_DTYPE, codec_dtype, encoder_dtype, model_dtype
from stentor.models.lora import ADAPTER_OPTIONS, USUAL_TARGETS, AdapterPlan, install_adapters
from stentor.models.lora_files import merge_option
from stentor.models.quantization import QUANTIZATION, EightBits, quantization
from stentor.models.source import Checkpoint, RandomWeights, Source

LOAD_OPTIONS = (QUANTIZATION, *ADAPTER_OPTIONS)
FILE_OPTIONS = (CODEC_DTYPE, "lora")
"""Load options of a checkpoint."""
QUANTIZED = ("slow",)
QUANTIZED_DEPTH = ("fast",)
"""The language models and depth loops whose weights may have 8 bits."""


def build(
    source: Source, device: torch.device, dtype: torch.dtype | None, options: Mapping[str, Any]
) -> FishS2:
    """`dtype` None: the checkpoint's own on a GPU, float32 on a CPU.

    Load options: `quantization` of the slow transformer's weights, those of adapters
    (models/lora.py), and of a checkpoint `codec_dtype` and `lora` (a PEFT folder to merge). Raises
    CheckpointError and InvalidRequest.
    """
    source.check_options(options, LOAD_OPTIONS, FILE_OPTIONS)
    audio_dtype = codec_dtype(options, device, dtype)
    c = config.parse(source.config)
    read = reader(c)
    plan = AdapterPlan.of(options, read, USUAL_TARGETS)
    if isinstance(source, Checkpoint):
        tokens = read_tokens(source.path, c.codes, c.vocab)
    else:
        tokens = dummy_ids(source, c)
    tensors = source.tensors(lambda path: read_language_model(path, source.config))
    tensors = merge_option(tensors, options, read)
    if "embeddings.weight" in tensors:
        stored_dtype = tensors["embeddings.weight"].dtype
    else:
        stored_dtype = torch.bfloat16
    language = Language(c, tokens.semantic, tokens.im_end, model_dtype(dtype, stored_dtype, device))
    eight_bits = EightBits(quantization(options), QUANTIZED, QUANTIZED_DEPTH)
    source.fill(
        language, tensors, source.name, device, file_name=released_name, eight_bits=eight_bits
    )
    del tensors
    adapters = install_adapters(language, plan, serves_adapters, read)
    tensors = source.tensors(read_codec)
    if tensors:
        sizes = codecs.infer(tensors)
    else:
        sizes = codecs.RELEASED
    codec = make_codec(sizes, c, audio_dtype, encoder_dtype(audio_dtype, device))
    source.fill(codec, tensors, f"{source.name}/codec.pth", device)
    for module in (language, codec):
        module.to(device).requires_grad_(False).eval()
    language.process_weights_after_loading()
    codec.process_weights_after_loading()
    return FishS2(language, codec, tokens, adapters)


def make_codec(
    sizes: codecs.CodecConfig, c: config.LanguageConfig, dtype: torch.dtype, encoder: torch.dtype
) -> FishCodec:
    """A codec without weights, for streams and references of any length that the model takes."""
    if sizes.residual_books + 1 != c.books:
        raise CheckpointError(
            f"codec.pth has {sizes.residual_books + 1} codebooks, config.json says {c.books}"
        )
    if sizes.semantic_codes != c.codes:
        raise CheckpointError(
            f"codec.pth has {sizes.semantic_codes} semantic codes, config.json says {c.codes}"
        )
    longest_reference = (
        math.ceil(REFERENCE_SECONDS[1] * SAMPLE_RATE / sizes.encoder_hop) + sizes.hop
    )
    return FishCodec(sizes, max(c.max_model_len, longest_reference), dtype, encoder)


def dummy_ids(source: RandomWeights, c: config.LanguageConfig) -> Tokens:
    """The released special ids, and one id per word of text."""
    text = partial(dummy_tokens, vocab=source.words)
    return select_tokens(text, source.special, c.codes, c.vocab, source.name)

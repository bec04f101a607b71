"""Building a model: the language model, the codec's decoder, the tokenizer and the voices."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from stentor.models.base import Voice
from stentor.models.calm_codec import Decoder
from stentor.models.calm_tokenizer import dummy_tokenizer
from stentor.models.calm_weights import DECODER, QUANTIZED, file_name, finish, named
from stentor.models.load_options import CODEC_DTYPE, codec_dtype, model_dtype
from stentor.models.phonon.checkpoint import (
    NAMES,
    language_model,
    read_tokenizer,
    read_voices,
)
from stentor.models.phonon.config import PhononConfig, parse
from stentor.models.phonon.language_model import ConditionedLanguageModel
from stentor.models.phonon.model import Phonon
from stentor.models.phonon.prompt import PromptBuilder
from stentor.models.quantization import QUANTIZATION, EightBits, quantization
from stentor.models.source import Checkpoint, Source
from stentor.models.weights import meta_init, read_safetensors

LOAD_OPTIONS = (QUANTIZATION,)
FILE_OPTIONS = (CODEC_DTYPE,)
"""Load options of a checkpoint."""
WEIGHTS = "model.safetensors"
DUMMY_VOICE = 125
"""Latents of the voice beside random weights: ten seconds."""


@torch.no_grad()
def build(
    source: Source, device: torch.device, dtype: torch.dtype | None, options: Mapping[str, Any]
) -> Phonon:
    """`dtype` None: bfloat16 on a GPU, and on a CPU float32 with weights in float16.

    Load options: `quantization` of the backbone, and of a checkpoint `codec_dtype`. Raises
    CheckpointError and InvalidRequest.
    """
    source.check_options(options, LOAD_OPTIONS, FILE_OPTIONS)
    generation = source.json("generation_config.json", {})
    c = parse(source.config, generation, f"{source.name}/config.json")
    tensors = source.tensors(lambda path: read_safetensors(path / WEIGHTS))
    with meta_init():
        net = ConditionedLanguageModel(c).to(model_dtype(dtype, torch.bfloat16, device))
        decoder = Decoder(c)
    source.fill(
        net,
        language_model(tensors),
        source.name,
        device,
        file_name=file_name(NAMES),
        eight_bits=EightBits(quantization(options), QUANTIZED),
    )
    source.fill(
        decoder,
        named(tensors, DECODER),
        source.name,
        device,
        file_name=file_name(DECODER),
    )
    finish(net, decoder, codec_dtype(options, device, dtype), packed=dtype is None)
    return Phonon(c, net, decoder, _prompts(source, c))


def _prompts(source: Source, c: PhononConfig) -> PromptBuilder:
    """The tokenizer and the voices of a checkpoint, or those of random weights."""
    if isinstance(source, Checkpoint):
        tokens = read_tokenizer(source.path / "tokenizer.json", c.vocab + 1)
        return PromptBuilder(c, tokens, read_voices(source.path, c.voice))
    latents = np.random.default_rng(0).standard_normal((DUMMY_VOICE, c.voice), np.float32)
    voices = {"noise": Voice("noise", {"voice": latents})}
    return PromptBuilder(c, dummy_tokenizer(c.vocab), voices)

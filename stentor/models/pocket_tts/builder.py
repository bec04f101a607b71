"""Building a model: the language model, both halves of the codec, the tokenizer and the voices."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from stentor.models.base import Voice
from stentor.models.calm_codec import Decoder
from stentor.models.calm_config import RATE, LayerConfig
from stentor.models.calm_language_model import LanguageModel
from stentor.models.calm_tokenizer import dummy_tokenizer
from stentor.models.calm_weights import (
    DECODER,
    LM,
    QUANTIZED,
    file_name,
    finish,
    finish_codec,
    language_model,
    named,
)
from stentor.models.load_options import CODEC_DTYPE, codec_dtype, encoder_dtype, model_dtype
from stentor.models.pocket_tts.checkpoint import ENCODER, Files
from stentor.models.pocket_tts.config import parse
from stentor.models.pocket_tts.encoder import Encoder
from stentor.models.pocket_tts.model import PocketTTS
from stentor.models.pocket_tts.prompt import PromptBuilder
from stentor.models.pocket_tts.released import YAML
from stentor.models.pocket_tts.spec import REFERENCE_SECONDS
from stentor.models.pocket_tts.tokenizer import read_tokenizer
from stentor.models.pocket_tts.voice import read_voice
from stentor.models.quantization import QUANTIZATION, EightBits, quantization
from stentor.models.source import Checkpoint, Source
from stentor.models.voice_files import VoiceFiles, voice_files
from stentor.models.weights import meta_init, read_safetensors

LOAD_OPTIONS = (QUANTIZATION,)
FILE_OPTIONS = (CODEC_DTYPE,)
"""Load options of a checkpoint."""
DUMMY_VOICE = 126
"""Positions of the voice beside random weights, as many as ten seconds of a recording take."""


@torch.no_grad()
def build(
    source: Source, device: torch.device, dtype: torch.dtype | None, options: Mapping[str, Any]
) -> PocketTTS:
    """`dtype` None: bfloat16 on a GPU, and on a CPU float32 with weights in 16 bits where the file
    has them so. Random weights count as such.

    Load options: `quantization` of the backbone, and of a checkpoint `codec_dtype`. Raises
    CheckpointError and InvalidRequest.
    """
    source.check_options(options, LOAD_OPTIONS, FILE_OPTIONS)
    eight_bits = EightBits(quantization(options), QUANTIZED)
    voices: Mapping[str, Voice]
    if isinstance(source, Checkpoint):
        files = Files(source.path)
        c = files.config
        where = str(files.weights)
        language = files.language
        clones = files.clones
        tensors = read_safetensors(files.weights)
        tokens = read_tokenizer(files.tokenizer)
        layers = c.backbone
        voices = VoiceFiles(voice_files(files.voices), lambda file: read_voice(file, layers))
    else:
        c = parse(source.json(YAML), source.name)
        where = source.name
        language = "english"
        clones = True
        tensors = {}
        tokens = dummy_tokenizer(c.vocab)
        voices = {"noise": _noise(c.backbone)}
    # both halves of the codec are loaded in float32 whatever the language model is
    with meta_init():
        net = LanguageModel(c).to(model_dtype(dtype, torch.bfloat16, device))
        decoder = Decoder(c)
        encoder = Encoder(c)
    source.fill(
        net,
        language_model(tensors),
        where,
        device,
        file_name=lambda n: LM + n,
        eight_bits=eight_bits,
    )
    source.fill(decoder, named(tensors, DECODER), where, device, file_name=file_name(DECODER))
    source.fill(encoder, named(tensors, ENCODER), where, device, file_name=file_name(ENCODER))
    packed = dtype is None and all(t.element_size() == 2 for t in tensors.values() if t.ndim > 1)
    audio_dtype = codec_dtype(options, device, dtype)
    finish(net, decoder, audio_dtype, packed)
    finish_codec(encoder, encoder_dtype(audio_dtype, device), packed)
    encoder.process_weights_after_loading(int(REFERENCE_SECONDS[1] * RATE) + RATE)
    return PocketTTS(c, net, decoder, encoder, PromptBuilder(c, tokens, voices), language, clones)


def _noise(c: LayerConfig) -> Voice:
    """A voice of noise."""
    shape = (c.layers, 2, DUMMY_VOICE, c.kv_heads, c.head_dim)
    return Voice("noise", {"given": np.random.default_rng(0).standard_normal(shape, np.float32)})

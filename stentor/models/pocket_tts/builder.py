"""Building a model: the language model, both halves of the codec, the tokenizer and the voices."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import torch

from stentor.layers.conv import cast_codec
from stentor.layers.packed import pack_convolutions, pack_linears, packs
from stentor.models.base import Voice
from stentor.models.dummy import dummy_tokens, dummy_words
from stentor.models.load_options import CODEC_DTYPE, codec_dtype, encoder_dtype, model_dtype
from stentor.models.pocket_tts.checkpoint import (
    DECODER,
    ENCODER,
    LM,
    Files,
    file_name,
    language_model,
    named,
)
from stentor.models.pocket_tts.codec import Decoder, Encoder
from stentor.models.pocket_tts.config import RATE, LayerConfig, parse
from stentor.models.pocket_tts.language_model import LanguageModel
from stentor.models.pocket_tts.model import PocketTTS
from stentor.models.pocket_tts.prompt import PromptBuilder
from stentor.models.pocket_tts.released import YAML
from stentor.models.pocket_tts.spec import MAX_MODEL_LEN, REFERENCE_SECONDS
from stentor.models.pocket_tts.tokenizer import Tokenizer, read_tokenizer
from stentor.models.pocket_tts.voice import VoiceFiles
from stentor.models.quantization import QUANTIZATION, EightBits, quantization
from stentor.models.source import Checkpoint, Source
from stentor.models.weights import meta_init, read_safetensors

WORKERS = 2
"""Threads that pack weights."""
LOAD_OPTIONS = (QUANTIZATION,)
FILE_OPTIONS = (CODEC_DTYPE,)
"""Load options of a checkpoint."""
QUANTIZED = ("transformer",)
"""The stack whose weights may have 8 bits."""
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
        voices = VoiceFiles(files.voices, c.backbone)
    else:
        c = parse(source.json(YAML), source.name)
        where = source.name
        language = "english"
        clones = True
        tensors = {}
        tokens = _words(c.vocab)
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
    _finish(net, decoder, encoder, codec_dtype(options, device, dtype), packed)
    return PocketTTS(c, net, decoder, encoder, PromptBuilder(c, tokens, voices), language, clones)


def _finish(
    net: LanguageModel, decoder: Decoder, encoder: Encoder, audio_dtype: torch.dtype, packed: bool
) -> None:
    """Make filled modules ready. Audio is decoded in `audio_dtype`. packed: a CPU that can holds
    weights in 16 bits, which those of releases have."""
    device = net.bos_emb.device
    for module in (net, decoder, encoder):
        module.eval().requires_grad_(False)
    net.process_weights_after_loading()
    cast_codec(decoder, audio_dtype)
    cast_codec(encoder, encoder_dtype(audio_dtype, device))
    if packed and packs(device, net.dtype):
        pack_linears(net)
    if packed and packs(device, audio_dtype):
        with ThreadPoolExecutor(WORKERS) as pool:
            for module in (decoder, encoder):
                pack_linears(module)
                pack_convolutions(module, pool, taps=True)
    decoder.process_weights_after_loading(MAX_MODEL_LEN)
    encoder.process_weights_after_loading(int(REFERENCE_SECONDS[1] * RATE) + RATE)


def _noise(c: LayerConfig) -> Voice:
    """A voice of noise."""
    shape = (c.layers, 2, DUMMY_VOICE, c.kv_heads, c.head_dim)
    return Voice("noise", {"given": np.random.default_rng(0).standard_normal(shape, np.float32)})


def _words(vocab: int) -> Tokenizer:
    """One id per word. An id is decoded as the word that had it last."""
    phrases: dict[int, str] = {}

    def encode(text: str) -> list[int]:
        ids = dummy_tokens(text, vocab)
        phrases.update(zip(ids, dummy_words(text), strict=True))
        return ids

    return Tokenizer(encode, lambda ids: "".join(phrases[i] for i in ids))

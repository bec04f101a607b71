"""The models at their released sizes with random weights and without files."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from stentor.models.base import Voice
from stentor.models.dummy import dummy_tokens, dummy_words, initialize_dummy_weights
from stentor.models.load_options import check_load_options, codec_dtype
from stentor.models.pocket_tts.config import LayerConfig, parse
from stentor.models.pocket_tts.loader import QUANTIZED, build_model, make_modules
from stentor.models.pocket_tts.model import PocketTTS
from stentor.models.pocket_tts.released import description
from stentor.models.pocket_tts.tokenizer import Tokenizer
from stentor.models.quantization import QUANTIZATION, quantization, quantize_layers

SEED = 0
VOICE = 126
"""Positions of the voice."""
RELEASES = {
    "pocket-tts": "english",
    "pocket-tts-24l": "french_24l",
    "pocket-tts-18m": "english_18m_2026-10",
    "pocket-tts-7m": "english_7m_2026-10",
    "pocket-tts-2m": "english_2m_2026-10",
}
"""The released checkpoint whose sizes each has."""
CONSTANTS = {"scale": 0.01, "emb_std": 1.0, "freqs": 1.0}


def make(name: str, device: torch.device, dtype: torch.dtype | None, options: Mapping[str, Any]) -> PocketTTS:
    """The dummy `name`. `dtype` None: bfloat16 on a GPU, and on a CPU float32 with weights in 16 bits.

    Load options: `quantization`. Its voice takes as many positions as ten seconds of a recording.
    """
    check_load_options(options, (QUANTIZATION,))
    c = parse(description(RELEASES[name]), name)
    net, decoder, encoder = make_modules(c, device, dtype)
    quantize_layers(net, QUANTIZED, quantization(options))
    for module in (net, decoder, encoder):
        initialize_dummy_weights(module, device, SEED, gain=1.0, constants=CONSTANTS)
    audio_dtype, voices = codec_dtype({}, device, dtype), {"noise": _voice(c.backbone)}
    return build_model(c, (net, decoder, encoder), audio_dtype, _words(c.vocab), voices, "english", True, dtype is None)


def _voice(c: LayerConfig) -> Voice:
    shape = (c.layers, 2, VOICE, c.kv_heads, c.head_dim)
    return Voice("noise", {"given": np.random.default_rng(SEED).standard_normal(shape, np.float32)})


def _words(vocab: int) -> Tokenizer:
    """One id per word. An id is decoded as the word that had it last."""
    said: dict[int, str] = {}

    def encode(text: str) -> list[int]:
        ids = dummy_tokens(text, vocab)
        said.update(zip(ids, dummy_words(text), strict=True))
        return ids

    return Tokenizer(encode, lambda ids: "".join(said[i] for i in ids))

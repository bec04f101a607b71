"""The model at its released sizes with random weights and without files."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from stentor.models.cosyvoice3 import config
from stentor.models.cosyvoice3.codec import CosyVoice3Codec
from stentor.models.cosyvoice3.language_model import Language
from stentor.models.cosyvoice3.loader import STREAM_WINDOW, build_model, stream_window
from stentor.models.cosyvoice3.model import CosyVoice3
from stentor.models.cosyvoice3.reference_encoder import VoiceEncoder
from stentor.models.cosyvoice3.tokenizer import Tokens, special_tokens
from stentor.models.cosyvoice3.voice import StoredVoice
from stentor.models.dummy import dummy_tokens, initialize_dummy_weights
from stentor.models.load_options import check_load_options, codec_dtype, model_dtype

SEED = 0
WORDS, FIRST_SPECIAL = 151643, 151646  # ids that words may have, and the first of the family's own tokens
PROMPT = 100  # codes of the dummy's voice: 4 seconds

TEXT_MODEL: Mapping[str, Any] = {
    "hidden_size": 896,
    "num_hidden_layers": 24,
    "num_attention_heads": 14,
    "num_key_value_heads": 2,
    "intermediate_size": 4864,
    "vocab_size": 151_936,
    "rope_theta": 1e6,
    "rms_norm_eps": 1e-6,
}
"""CosyVoice-BlankEN/config.json, as far as it is read."""


def make(name: str, device: torch.device, dtype: torch.dtype | None, options: Mapping[str, Any]) -> CosyVoice3:
    """The dummy `name`. `dtype` None: bfloat16 on a GPU, float32 on a CPU. It has one voice, `dummy`."""
    check_load_options(options, (STREAM_WINDOW,))
    c = config.parse({}, TEXT_MODEL)
    language, codec = (
        Language(c.language, model_dtype(dtype, torch.bfloat16, device)),
        CosyVoice3Codec(c, stream_window(options)),
    )
    for seed, module in enumerate((language, codec)):
        initialize_dummy_weights(module, device, SEED + seed)
    voices = {"dummy": make_voice(c.language.codes)}
    return build_model(c, language, codec, make_tokens(), voices, VoiceEncoder(None), codec_dtype({}, device, dtype))


def make_tokens() -> Tokens:
    """The released special ids, and one id per word of text."""
    special = {name: FIRST_SPECIAL + i for i, name in enumerate(special_tokens())}
    marks = re.compile("(" + "|".join(re.escape(name) for name in special) + ")")

    def encode(text: str) -> list[int]:
        parts = (([special[p]] if p in special else dummy_tokens(p, WORDS)) for p in marks.split(text) if p)
        return [token for part in parts for token in part]

    return Tokens(encode, FIRST_SPECIAL)


def make_voice(codes: int) -> StoredVoice:
    """A voice of noise, with a transcript."""
    g = np.random.default_rng(SEED)
    mel = g.standard_normal((2 * PROMPT, config.MELS)).astype(np.float32)
    speaker = g.standard_normal(config.SPEAKER).astype(np.float32)
    return StoredVoice(g.integers(0, codes, PROMPT), mel, speaker, "what the dummy said", "dummy")

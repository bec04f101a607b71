"""The model at its released sizes with random weights and without files."""

from __future__ import annotations

import torch

from stentor.models.dummy import dummy_tokens, initialize_dummy_weights
from stentor.models.fish_s2 import codec_config, config
from stentor.models.fish_s2.language_model import Language
from stentor.models.fish_s2.loader import build_model, make_codec
from stentor.models.fish_s2.model import FishS2
from stentor.models.fish_s2.tokenizer import Tokens, select_tokens
from stentor.models.load_options import codec_dtype, model_dtype

SEED = 0
IDS = {"<|im_start|>": 151644, "<|im_end|>": 151645, "<|voice|>": 151673}
IDS.update({f"<|semantic:{i}|>": 151678 + i for i in (0, 4095)})
"""Special ids of the released tokenizer. All other ids are below them."""


def make(name: str, device: torch.device, dtype: torch.dtype | None) -> FishS2:
    """The dummy `name`. `dtype` None: bfloat16 on a GPU, float32 on a CPU."""
    c = config.parse(config.RELEASED)
    tokens = make_tokens(c.codes, c.vocab)
    language = Language(c, tokens.semantic, tokens.im_end, model_dtype(dtype, torch.bfloat16, device))
    codec = make_codec(codec_config.RELEASED, c, codec_dtype({}, device, dtype))
    for module in (language, codec):
        initialize_dummy_weights(module, device, SEED)
    return build_model(language, codec, tokens, device)


def make_tokens(codes: int, vocab: int) -> Tokens:
    """The released special ids, and one id per word of text."""
    return select_tokens(lambda text: dummy_tokens(text, min(IDS.values())), IDS, codes, vocab, "the dummy tokenizer")

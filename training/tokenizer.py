"""The built-in voice's tokenizer: one token per phoneme, stress mark or punctuation mark.

Special ids are where VoxCPM2 has them (unk 0, bos 1, eos 2, audio markers 101-104), so symbols take 3-100.
"""

from __future__ import annotations

import json
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Split

SYMBOLS = (
    " .,!?;:—…\"“”()'-"
    + "AIOQTWYabcdefghijklmnopqrstuvwxyzæçðøŋœɐɑɒɔɕəɚɛɜɟɡɣɪɬɯɲɹɾʁʃʊʌʒʔʤʧʰʲˈˌːθᵊᵻβχ"
)
SPECIALS = {
    "<unk>": 0,
    "<s>": 1,
    "</s>": 2,
    "<|audio_start|>": 101,
    "<|audio_end|>": 102,
    "<|audio_prompt_start|>": 103,
    "<|audio_prompt_end|>": 104,
}


def build() -> Tokenizer:
    """The tokenizer as `tokenizers` reads it."""
    if len(set(SYMBOLS)) != len(SYMBOLS) or len(SYMBOLS) > 98:
        raise ValueError("symbols must be distinct and at most 98")
    vocab = {**SPECIALS, **{symbol: 3 + i for i, symbol in enumerate(SYMBOLS)}}
    tokenizer = Tokenizer(WordLevel(vocab, unk_token="<unk>"))
    tokenizer.pre_tokenizer = Split(Regex(r"[\s\S]"), "isolated")
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in SPECIALS])
    return tokenizer


def save(folder: Path) -> None:
    """Write tokenizer.json and tokenizer_config.json."""
    build().save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<s>",
        "eos_token": "</s>",
        "unk_token": "<unk>",
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n")

"""Descriptions of the released checkpoints, by the name of their folder. The repositories hold weights only.

They are those of the YAML files in the package `pocket-tts` 4.0.1.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from typing import Any

REPOSITORY = "kyutai/pocket-tts"
OPEN_REPOSITORY = "kyutai/pocket-tts-without-voice-cloning"
"""Has the tokenizers and voices, and weights with which recordings cannot be cloned."""

APOSTROPHES = {"\u2019": "'", "\u2018": "'"}
DASHES = {"\u2013": ",", "\u2014": ","}
WITHOUT_QUOTES = {**dict.fromkeys('"“”„«»()[]', ""), **APOSTROPHES, "\u2013": ","}

_SEANET = {
    "channels": 1,
    "n_filters": 64,
    "n_residual_layers": 1,
    "ratios": [6, 5, 4],
    "kernel_size": 7,
    "residual_kernel_size": 3,
    "last_kernel_size": 3,
    "pad_mode": "constant",
    "compress": 2,
}
_BASE: dict[str, Any] = {
    "replace_characters": APOSTROPHES,
    "flow_lm": {
        "insert_bos_before_voice": True,
        "flow": {"depth": 6, "dim": 512},
        "transformer": {"d_model": 1024, "hidden_scale": 4, "num_heads": 16, "num_layers": 6},
        "lookup_table": {"n_bins": 4000, "tokenizer_path": "tokenizer.json"},
    },
    "mimi": {
        "sample_rate": 24000,
        "channels": 1,
        "inner_dim": 32,
        "seanet": _SEANET,
        "transformer": {"d_model": 512, "num_heads": 8, "num_layers": 2, "context": 250, "dim_feedforward": 2048},
        "quantizer": {"dimension": 32, "output_dimension": 512},
    },
}
_LARGE: dict[str, Any] = {"flow_lm": {"transformer": {"num_layers": 24}}}


def _small(
    width: int, filters: int, layers: int, flow: str, transformer: Mapping[str, Any], rank: int | None
) -> dict[str, Any]:
    """Changes for the models of 18, 7 and 2 million parameters."""
    return {
        "replace_characters": {**DASHES, **APOSTROPHES},
        "default_eos_threshold": -1.0,
        "flow_lm": {
            "z_dim": 64,
            "flow": {"depth": 4, "dim": width, "type": flow},
            "transformer": {"num_layers": 8, "hidden_scale": 1, **transformer},
            "lookup_table": {"tokenizer_path": "tokenizer.model", "rank": rank},
        },
        "mimi": {
            "quantizer": {"output_dimension": 128},
            "decoder_seanet": {**_SEANET, "n_filters": filters, "kernel_size": 3},
            "decoder_transformer": {
                "d_model": 128,
                "num_heads": 4,
                "num_layers": layers,
                "context": 50,
                "dim_feedforward": 384,
            },
        },
    }


SMALL = {
    "18m": _small(192, 32, 12, "drifting", {"d_model": 512, "num_heads": 8}, None),
    "7m": _small(192, 32, 12, "drifting", {"d_model": 224, "num_heads": 8, "attn_dim": 512, "num_kv_heads": 2}, 64),
    "2m": _small(
        64,
        24,
        4,
        "pointwise",
        {"d_model": 112, "num_heads": 3, "attn_dim": 192, "num_kv_heads": 1, "dim_feedforward": 96},
        32,
    ),
}
_LANGUAGES: dict[str, dict[str, Any]] = {
    "english": {},
    "french": {"replace_characters": {**WITHOUT_QUOTES, ":": ","}, "remove_semicolons": True},
    "german": {"replace_characters": {**WITHOUT_QUOTES, **DASHES}, "remove_semicolons": True},
    "italian": {"replace_characters": WITHOUT_QUOTES},
    "portuguese": {"replace_characters": WITHOUT_QUOTES},
    "spanish": {"replace_characters": {**WITHOUT_QUOTES, "¡": "", "¿": ""}},
    "dutch": {"replace_characters": WITHOUT_QUOTES},
}
LANGUAGES = tuple(_LANGUAGES)
DEFAULT_VOICES = {
    "italian": "giovanni",
    "spanish": "lola",
    "german": "juergen",
    "portuguese": "rafael",
    "french": "estelle",
    "dutch": "daan",
    "english": "alba",
}
"""The voice that speaks each language where none is named."""
_CHANGES: dict[str, dict[str, Any]] = {
    **_LANGUAGES,
    **{f"english_{date}": {} for date in ("2026-04", "2026-09", "2026-09_2", "2026-10")},
    **{f"english_{date}_24l": _LARGE for date in ("2026-04", "2026-09")},
    **{f"{name}_24l": {**_LARGE, **changes} for name, changes in _LANGUAGES.items() if name != "english"},
    "english_drifting_26-09": {"flow_lm": {"flow": {"type": "drifting"}}},
    "english_2026-01": {
        "pad_with_spaces_for_short_inputs": True,
        "flow_lm": {"insert_bos_before_voice": False},
        "mimi": {"inner_dim": 512},
    },
    **{f"english_{n}{kind}_2026-10": changes for n, changes in SMALL.items() for kind in ("", "_refl")},
}
NAMES = tuple(sorted(_CHANGES))
TOKENIZERS = {
    "english_2026-01": "tokenizer.json",
    **dict.fromkeys(
        ("english_2026-09_2", "english_2026-10", "english_drifting_26-09"), "languages/english_2026-09/tokenizer.json"
    ),
}
"""Tokenizers in OPEN_REPOSITORY of checkpoints whose folder there has none."""


def description(name: str) -> dict[str, Any]:
    """The description of a released checkpoint, one of NAMES, as its YAML has it."""
    return _merged(_BASE, _CHANGES[name])


def _merged(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    out = deepcopy(dict(base))
    for key, value in changes.items():
        nested = isinstance(value, Mapping) and key != "replace_characters" and key in out
        out[key] = _merged(out[key], value) if nested else deepcopy(value)
    return out

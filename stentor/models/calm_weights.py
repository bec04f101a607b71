"""Weights of a checkpoint: the names of its parts, and modules that are filled with them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor, nn

from stentor.layers.conv import cast_codec
from stentor.layers.packed import pack_convolutions, pack_linears, packs
from stentor.models.calm_codec import Decoder
from stentor.models.calm_language_model import LanguageModel
from stentor.models.calm_spec import MAX_MODEL_LEN

LM = "flow_lm."
DECODER = {
    "mimi.quantizer.output_proj.weight": "output_proj",
    "mimi.upsample.convtr.convtr.": "upsample.",
    "mimi.decoder_transformer.transformer.": "transformer.",
    "mimi.decoder.": "decoder.",
    "flow_lm.emb_": "emb_",
}
"""How names in a checkpoint begin, and the same here."""
WORKERS = 2
"""Threads that pack weights."""
QUANTIZED = ("transformer",)
"""The stack whose weights may have 8 bits."""


def named(tensors: Mapping[str, Tensor], names: Mapping[str, str]) -> dict[str, Tensor]:
    """The tensors whose names begin with one of `names`, by their names here."""
    return {new: t for name, t in tensors.items() if (new := renamed(name, names))}


def language_model(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors of the language model, by their names here."""
    return {
        name.removeprefix(LM): t
        for name, t in tensors.items()
        if name.startswith(LM) and not renamed(name, DECODER)
    }


def renamed(name: str, names: Mapping[str, str]) -> str:
    """The name of a checkpoint's tensor here, or ""."""
    return next(
        (new + name.removeprefix(old) for old, new in names.items() if name.startswith(old)), ""
    )


def file_name(names: Mapping[str, str]) -> Callable[[str], str]:
    """Return what maps a name here to that in a checkpoint."""
    return lambda name: next(
        (old + name.removeprefix(new) for old, new in names.items() if name.startswith(new)), name
    )


def finish(net: LanguageModel, decoder: Decoder, audio_dtype: torch.dtype, packed: bool) -> None:
    """Make filled modules ready. Audio is decoded in `audio_dtype`. packed: a CPU that can holds
    weights in 16 bits, which those of releases have."""
    net.eval().requires_grad_(False)
    net.process_weights_after_loading()
    if packed and packs(net.embeddings.device, net.dtype):
        pack_linears(net)
    finish_codec(decoder, audio_dtype, packed)
    decoder.process_weights_after_loading(MAX_MODEL_LEN)


def finish_codec(module: nn.Module, dtype: torch.dtype, packed: bool) -> None:
    """Cast half a codec to `dtype`, and pack its weights where a CPU can."""
    module.eval().requires_grad_(False)
    cast_codec(module, dtype)
    if packed and packs(next(module.parameters()).device, dtype):
        with ThreadPoolExecutor(WORKERS) as pool:
            pack_linears(module)
            pack_convolutions(module, pool, taps=True)

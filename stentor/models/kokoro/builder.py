"""Building a model with torch: the network and the voices."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import nn

from stentor.errors import CheckpointError, InvalidRequest
from stentor.models.config_files import read_config
from stentor.models.kokoro.checkpoint import IGNORED, WEIGHTS, read, read_table
from stentor.models.kokoro.config import KokoroConfig, parse
from stentor.models.kokoro.model import Kokoro
from stentor.models.kokoro.network import Network
from stentor.models.kokoro.tokenizer import MAX_SIGNS
from stentor.models.kokoro.voices import FOLDER, STYLE, Voices, checked_table
from stentor.models.load_options import CODEC_DTYPE, codec_dtype
from stentor.models.source import Checkpoint, Source
from stentor.models.weights import on_meta

DUMMY_VOICES = ("af_heart", "bm_george")
FLOAT32 = ("F0_conv", "N_conv", "generator.conv_post")
"""Convolutions of the decoder that stay in float32: pitch, energy and what goes through exp."""


@torch.no_grad()
def build(
    source: Source, device: torch.device, dtype: torch.dtype | None, options: Mapping[str, Any]
) -> Kokoro:
    """The network in float32, with convolutions of the decoder in 16 bits on a GPU.

    Load option: `codec_dtype`. Raises CheckpointError and InvalidRequest.
    """
    source.check_options(options, (CODEC_DTYPE,))
    if dtype not in (None, torch.float32):
        raise InvalidRequest("dtype", "is float32 for this model; its decoder has codec_dtype")
    c = _config(source)
    net = on_meta(partial(Network, c), torch.float32)
    source.fill(net, source.tensors(read), source.name, device, ignore=IGNORED)
    for module in net.modules():
        if isinstance(module, nn.LSTM):
            module.flatten_parameters()
    cast_decoder(net, codec_dtype(options, device, dtype))
    net.process_weights_after_loading()
    return Kokoro(net, _voices(source))


def _config(source: Source) -> KokoroConfig:
    """The sizes of a source. A folder of a graph has none."""
    if isinstance(source, Checkpoint):
        if not (source.path / WEIGHTS).is_file():
            raise CheckpointError(
                f"{source.name} has no {WEIGHTS}: its graph runs on a CPU, with device, dtype, "
                "quantization and runtime left out"
            )
        c = parse(read_config(source.path))
    else:
        c = parse(source.config, source.name)
    if 2 * c.style != STYLE:
        raise CheckpointError(f"{source.name}: style_dim is {c.style}, must be {STYLE // 2}")
    return c


def cast_decoder(net: Network, dtype: torch.dtype) -> None:
    """Cast the decoder's convolutions."""
    for name, module in net.decoder.named_modules():
        if isinstance(module, nn.Conv1d | nn.ConvTranspose1d) and name not in FLOAT32:
            module.to(dtype)


def _voices(source: Source) -> Voices:
    """The voices of a source. Random weights have noise."""
    if not isinstance(source, Checkpoint):
        noise = np.random.default_rng(0).standard_normal((MAX_SIGNS, STYLE), np.float32) * 0.1
        return Voices({name: partial(np.asarray, noise) for name in DUMMY_VOICES}, source.name)
    files = sorted((source.path / FOLDER).glob("*.pt"))
    readers = {file.stem: partial(_table, file) for file in files}
    return Voices(readers, source.name)


def _table(file: Any) -> np.ndarray:
    return checked_table(read_table(file).float().numpy(), file)

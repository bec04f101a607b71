"""Building a model: the network, the autoencoder, the tokenizer, stored voices and LoRA weights."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Executor, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from stentor.errors import CheckpointError
from stentor.layers.conv import cast_codec
from stentor.layers.packed import pack_convolutions, packs
from stentor.models.dummy import dummy_tokens
from stentor.models.load_options import CODEC_DTYPE, DTYPES, codec_dtype, encoder_dtype, model_dtype
from stentor.models.lora import ADAPTER_OPTIONS, AdapterPlan, install_adapters
from stentor.models.lora_files import merge_option
from stentor.models.quantization import QUANTIZATION, EightBits, pack_layers, quantization
from stentor.models.quantized_checkpoint import read_quantized
from stentor.models.source import Checkpoint, Source
from stentor.models.voxcpm2.codec import AudioVAE
from stentor.models.voxcpm2.config import VoxCPM2Config, parse, with_steps
from stentor.models.voxcpm2.lora import TARGETS, read_lora, serves_adapters
from stentor.models.voxcpm2.model import VoxCPM2
from stentor.models.voxcpm2.modules import VoxCPM2Net
from stentor.models.voxcpm2.prompt import VOICES, Tokenize, front_end_of, make_prompts
from stentor.models.voxcpm2.tokenizer import TextTokenizer
from stentor.models.weights import (
    errors_name,
    fold_weight_norm,
    meta_init,
    read_pickle,
    read_safetensors,
    read_sharded,
)

UNUSED_VAE = ("encoder.fc_logvar.", "decoder.sr_bin_boundaries")
LOAD_OPTIONS = (QUANTIZATION, *ADAPTER_OPTIONS)
FILE_OPTIONS = ("lora", "flow_steps", CODEC_DTYPE)
"""Load options of a checkpoint."""
QUANTIZED = ("base_lm", "residual_lm")
"""The language models whose weights may have 8 bits."""
LOCAL = ("feat_encoder.encoder", "feat_decoder.estimator.decoder")
"""The transformers of a patch."""
WORKERS = 2
"""Threads that pack weights and read dictionaries beside the one that loads."""


@torch.no_grad()
def build(
    source: Source, device: torch.device, dtype: torch.dtype | None, options: Mapping[str, Any]
) -> VoxCPM2:
    """`dtype` None: the checkpoint's own on a GPU, float32 on a CPU. There, what had 8 bits only to
    make the checkpoint small is held in 16. Without files words take the place of tokens.

    Load options: `quantization` of the language models' weights, those of adapters
    (models/lora.py), and of a checkpoint `lora` (a file or directory of LoRA weights to merge),
    `flow_steps` (another default of the request option) and `codec_dtype`. Raises CheckpointError
    and InvalidRequest.
    """
    source.check_options(options, LOAD_OPTIONS, FILE_OPTIONS)
    c = with_steps(parse(source.config), options.get("flow_steps"))
    audio_dtype = codec_dtype(options, device, dtype)
    plan = AdapterPlan.of(options, read_lora, TARGETS)
    with meta_init():  # the autoencoder is loaded in float32 whatever the network is
        net = VoxCPM2Net(c, model_dtype(dtype, DTYPES[c.dtype], device))
        vae = AudioVAE(c.vae)
    with ThreadPoolExecutor(WORKERS) as beside:
        front_end = beside.submit(front_end_of, c)
        packs_layers = (
            c.widens
            and dtype is None
            and not plan.slots
            and packs(device, net.stop_head.weight.dtype)
        )
        _fill(net, source, c, device, options, beside if packs_layers else None)
        _fill_codec(vae, source, device, beside if packs(device, audio_dtype) else None)
        prompts = make_prompts(
            c, _tokenize(c, source), front_end.result(), _stored_voices(c, source)
        )
    for module in (net, vae):
        module.to(device).eval().requires_grad_(False)
    adapters = install_adapters(net, plan, serves_adapters, read_lora)
    cast_codec(vae.encoder, encoder_dtype(audio_dtype, device))
    cast_codec(vae.decoder, audio_dtype)
    return VoxCPM2(c, net, vae, prompts, adapters)


def _fill(
    net: VoxCPM2Net,
    source: Source,
    c: VoxCPM2Config,
    device: torch.device,
    options: Mapping[str, Any],
    packing: Executor | None,
) -> None:
    """Fill the network. What its weights are made from is gone when this returns. packing: threads
    that pack what has 8 bits only to make the checkpoint small. None: it is not packed."""
    weights = source.tensors(
        lambda path: read_quantized(source.config, _main_weights(path), str(path))
    )
    weights = merge_option(weights, options, read_lora)
    dtype_8 = quantization(options)
    stacks = () if c.widens and dtype_8 is None else QUANTIZED
    if packing is not None:
        weights = pack_layers(net, LOCAL if stacks else (*QUANTIZED, *LOCAL), weights, packing)
    source.fill(
        net, weights, f"{source.name}: model", device, eight_bits=EightBits(dtype_8, stacks)
    )


def _fill_codec(
    vae: AudioVAE, source: Source, device: torch.device, packing: Executor | None
) -> None:
    """Fill the autoencoder. packing: threads that pack the decoder's weights, where 16 bits hold
    all of them."""
    where = f"{source.name}: audiovae"
    tensors = source.tensors(_vae_weights)
    with errors_name(where):
        weights = fold_weight_norm(tensors)
    source.fill(vae, weights, where, device, ignore=UNUSED_VAE)
    stored = {t.dtype for name, t in weights.items() if name.startswith("decoder.")}
    if packing is not None and stored == {torch.float16}:
        pack_convolutions(vae.decoder, packing)


def _tokenize(c: VoxCPM2Config, source: Source) -> Tokenize:
    if isinstance(source, Checkpoint):
        return TextTokenizer(source.path / "tokenizer.json")
    return partial(dummy_tokens, vocab=c.vocab)


def _stored_voices(c: VoxCPM2Config, source: Source) -> dict[str, np.ndarray] | None:
    """The patches of voices that config.json names. None without files."""
    if not isinstance(source, Checkpoint):
        return None
    if not c.voices:
        return {}
    stored = read_safetensors(source.path / VOICES)
    return {name: stored[name].float().numpy() for name in c.voices if name in stored}


def _main_weights(path: Path) -> dict[str, Tensor]:
    """model.safetensors (whole or in shards), else the older pytorch_model.bin."""
    old = path / "pytorch_model.bin"
    shards = list(path.glob("model*.safetensors*"))
    if old.is_file() and not shards:
        return read_pickle(old)
    return read_sharded(path)


def _vae_weights(path: Path) -> dict[str, Tensor]:
    """audiovae.safetensors, else audiovae.pth."""
    if (path / "audiovae.safetensors").is_file():
        return read_safetensors(path / "audiovae.safetensors")
    if not (path / "audiovae.pth").is_file():
        raise CheckpointError(f"{path} has neither audiovae.safetensors nor audiovae.pth")
    return read_pickle(path / "audiovae.pth")

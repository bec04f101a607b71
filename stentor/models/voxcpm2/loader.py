"""From a directory in the released layout, or from nothing (dummy), to a model."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from stentor.errors import CheckpointError, InvalidRequest
from stentor.layers.conv import cast_decoder
from stentor.models.codec_dtype import codec_dtype
from stentor.models.dummy import pieces
from stentor.models.voxcpm2.codec import AudioVAE
from stentor.models.voxcpm2.config import VoxCPM2Config, parse
from stentor.models.voxcpm2.dummy import RELEASE
from stentor.models.voxcpm2.flow import MAX_STEPS
from stentor.models.voxcpm2.init import initialise
from stentor.models.voxcpm2.lora import merge_lora
from stentor.models.voxcpm2.model import VoxCPM2
from stentor.models.voxcpm2.modules import VoxCPM2Net
from stentor.models.voxcpm2.prompt import FrontEnd, PromptBuilder, Tokenize
from stentor.models.voxcpm2.tokenizer import TextTokenizer
from stentor.models.weights import (
    fill,
    fold_weight_norm,
    read_pickle,
    read_safetensors,
    read_sharded,
    without_memory,
)

UNUSED_VAE = ("encoder.fc_logvar.", "decoder.sr_bin_boundaries")
OPTIONS = ("lora", "flow_steps", "codec_dtype")


def load_checkpoint(
    path: Path, config: dict[str, Any], device: torch.device, dtype: torch.dtype | None, options: dict[str, Any]
) -> VoxCPM2:
    """Read config.json's model, autoencoder and tokenizer. CheckpointError names what is missing or wrong."""
    for name in options:
        if name not in OPTIONS:
            raise InvalidRequest(name, f"is no load option of VoxCPM2, which takes {', '.join(OPTIONS)}")
    c = _with_steps(parse(config), options.get("flow_steps"))
    audio_dtype = codec_dtype(options, device, dtype)
    net, vae = _empty(c, _dtype(c, device, dtype))
    weights = _main_weights(path)
    if "lora" in options:
        weights = merge_lora(weights, Path(options["lora"]).expanduser())
    fill(net, weights, f"{path}: model", device)
    fill(vae, fold_weight_norm(_vae_weights(path)), f"{path}: audiovae", device, ignore=UNUSED_VAE)
    tokenize = TextTokenizer(path / "tokenizer.json")
    return _finish(c, net, vae, device, audio_dtype, tokenize)


def make_dummy(device: torch.device, dtype: torch.dtype | None) -> VoxCPM2:
    """The release's sizes with random weights, made on the device. Words stand in for the tokenizer's tokens."""
    c = parse(RELEASE)
    net, vae = _empty(c, _dtype(c, device, dtype))
    for module in (net, vae):
        _allocate(module, device)
        initialise(module, seed=0)
    audio_dtype = codec_dtype({}, device, dtype)
    return _finish(c, net, vae, device, audio_dtype, lambda text: pieces(text, c.vocab))


def _with_steps(c: VoxCPM2Config, steps: object) -> VoxCPM2Config:
    """`c` with another default of flow_steps, which is also what the engine prepares for."""
    if steps is None:
        return c
    if not isinstance(steps, int) or isinstance(steps, bool) or not 1 <= steps <= MAX_STEPS:
        raise InvalidRequest("flow_steps", f"must be a whole number from 1 to {MAX_STEPS}, got {steps!r}")
    return replace(c, defaults={**c.defaults, "flow_steps": steps})


def _dtype(c: VoxCPM2Config, device: torch.device, dtype: torch.dtype | None) -> torch.dtype:
    """float32 on a CPU, the checkpoint's own elsewhere, unless the user asked for one."""
    own = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}[c.dtype]
    return dtype or (torch.float32 if device.type == "cpu" else own)


def _empty(c: VoxCPM2Config, dtype: torch.dtype) -> tuple[VoxCPM2Net, AudioVAE]:
    """Modules without memory. The autoencoder is loaded in float32 whatever the model is (specs/voxcpm2 1.4)."""
    with without_memory():
        return VoxCPM2Net(c, dtype), AudioVAE(c.vae)


def _allocate(module: nn.Module, device: torch.device) -> None:
    """Memory for every weight of a module on the meta device (buffers such as RoPE tables are real already)."""
    empty = {name: torch.empty_like(w, device=device) for name, w in module.state_dict().items()}
    module.load_state_dict(empty, assign=True)


@torch.no_grad()
def _finish(
    c: VoxCPM2Config,
    net: VoxCPM2Net,
    vae: AudioVAE,
    device: torch.device,
    audio_dtype: torch.dtype,
    tokenize: Tokenize,
) -> VoxCPM2:
    for module in (net, vae):
        module.to(device).eval().requires_grad_(False)
    cast_decoder(vae.decoder, audio_dtype)
    prompts = PromptBuilder(
        tokenize, _front_end(c), c.patch, c.feat, c.max_length, (c.patches_per_token, c.patches_around)
    )
    return VoxCPM2(c, net, vae, prompts)


def _front_end(c: VoxCPM2Config) -> FrontEnd:
    """The text front end that the checkpoint was trained with; released ones take text as it is."""
    if c.text_frontend is None:
        return lambda text: text
    from stentor.text import front_end

    try:
        return front_end(c.text_frontend)
    except ValueError as e:
        raise CheckpointError(f"config.json: stentor.text_frontend: {e}") from e


def _main_weights(path: Path) -> dict[str, Tensor]:
    """model.safetensors (whole or in shards), else the older pytorch_model.bin."""
    old = path / "pytorch_model.bin"
    shards = list(path.glob("model*.safetensors*"))
    return read_pickle(old) if old.is_file() and not shards else read_sharded(path)


def _vae_weights(path: Path) -> dict[str, Tensor]:
    """audiovae.safetensors, else audiovae.pth."""
    if (path / "audiovae.safetensors").is_file():
        return read_safetensors(path / "audiovae.safetensors")
    if not (path / "audiovae.pth").is_file():
        raise CheckpointError(f"{path} has neither audiovae.safetensors nor audiovae.pth")
    return read_pickle(path / "audiovae.pth")

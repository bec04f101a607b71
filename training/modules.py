"""The serving modules as training sees them: construction with fresh weights, and passes over whole sequences."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from stentor.layers.attention import Attend, causal
from stentor.models.config_files import read_config
from stentor.models.dummy import random_init
from stentor.models.quantization import place_quantized
from stentor.models.quantized_checkpoint import read_quantized
from stentor.models.voxcpm2.codec import AudioVAE
from stentor.models.voxcpm2.config import parse, parse_vae
from stentor.models.voxcpm2.modules import VoxCPM2Net
from stentor.models.weights import load_weights, read_safetensors
from training.examples import Batch

Velocity = Callable[..., Tensor]
CPU = torch.device("cpu")


def build_vae(model: dict[str, Any], seed: int = 0) -> AudioVAE:
    """A VAE with random weights from the `[model]` section."""
    vae = AudioVAE(parse_vae(model["audio_vae_config"]))
    random_init(vae, seed)
    return vae


def reconstruct(vae: AudioVAE, x: Tensor, noise: float) -> tuple[Tensor, Tensor]:
    """x [B, 1, samples] -> (decoded audio [B, 1, samples], latents without noise [B, D, frames])."""
    mu = vae.encoder(x)
    size = noise * torch.rand(len(mu), 1, 1, device=mu.device, dtype=mu.dtype)
    return vae.decoder(mu + size * torch.randn_like(mu), None), mu


def build_net(model: dict[str, Any], seed: int = 0, embedding_scale: float = 1.0) -> VoxCPM2Net:
    """Everything but the VAE, in float32 with random weights, from the `[model]` section.

    Token embeddings start with the deviation `embedding_scale`. The release's small ones are for long training: here
    the first layer's output, ten times larger, hid which phoneme a position holds, and the text was never read.
    """
    net = VoxCPM2Net(parse(model), torch.float32)
    random_init(net, seed)
    generator = torch.Generator().manual_seed(seed)
    nn.init.normal_(net.base_lm.embed_tokens.weight, std=embedding_scale, generator=generator)
    return net


def load_packaged(net: VoxCPM2Net, package: Path) -> None:
    """Fill `net` (float32) with the weights of a package, which `training.export` stored in 8 bits."""
    file = package / "model.safetensors"
    weights = read_quantized(read_config(package), read_safetensors(file), str(file))
    load_weights(net, place_quantized(net, (), weights, None, str(file), CPU), str(file), CPU)


def hidden_states(
    net: VoxCPM2Net, batch: Batch, noise: float, attend: Attend = causal
) -> tuple[Tensor, Tensor, Tensor]:
    """Teacher-forced pass over whole sequences, fed-back latents disturbed by noise of random size up to `noise`.

    For each of the batch's M true patches: lm_hidden and residual_hidden [M, hidden] it is made from, and the
    (disturbed) patch before it [M, P, D], zeros for the first.
    """
    size = noise * torch.rand(len(batch.ids), 1, 1, 1, device=batch.ids.device)
    given = batch.reference.shape[1]
    fed = torch.cat((batch.reference, batch.patches), dim=1)
    fed = fed + size * torch.randn_like(fed)
    pos = torch.arange(batch.ids.shape[1], device=batch.ids.device).expand_as(batch.ids)
    slot = pos - batch.text_len[:, None]
    before_text = (pos >= 1) & (pos <= given)  # where the reference stands
    audio = before_text | ((slot >= 0) & (slot < batch.patch_len[:, None]))
    vectors = net.embed_patches(fed)
    which = torch.where(before_text, pos - 1, given + slot)
    index = which.clamp(0, vectors.shape[1] - 1).unsqueeze(-1).expand(-1, -1, vectors.shape[-1])
    feat = (
        vectors.gather(1, index) * audio.unsqueeze(-1)
    ).float()  # the residual stream stays in float32
    x = torch.where(audio.unsqueeze(-1), feat, net.base_lm.embed_tokens(batch.ids))
    h, r = net.run_language_models(x, feat, audio, attend, pos)
    made_at = batch.text_len[batch.row] - 1 + batch.patch
    own = fed[:, given:]
    before = torch.cat((torch.zeros_like(own[:, :1]), own[:, :-1]), dim=1)[batch.row, batch.patch]
    return h[batch.row, made_at], r[batch.row, made_at], before


def flow_loss(
    net: VoxCPM2Net,
    velocity: Velocity,
    mu: Tensor,
    before: Tensor,
    target: Tensor,
    draws: int,
    drop: float,
) -> Tensor:
    """Mean squared error of the velocity: mu [M, 2, H], before and target [M, P, D]. `velocity`: the LocDiT, compiled
    or not.

    Each patch gets `draws` pairs of noise and logit-normal time (Esser et al., 2024); a share `drop` of the patches
    goes without its condition, for guidance.
    """
    dit = net.feat_decoder.estimator
    mu = mu * (torch.rand(len(mu), 1, 1, device=mu.device) >= drop)
    mu, target = mu.repeat(draws, 1, 1), target.repeat(draws, 1, 1)
    t = torch.sigmoid(torch.randn(len(target), device=mu.device))
    noise = torch.randn_like(target)
    x = torch.lerp(target, noise, t.view(-1, 1, 1))
    cond = dit.cond_proj(before).float().repeat(draws, 1, 1)
    tokens = torch.cat((mu, dit.time_tokens(t).unsqueeze(1), cond, dit.in_proj(x)), dim=1)
    out = velocity(tokens, target.shape[1], net.rope)
    return (out.float() - (noise - target)).pow(2).mean()

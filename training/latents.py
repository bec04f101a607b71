"""Teacher speech as latents of the finished VAE, small enough to carry between machines.

    python -m training.latents --speech DIR --work DIR --out DIR

Every utterance is encoded from several starting points within one latent's hop, as augmentation. Latents have unit
deviation; they are stored as int8 in steps of 1/28, whose rounding noise is far below what the decoder was trained on.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from stentor.models.voxcpm2.codec import AudioVAE
from training.common import Log, load_config, pick_device, restore
from training.data import RATE, Speech
from training.modules import build_vae
from training.store import STEP, write


@torch.no_grad()
def encode(vae: AudioVAE, waves: list[Tensor], hop: int) -> list[Tensor]:
    """Latents [frames, D] of each waveform [samples]; a last part shorter than a hop is dropped."""
    batch = pad_sequence(waves, batch_first=True)
    batch = torch.nn.functional.pad(batch, (0, -batch.shape[1] % hop))
    mu = vae.encoder(batch.unsqueeze(1)).transpose(1, 2)
    return [row[: len(wave) // hop] for row, wave in zip(mu, waves, strict=True)]


def encode_all(vae: AudioVAE, speech: Speech, shifts: int, hop: int) -> tuple[Tensor, list[dict[str, int]]]:
    """All utterances at `shifts` starting points: int8 [frames, D] end to end, and where each lies."""
    keys = sorted(speech.spans, key=lambda k: speech.spans[k][1] - speech.spans[k][0])
    pieces, index, at = [], [], 0
    for start in range(0, len(keys), 64):
        group = keys[start : start + 64]
        for shift in range(shifts):
            waves = [speech.utterance(k)[shift * hop // shifts :] for k in group]
            for key, z in zip(group, encode(vae, waves, hop), strict=True):
                pieces.append((z / STEP).round().clamp(-127, 127).to(torch.int8).cpu())
                index.append({"id": key, "shift": shift, "start": at, "frames": len(z)})
                at += len(z)
    return torch.cat(pieces), index


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("speech", "work", "out"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    parser.add_argument("--shifts", type=int, default=2)
    args = parser.parse_args()
    config: dict[str, Any] = load_config()
    device = pick_device()
    vae = build_vae(config["model"]).to(device).eval()
    state = restore(args.work / "vae.pt", device)
    if state is None:
        raise SystemExit(f"no vae.pt in {args.work}: train the VAE first")
    vae.load_state_dict(state["average"])
    torch.backends.cudnn.allow_tf32 = False
    args.out.mkdir(parents=True, exist_ok=True)
    log = Log(args.out / "latents.log")
    hop = int(np.prod(config["model"]["audio_vae_config"]["encoder_rates"]))
    for name, held_out, shifts in (("held_out", True, 1), ("train", False, args.shifts)):
        speech = Speech(args.speech, config["trim"], config["teacher"]["held_out_from"], held_out, device)
        speech.refresh()
        flat, index = encode_all(vae, speech, shifts, hop)
        write(args.out, name, flat, index, speech.ends)
        z = flat.float() * STEP
        log(name=name, hours=speech.hours, seconds=len(speech.flat) / RATE, mean=float(z.mean()), std=float(z.std()),
            largest=float(z.abs().max()), narrowest=float(z.std(0).min()))  # fmt: skip


if __name__ == "__main__":
    main()

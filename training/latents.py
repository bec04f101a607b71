"""Teacher speech as latents of the finished VAE.

    python -m training.latents --speech DIR --vae vae.pt --out DIR

`--vae` may also be the package's `audiovae.safetensors`.
Latents have unit deviation; they are stored as int8 in steps of 1/28, whose rounding noise is far below what the
decoder was trained on.
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
from training.common import Log, averaged, load_config, pick_device
from training.data import Speech
from training.modules import build_vae
from training.sentences import held_out
from training.store import STEP, packed, write

BATCH = 64


@torch.no_grad()
def encode(vae: AudioVAE, waves: list[Tensor], hop: int) -> list[Tensor]:
    """Latents [frames, D] of each waveform [samples]; a last part shorter than a hop is dropped."""
    batch = pad_sequence(waves, batch_first=True)
    batch = torch.nn.functional.pad(batch, (0, -batch.shape[1] % hop))
    mu = vae.encoder(batch.unsqueeze(1)).transpose(1, 2)
    return [row[: len(wave) // hop] for row, wave in zip(mu, waves, strict=True)]


def encode_all(vae: AudioVAE, speech: Speech, hop: int) -> tuple[Tensor, list[dict[str, Any]]]:
    """All utterances: int8 [frames, D] end to end, and where each lies."""
    keys = sorted(speech.spans, key=lambda k: speech.spans[k][1] - speech.spans[k][0])
    pieces, index, at = [], [], 0
    for start in range(0, len(keys), BATCH):
        group = keys[start : start + BATCH]
        found = encode(vae, [speech.utterance(k) for k in group], hop)
        for key, z in zip(group, found, strict=True):
            index.append(
                {
                    "id": key[0],
                    "voice": key[1],
                    "start": at,
                    "frames": len(z),
                    "ends": speech.ends[key],
                }
            )
            at += len(z)
        pieces.append(packed(torch.cat(found)))
    return torch.cat(pieces), index


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("speech", "vae", "out"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    args = parser.parse_args()
    config: dict[str, Any] = load_config()
    device = pick_device()
    vae = build_vae(config["model"]).to(device).eval()
    vae.load_state_dict(averaged(args.vae, device))
    args.out.mkdir(parents=True, exist_ok=True)
    log = Log(args.out / "latents.log")
    for name in ("held_out", "train"):
        speech = Speech(args.speech, lambda i, k=name: held_out(i) == (k == "held_out"), device)
        speech.refresh()
        flat, index = encode_all(vae, speech, vae.config.hop)
        write(args.out, name, flat, index)
        some = flat[:: max(1, len(flat) // 100_000)].float().numpy() * STEP
        log(name=name, hours=speech.hours, utterances=len(index), mean=float(some.mean()), std=float(some.std()),
            largest=float(np.abs(some).max()), narrowest=float(some.std(0).min()))  # fmt: skip


if __name__ == "__main__":
    main()

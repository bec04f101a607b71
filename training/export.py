"""Puts what was trained into one directory in the released layout, ready for `stentor.TTS`.

    python -m training.export --vae vae.pt --polish polish.pt --lm lm.pt --voices voices.safetensors --out DIR

The averaged weights of each trainer's checkpoint are taken. `--vae` may also be the package's `.safetensors`.
`--polish` (a decoder trained further) and `--lm` may be left out: without `--lm` only the autoencoder is written. Of
several files behind `--lm` the mean is taken.
`--share` is the share that a polished decoder has in the weights, the rest are those of `--vae` (Wortsman et al., 2022,
"Robust fine-tuning of zero-shot models").
Linear layers are stored in 8 bits, one scale per output, as compressed-tensors does.
"""

from __future__ import annotations

import argparse
import json
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from stentor.layers.quantized import quantize
from stentor.models.weights import FUSED
from training import tokenizer
from training.common import averaged, load_config
from training.modules import build_net

LARGE = 1_000_000
SCHEME = {
    "targets": ["Linear"],
    "weights": {"num_bits": 8, "type": "int", "strategy": "channel", "symmetric": True},
}


def with_weight_norm(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """Plain convolution weights as `weight_g`, `weight_v` in float16: g = ||v|| is a valid decomposition.

    The encoder, which speech does not need, and weights of over `LARGE` numbers, which run at the lowest rates, have v
    in 8 bits: the largest of each row is 127. That changes the audio by -46 dB. All weights in 8 bits would be -36 dB,
    and an opinion score 0.04 lower.
    """
    parted: dict[str, Tensor] = {}
    for name, value in weights.items():
        if name.endswith(".weight") and value.ndim == 3:
            v, norm = value.half(), value.float().flatten(1).norm(dim=1).view(-1, 1, 1)
            if name.startswith("encoder.") or value.numel() > LARGE:
                v = (
                    (value / value.abs().amax((1, 2), keepdim=True).clamp_min(1e-12) * 127)
                    .round()
                    .to(torch.int8)
                )
            parted[f"{name}_g"], parted[f"{name}_v"] = norm.half(), v.contiguous()
        else:
            parted[name] = value.half().contiguous()
    return parted


def parted_projections(weights: dict[str, Tensor], model: dict[str, Any]) -> dict[str, Tensor]:
    """Fused projections as the checkpoint's separate ones: linear layers in 8 bits, what else there is in bfloat16."""
    net = build_net(model)
    widths = {f"{n}.qkv_proj": m.widths for n, m in net.named_modules() if n.endswith("self_attn")}
    linear = {f"{n}.weight" for n, m in net.named_modules() if isinstance(m, nn.Linear)}
    parted: dict[str, Tensor] = {}
    for name, value in weights.items():
        stem, _, kind = name.rpartition(".")
        fused = stem.rpartition(".")[2]
        pieces = (
            value.split(widths[stem])
            if fused == "qkv_proj"
            else value.chunk(len(FUSED.get(fused, ("one",))))
        )
        for part, piece in zip(FUSED.get(fused, (fused,)), pieces, strict=True):
            key = f"{stem.removesuffix(fused)}{part}.{kind}"
            if name in linear:
                parted[key], scale = quantize(piece.float(), torch.int8)
                parted[f"{key}_scale"] = scale.float()
            else:
                parted[key] = piece.to(torch.bfloat16).contiguous()
    return parted


def mean_of(files: list[Path]) -> dict[str, Tensor]:
    """The mean of the averaged weights of checkpoints that began with the same weights."""
    found = [averaged(file) for file in files]
    return {name: torch.stack([weights[name] for weights in found]).mean(0) for name in found[0]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("vae", "polish", "voices"):
        parser.add_argument(f"--{name}", type=Path, required=name == "vae")
    parser.add_argument("--lm", type=Path, nargs="+")
    parser.add_argument("--share", type=float, default=1.0)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    if not 0 <= args.share <= 1:
        parser.error(f"--share: from 0 to 1, got {args.share}")
    args.out.mkdir(parents=True, exist_ok=True)
    model = load_config()["model"]
    if args.vae.suffix == ".safetensors" and args.polish is None:
        shutil.copy(args.vae, args.out / "audiovae.safetensors")
    else:
        vae = averaged(args.vae)
        if args.polish is not None:
            polished = {k: v for k, v in averaged(args.polish).items() if k.startswith("decoder.")}
            vae.update({k: torch.lerp(vae[k], v, args.share) for k, v in polished.items()})
        save_file(with_weight_norm(vae), args.out / "audiovae.safetensors")
    if args.lm is not None:
        save_file(parted_projections(mean_of(args.lm), model), args.out / "model.safetensors")
        shutil.copy(args.voices, args.out / "voices.safetensors")
        stored = {
            "quant_method": "compressed-tensors",
            "format": "int-quantized",
            "config_groups": {"all": SCHEME},
        }
        (args.out / "config.json").write_text(
            json.dumps({**model, "quantization_config": stored}, indent=1) + "\n"
        )
        tokenizer.save(args.out)


if __name__ == "__main__":
    main()

"""Puts what was trained into one directory in the released layout, ready for `stentor.TTS`.

    python -m training.export --vae vae.pt --polish polish.pt --lm lm.pt --out DIR

Each file is a trainer's checkpoint; its averaged weights are taken. `--vae` may also be a finished `.safetensors`.
`--polish` (a decoder trained further) and `--lm` may be left out: without `--lm` only the autoencoder is written.
"""

from __future__ import annotations

import argparse
import json
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from stentor.models.weights import FUSED
from training import tokenizer
from training.common import load_config
from training.modules import build_net


def averaged(path: Path) -> dict[str, Tensor]:
    """The averaged weights of a trainer's checkpoint."""
    state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
    weights: dict[str, Tensor] = state["average"]
    return weights


def with_weight_norm(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """Plain convolution weights as `weight_g`, `weight_v` in float16: g = ||v|| is a valid decomposition."""
    parted: dict[str, Tensor] = {}
    for name, value in weights.items():
        if name.endswith(".weight") and value.ndim == 3:
            norm = value.float().flatten(1).norm(dim=1).view(-1, 1, 1)
            parted[f"{name}_g"], parted[f"{name}_v"] = norm.half(), value.half().contiguous()
        else:
            parted[name] = value.half().contiguous()
    return parted


def parted_projections(weights: dict[str, Tensor], model: dict[str, Any]) -> dict[str, Tensor]:
    """Fused projections as the checkpoint's separate ones, in bfloat16."""
    net = build_net(model)
    widths = {f"{n}.qkv_proj": m.widths for n, m in net.named_modules() if n.endswith("self_attn")}
    parted: dict[str, Tensor] = {}
    for name, value in weights.items():
        stem, _, kind = name.rpartition(".")
        fused = stem.rpartition(".")[2]
        pieces = value.split(widths[stem]) if fused == "qkv_proj" else value.chunk(len(FUSED.get(fused, ("one",))))
        for part, piece in zip(FUSED.get(fused, (fused,)), pieces, strict=True):
            parted[f"{stem.removesuffix(fused)}{part}.{kind}"] = piece.to(torch.bfloat16).contiguous()
    return parted


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("vae", "polish", "lm"):
        parser.add_argument(f"--{name}", type=Path, required=name == "vae")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    model = load_config()["model"]
    if args.vae.suffix == ".safetensors":
        shutil.copy(args.vae, args.out / "audiovae.safetensors")
    else:
        vae = averaged(args.vae)
        if args.polish is not None:
            vae.update({k: v for k, v in averaged(args.polish).items() if k.startswith("decoder.")})
        save_file(with_weight_norm(vae), args.out / "audiovae.safetensors")
    if args.lm is not None:
        save_file(parted_projections(averaged(args.lm), model), args.out / "model.safetensors")
        (args.out / "config.json").write_text(json.dumps(model, indent=1) + "\n")
        tokenizer.save(args.out)


if __name__ == "__main__":
    main()

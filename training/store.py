"""Latents on disk: int8 in pieces small enough to carry, and an index of utterances."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

STEP = 1 / 28
PIECE = 31 * 2**19  # bytes of one stored file


class Latents:
    """What `training.latents` wrote: `flat` int8 [frames, D] on `device`, `index` rows {id, shift, start, frames},
    `ends` {id: milliseconds at which the utterance's phonemes end}."""

    def __init__(self, folder: Path, name: str, device: torch.device) -> None:
        meta = json.loads((folder / f"{name}.json").read_text())
        raw = b"".join(f.read_bytes() for f in sorted(folder.glob(f"{name}.[0-9]*.bin")))
        self.flat = torch.from_numpy(np.frombuffer(raw, np.int8).reshape(-1, meta["dim"]).copy()).to(device)
        self.index: list[dict[str, int]] = meta["index"]
        self.ends: dict[int, list[int]] = {int(k): v for k, v in meta["ends"].items()}


def write(
    folder: Path, name: str, flat: Tensor, index: list[dict[str, int]], ends: Mapping[int, Sequence[int]]
) -> None:
    raw = flat.numpy().tobytes()
    for i, start in enumerate(range(0, len(raw), PIECE)):
        (folder / f"{name}.{i:02d}.bin").write_bytes(raw[start : start + PIECE])
    (folder / f"{name}.json").write_text(
        json.dumps({"dim": flat.shape[1], "index": index, "ends": {k: list(v) for k, v in ends.items()}})
    )

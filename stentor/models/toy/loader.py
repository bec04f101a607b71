"""Loading a toy: config.json names its seed, and there are no weight files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from stentor.models.config_reader import ConfigReader
from stentor.models.load_options import check_load_options
from stentor.models.toy.model import Toy


def load(
    path: Path, raw: Mapping[str, Any], device: torch.device, dtype: torch.dtype | None, options: Mapping[str, Any]
) -> Toy:
    """`raw` is config.json. Raises CheckpointError and InvalidRequest."""
    check_load_options(options, ())
    return Toy(seed=ConfigReader(raw).integer("seed", 0, low=0), dtype=dtype or torch.float32, device=device)

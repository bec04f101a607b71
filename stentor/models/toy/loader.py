"""Loading a toy: toy.json or config.json names its seed, and there are no weight files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from stentor.models.config_reader import ConfigReader
from stentor.models.load_options import check_load_options
from stentor.models.toy import FILES
from stentor.models.toy.model import Toy
from stentor.models.weights import read_json


def load(
    path: Path, raw: Mapping[str, Any], device: torch.device, dtype: torch.dtype | None, options: Mapping[str, Any]
) -> Toy:
    """`raw` is config.json, empty where there is none. Raises CheckpointError and InvalidRequest."""
    check_load_options(options, ())
    own = path / FILES[0]
    reader = ConfigReader(read_json(own), FILES[0]) if own.is_file() else ConfigReader(raw)
    return Toy(reader.integer("seed", 0, low=0, high=2**63 - 1), dtype or torch.float32, device)

"""`dummy:toy` and `dummy:toy-lookahead`, which are toys of seed 0."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from stentor.models.load_options import check_load_options
from stentor.models.toy.model import Toy


def make(name: str, device: torch.device, dtype: torch.dtype | None, options: Mapping[str, Any]) -> Toy:
    """The dummy `name`. `dtype` None: float32."""
    check_load_options(options, ())
    return Toy(0, dtype or torch.float32, device, lookahead=name == "toy-lookahead")

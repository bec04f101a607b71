"""Models without files at their released sizes, and with smaller ones in their place."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import stentor.models
from stentor.models.source import RandomWeights, random_weights

MODELS = Path(stentor.models.__path__[0])


def released(family: str, name: str) -> RandomWeights:
    """Return the source of `dummy:NAME`."""
    return random_weights(MODELS / family, name)


def shrink(patch: pytest.MonkeyPatch, change: Callable[[dict[str, Any]], object]) -> None:
    """Let `change` edit the configuration files of each model without files that is built from now on."""

    def changed(folder: Path, name: str) -> RandomWeights:
        source = random_weights(folder, name)
        files = deepcopy(dict(source.files))
        change(files)
        return replace(source, files=files)

    patch.setattr("stentor.models.source.random_weights", changed)

"""Sources of a model: a checkpoint's directory, or random weights at the sizes of a release.

`build(source, device, dtype, options)` in a family's builder.py walks through either in the same
way. A family's `released.json` holds the configuration files of its releases, so a model without
files goes through the reader of those with files.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from stentor.errors import CheckpointError
from stentor.models.config_files import RELEASED, read_json, read_release
from stentor.models.config_reader import ConfigReader
from stentor.models.dummy import UNIT_GAIN, initialize_dummy_weights
from stentor.models.option_names import check_load_options
from stentor.models.quantization import ONLY_WIDENED, EightBits, place_quantized, quantize_layers
from stentor.models.weights import load_weights, same_name

MOST_SEED = 2**63 - 1


def _fill(
    self: Source,
    module: nn.Module,
    tensors: Mapping[str, Tensor],
    where: str,
    device: torch.device,
    number: int = 0,
    ignore: Iterable[str] = (),
    file_name: Callable[[str], str] = same_name,
    eight_bits: EightBits = ONLY_WIDENED,
) -> None:
    """Load `tensors` into a module on the meta device (`place_quantized`, `load_weights`), or draw
    its weights.

    number: of the module. Random weights draw those of different numbers from different seeds.
    """
    stacks = eight_bits.stacks
    dtype = eight_bits.dtype
    depth = eight_bits.depth
    if isinstance(self, RandomWeights):
        quantize_layers(module, stacks, dtype, depth)
        initialize_dummy_weights(module, device, self.seed + number, self.gain, self.constants)
    else:
        placed = place_quantized(module, stacks, tensors, dtype, where, device, depth)
        load_weights(module, placed, where, device, ignore, file_name)


@dataclass(frozen=True)
class Checkpoint:
    """A directory in the released layout. config: its config.json, empty where there is none."""

    path: Path
    config: Mapping[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Name of the source in messages."""
        return str(self.path)

    def check_options(
        self, options: Iterable[str], known: Iterable[str], of_files: Iterable[str] = ()
    ) -> None:
        """InvalidRequest names a load option that is neither in `known` nor in `of_files`, which
        only files have."""
        check_load_options(options, (*of_files, *known))

    def json(self, name: str, default: Mapping[str, Any] | None = None) -> Mapping[str, Any]:
        """Read a configuration file. default: the content of one that is missing. Raises
        CheckpointError."""
        file = self.path / name
        if default is None or file.is_file():
            return read_json(file)
        return default

    def tensors(self, read: Callable[[Path], Mapping[str, Tensor]]) -> dict[str, Tensor]:
        """Read tensors from the directory."""
        return dict(read(self.path))

    fill = _fill


@dataclass(frozen=True)
class RandomWeights:
    """Random weights at the sizes of a release, the same for the same seed. There are no files but
    configurations.

    files: these, by their names in a checkpoint's directory. gain, constants: see `random_init`.
    words, special: ids that words of a text may have, and those of special tokens.
    """

    name: str
    files: Mapping[str, Mapping[str, Any]]
    seed: int = 0
    gain: float = UNIT_GAIN
    constants: Mapping[str, float] = field(default_factory=dict)
    words: int = 0
    special: Mapping[str, int] = field(default_factory=dict)

    @property
    def config(self) -> Mapping[str, Any]:
        """The release's config.json, empty where it has none."""
        return self.files.get("config.json", {})

    def check_options(
        self, options: Iterable[str], known: Iterable[str], of_files: Iterable[str] = ()
    ) -> None:
        """InvalidRequest names a load option that is not in `known`."""
        check_load_options(options, known)

    def json(self, name: str, default: Mapping[str, Any] | None = None) -> Mapping[str, Any]:
        """Return a configuration file of the release."""
        content = self.files.get(name, default)
        if content is None:
            raise CheckpointError(f"{self.name}: {RELEASED} has no {name}")
        return content

    def tensors(self, read: Callable[[Path], Mapping[str, Tensor]]) -> dict[str, Tensor]:
        """Return no tensors."""
        return {}

    fill = _fill


Source = Checkpoint | RandomWeights


def random_weights(folder: Path, name: str) -> RandomWeights:
    """Read the release `name` from released.json in a family's folder. Raises CheckpointError."""
    file = folder / RELEASED
    data = read_release(folder, name)
    reader = ConfigReader(data, str(file), name)
    random = reader.section("random", {})
    tokens = reader.section("tokens", {})
    return RandomWeights(
        f"dummy:{name}",
        reader.table("files"),
        random.integer("seed", 0, low=0, high=MOST_SEED),
        random.number("gain", UNIT_GAIN),
        {key: random.section("constants").number(key) for key in random.table("constants", {})},
        tokens.integer("words", 0, low=0),
        tokens.table("special", {}),
    )

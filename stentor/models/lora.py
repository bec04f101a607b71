"""LoRA adapters of a model: their weights as read from files, and slots in the model's linear
layers that hold them."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from stentor.arguments import shown, whole
from stentor.config import path_of
from stentor.errors import CheckpointError, InvalidRequest
from stentor.layers.lora import LoraLinear, LoraRows
from stentor.layers.transformer import Attention
from stentor.layers.types import ADAPTER, Column
from stentor.models.weights import checkpoint_names

ADAPTER_OPTIONS = ("loras", "max_loras", "max_lora_rank", "lora_targets")
"""Load options of a family whose requests may name adapters."""
USUAL_TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj")
"""Layers that get slots for adapters unless options name others."""
USUAL_RANK = 32
MAX_RANK = 256
MAX_SLOTS = 1024


@dataclass(frozen=True)
class LoraWeights:
    """Low-rank weights A [r, in] and B [out, r] by the checkpoint's name of the layer, which gets
    alpha / r * B A.

    by_root: alpha / sqrt(r) instead (Kalajdzievski, 2023). names: what stands before and after
    `X.lora_A` in the file. in_file: what the file calls a layer that has another name here.
    """

    source: str  # for errors
    pairs: Mapping[str, tuple[Tensor, Tensor]]
    alpha: float
    by_root: bool = False
    names: tuple[str, str] = ("", "")
    in_file: Mapping[str, str] = field(default_factory=dict)

    def tensor(self, name: str, part: str = "A") -> str:
        """Name of a part of a layer's pair in the file."""
        return f"{self.names[0]}{self.in_file.get(name, name)}.lora_{part}{self.names[1]}"

    @property
    def rank(self) -> int:
        """The largest rank."""
        return max(len(a) for a, _ in self.pairs.values())

    def scaled(self, name: str) -> tuple[Tensor, Tensor]:
        """(A, B times its scale) of a layer, in float32."""
        a, b = self.pairs[name]
        return a.float(), self.alpha / (math.sqrt(len(a)) if self.by_root else len(a)) * b.float()

    def check_shape(self, name: str, shape: Sequence[int]) -> None:
        """CheckpointError if the pair of a layer does not make its weight [out, in]."""
        a, b = self.pairs[name]
        if (
            a.ndim != 2
            or b.ndim != 2
            or a.shape[0] != b.shape[1]
            or (b.shape[0], a.shape[1]) != tuple(shape)
        ):
            got = f"lora_A {list(a.shape)} and lora_B {list(b.shape)}"
            layer = self.in_file.get(name, name)
            raise CheckpointError(
                f"{self.source}: {layer} has {got}, which do not make its weight {list(shape)}"
            )

    def check_finite(self, name: str, dtype: torch.dtype) -> None:
        """CheckpointError if the pair of a layer, with its scale, has values that are not finite in
        `dtype`."""
        for part, value in zip("AB", self.scaled(name), strict=True):
            if not value.to(dtype).isfinite().all():
                raise CheckpointError(
                    f"{self.source}: tensor {self.tensor(name, part)} has values that are not finite"
                )

    def identity(self) -> bytes:
        """Digest of the weights, which keys of cached pages contain."""
        content = hashlib.blake2b(repr((self.alpha, self.by_root)).encode(), digest_size=16)
        for name, (a, b) in sorted(self.pairs.items()):
            for part in (a, b):
                content.update(f"{name} {part.dtype} {list(part.shape)}".encode())
                content.update(part.contiguous().flatten().view(torch.uint8).numpy().tobytes())
        return content.digest()


@dataclass(frozen=True)
class _Place:
    """A layer of the checkpoint: a part of a linear layer that has slots."""

    layer: LoraLinear
    part: int

    @property
    def shape(self) -> tuple[int, int]:
        return self.layer.widths[self.part], self.layer.in_features


class AdapterSlots:
    """Where a model keeps the weights of adapters. `count` 0: it takes none.

    places: the layers that take adapters, by the checkpoint's names. read: makes LoraWeights of a
    file or folder.
    """

    def __init__(
        self,
        places: Mapping[str, _Place],
        count: int,
        rank: int,
        read: Callable[[Path], LoraWeights],
        rows: LoraRows,
    ) -> None:
        self.count = count
        self.rank = rank
        self.read = read
        self.rows = rows
        self._places = places

    @property
    def columns(self) -> dict[str, Column]:
        """Columns that adapters add to the slot table."""
        if self.count:
            return {ADAPTER: Column(dtype=torch.int64)}
        return {}

    @property
    def shapes(self) -> dict[str, tuple[int, int]]:
        """(outputs, inputs) of each layer that takes adapters, by the checkpoint's name."""
        return {name: place.shape for name, place in self._places.items()}

    @property
    def options(self) -> dict[str, Any]:
        """Load options that make the same slots, without the adapters for which they were made."""
        if not self.count:
            return {}
        targets = sorted({name.rpartition(".")[2] for name in self._places})
        return {"max_loras": self.count, "max_lora_rank": self.rank, "lora_targets": targets}

    @property
    def bytes(self) -> int:
        """Memory of all slots."""
        layers = {id(p.layer): p.layer for p in self._places.values()}
        return sum(layer.lora_a.nbytes + layer.lora_b.nbytes for layer in layers.values())

    def check(self, weights: LoraWeights) -> None:
        """CheckpointError names the first tensor that does not fit these slots."""
        for name, (a, _) in weights.pairs.items():
            tensor = f"{weights.source}: tensor {weights.tensor(name)}"
            if name not in self._places:
                kinds = ", ".join(sorted({n.rpartition(".")[2] for n in self._places}))
                raise CheckpointError(
                    f"{tensor} belongs to no layer that takes adapters here; those are {kinds}"
                )
            place = self._places[name]
            weights.check_shape(name, place.shape)
            if len(a) > self.rank:
                raise CheckpointError(
                    f"{tensor} has rank {len(a)}, above max_lora_rank {self.rank}"
                )
            weights.check_finite(name, place.layer.lora_a.dtype)

    def write(self, number: int, weights: LoraWeights) -> None:
        """Store checked weights as adapter `number`, which no row uses."""
        for name, place in self._places.items():
            a, b = weights.scaled(name) if name in weights.pairs else _nothing(place)
            place.layer.write(number - 1, place.part, a, b)


def _nothing(place: _Place) -> tuple[Tensor, Tensor]:
    out, inputs = place.shape
    like = place.layer.lora_a
    return like.new_zeros(0, inputs), like.new_zeros(out, 0)


def _no_reader(path: Path) -> LoraWeights:
    raise CheckpointError(f"{path}: this model takes no adapters")


NO_ADAPTERS = AdapterSlots({}, 0, 0, _no_reader, LoraRows())
"""Slots of a model whose requests cannot name adapters: none."""


@dataclass(frozen=True)
class AdapterPlan:
    """How many adapters a model holds, of what rank at most, and the last parts of the names of
    their layers.

    by_name: `lora_targets` names these layers, so the model must have them.
    """

    slots: int
    rank: int
    targets: frozenset[str]
    by_name: bool

    @classmethod
    def of(
        cls,
        options: Mapping[str, Any],
        read: Callable[[Path], LoraWeights],
        usual_targets: Iterable[str],
    ) -> AdapterPlan:
        """From load options. The defaults are made for the adapters in `loras`. InvalidRequest and
        CheckpointError."""
        loras = {
            name: read(path_of("loras", path))
            for name, path in dict(options.get("loras") or {}).items()
        }
        slots = _whole(options, "max_loras", len(loras), MAX_SLOTS, least=0)
        if slots < len(loras):
            raise InvalidRequest("max_loras", f"is {slots}, and {len(loras)} loras are given")
        # A higher rank than the most is refused with its tensor when the adapter is loaded, and so
        # is a wrong layer.
        usual_rank = min(max((w.rank for w in loras.values()), default=USUAL_RANK), MAX_RANK)
        targets = options.get("lora_targets")
        explicit = targets is not None
        if targets is None:
            targets = {
                *usual_targets,
                *(n.rpartition(".")[2] for w in loras.values() for n in w.pairs),
            }
        if isinstance(targets, str):  # as a flag gives them
            targets = targets.split(",")
        if not isinstance(targets, Collection) or not all(isinstance(t, str) for t in targets):
            raise InvalidRequest("lora_targets", f"must be names of layers, got {shown(targets)}")
        return cls(
            slots,
            _whole(options, "max_lora_rank", usual_rank, MAX_RANK),
            frozenset(targets),
            explicit,
        )


def _whole(
    options: Mapping[str, Any], name: str, usual: int, upper_limit: int, least: int = 1
) -> int:
    value = options.get(name, usual)
    number = whole(value)
    if number is None or not least <= number <= upper_limit:
        raise InvalidRequest(
            name, f"must be a whole number from {least} to {upper_limit}, got {shown(value)}"
        )
    return number


def install_adapters(
    net: nn.Module,
    plan: AdapterPlan,
    serves: Callable[[str], bool],
    read: Callable[[Path], LoraWeights],
) -> AdapterSlots:
    """Add slots for adapters to the linear layers of a loaded `net` that `serves` names and the
    plan includes.

    `serves` takes the checkpoint's name of a layer. InvalidRequest for a target that no such layer
    has.
    """
    if not plan.slots:
        return NO_ADAPTERS
    rows = LoraRows()
    places = dict[str, _Place]()
    for name, module in list(net.named_modules()):
        parts = [n.removesuffix(".weight") for n in checkpoint_names(f"{name}.weight")]
        served = [p for p in parts if serves(p)]
        if not isinstance(module, nn.Linear) or not any(
            p.rpartition(".")[2] in plan.targets for p in served
        ):
            continue
        parent = net.get_submodule(name.rpartition(".")[0])
        layer = LoraLinear(module, _widths(parent, module, len(parts)), plan.slots, plan.rank, rows)
        setattr(parent, name.rpartition(".")[2], layer)
        places |= {p: _Place(layer, i) for i, p in enumerate(parts)}
    unknown = plan.targets - {name.rpartition(".")[2] for name in places}
    if unknown and plan.by_name:
        raise InvalidRequest(
            "lora_targets", f"no layer that takes adapters is named {', '.join(sorted(unknown))}"
        )
    return AdapterSlots(places, plan.slots, plan.rank, read, rows)


def _widths(parent: nn.Module, layer: nn.Linear, parts: int) -> tuple[int, ...]:
    """The outputs of each of the checkpoint's layers that are stacked in `layer`."""
    if isinstance(parent, Attention) and layer is parent.qkv_proj:
        return parent.widths
    return (layer.out_features // parts,) * parts

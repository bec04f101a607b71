"""Reading released checkpoints into modules: every tensor must be there, have the right shape, and
be used."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from stentor.arguments import shown
from stentor.errors import CheckpointError
from stentor.models.config_files import read_json

Value = TypeVar("Value")
Built = TypeVar("Built", bound=nn.Module)
FUSED: Mapping[str, tuple[str, ...]] = {
    "qkv_proj": ("q_proj", "k_proj", "v_proj"),
    "gate_up_proj": ("gate_proj", "up_proj"),
}
"""Module name part -> checkpoint name parts that are stacked along dim 0 to make it."""
SAFETENSORS = {
    **{f"F{bits}": getattr(torch, f"float{bits}") for bits in (64, 32, 16)},
    **{f"I{bits}": getattr(torch, f"int{bits}") for bits in (64, 32, 16, 8)},
    "BF16": torch.bfloat16,
    "U8": torch.uint8,
    "BOOL": torch.bool,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
}
"""Names of dtypes in safetensors files."""


class _NoInit(TorchFunctionMode):
    """Weights are not initialised. `nn.init.normal_` on the meta device would import torch's
    compiler, a second at every load, and the others take 50 us each."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in (nn.init.normal_, nn.init.uniform_, nn.init.kaiming_uniform_):
            if args:
                return args[0]
            return kwargs["tensor"]
        return func(*args, **kwargs)


@contextmanager
def meta_init() -> Iterator[None]:
    """Modules made here have their weights on the meta device, for `load_weights` to replace."""
    with torch.device("meta"), _NoInit():
        yield


def on_meta(make: Callable[[], Built], dtype: torch.dtype) -> Built:
    """Make a module on the meta device, in evaluation mode, with parameters of `dtype`."""
    with meta_init():
        return make().to(dtype).eval().requires_grad_(False)


def read_safetensors(file: Path) -> dict[str, Tensor]:
    """All tensors of one safetensors file, on the CPU."""
    if not file.is_file():
        raise CheckpointError(f"{file} does not exist")
    try:
        return _mapped(file)
    except (SafetensorError, OSError, ValueError) as e:
        raise CheckpointError(f"{file} is truncated or corrupt: {e}") from e


def _mapped(file: Path) -> dict[str, Tensor]:
    """Views of the mapped file, as the library's `load_file` returns them. That one never frees two
    integers for each tensor, which hold memory of Python's: the built-in voice took a MiB more with
    every load.

    The library checks that the tensors fill the file behind its header without gaps.
    """
    with safe_open(file, "pt") as opened:
        parts = [(name, opened.get_slice(name)) for name in opened.offset_keys()]
        kinds = [(name, part.get_dtype(), part.get_shape()) for name, part in parts]
    unknown = [f"{name} has dtype {kind}" for name, kind, _ in kinds if kind not in SAFETENSORS]
    if unknown:
        raise CheckpointError(f"{file}: tensor {unknown[0]}; known: {', '.join(SAFETENSORS)}")
    size = file.stat().st_size
    tensors = {}
    storage = torch.UntypedStorage.from_file(str(file), False, size)
    start = size - sum(math.prod(shape) * SAFETENSORS[kind].itemsize for _, kind, shape in kinds)
    for name, kind, shape in kinds:
        end = start + math.prod(shape) * SAFETENSORS[kind].itemsize
        flat = torch.asarray(storage[start:end], dtype=torch.uint8)
        tensors[name] = flat.view(SAFETENSORS[kind]).view(shape)
        start = end
    return tensors


def read_sharded(
    path: Path, stem: str = "model", prefixes: tuple[str, ...] = ("",)
) -> dict[str, Tensor]:
    """`stem`.safetensors, or the shards named by `stem`.safetensors.index.json.

    prefixes: of the names of tensors. Shards without any such are not opened, and need not be
    there.
    """
    index = path / f"{stem}.safetensors.index.json"
    if not index.is_file():
        return _beginning(prefixes, read_safetensors(path / f"{stem}.safetensors"))
    weight_map = read_json(index).get("weight_map")
    if not isinstance(weight_map, dict) or not all(
        isinstance(shard, str) for shard in weight_map.values()
    ):
        raise CheckpointError(
            f"{index} is not a safetensors index: it has no weight_map of file names"
        )
    tensors: dict[str, Tensor] = {}
    for shard in sorted(set(_beginning(prefixes, weight_map).values())):
        if Path(shard).name != shard:
            raise CheckpointError(f"{index} names the shard {shard!r} outside the model directory")
        tensors.update(_beginning(prefixes, read_safetensors(path / shard)))
    return tensors


def _beginning(prefixes: tuple[str, ...], tensors: Mapping[str, Value]) -> dict[str, Value]:
    """Keep what has a name that begins with one of `prefixes`."""
    return {name: value for name, value in tensors.items() if name.startswith(prefixes)}


def read_pickle(file: Path, wrappers: Iterable[str] = ("state_dict",)) -> dict[str, Tensor]:
    """Tensors of a torch pickle (weights only, never code), unwrapped from these keys in turn where
    it has them."""
    tensors = read_pickled_dict(file)
    for key in wrappers:
        if isinstance(tensors.get(key), dict):
            tensors = tensors[key]
    for name, value in tensors.items():
        if not isinstance(name, str) or not isinstance(value, Tensor):
            kind = type(value).__name__
            raise CheckpointError(
                f"{file} must hold a dict of tensors, and {shown(name)} is of type {kind}"
            )
        if not is_plain(value):
            raise CheckpointError(
                f"{file}: tensor {name} is not plain numbers in memory (dense, not quantised)"
            )
    return tensors


def is_plain(tensor: Tensor) -> bool:
    """Whether every number of a tensor is in the file. A file of a few bytes may else stand for
    terabytes."""
    if (
        tensor.is_nested
        or tensor.is_quantized
        or tensor.layout != torch.strided
        or tensor.device.type != "cpu"
    ):
        return False
    return tensor.nbytes <= tensor.untyped_storage().nbytes() and not tensor.is_complex()


def read_pickled_dict(file: Path) -> dict[Any, Any]:
    """A torch pickle (tensors and plain data, never code) that holds a dict."""
    if not file.is_file():
        raise CheckpointError(f"{file} does not exist")
    try:
        data = torch.load(file, map_location="cpu", weights_only=True)
    except (
        Exception
    ) as e:  # torch.load raises many types for a corrupt file, and all mean the same to the user
        raise CheckpointError(
            f"{file} is truncated, corrupt or not a plain tensor file: {e}"
        ) from e
    if not isinstance(data, dict):
        raise CheckpointError(f"{file} must hold a dict of tensors, got {type(data).__name__}")
    return data


@contextmanager
def errors_name(source: object) -> Iterator[None]:
    """A CheckpointError that names a tensor names the file or folder too."""
    try:
        yield
    except CheckpointError as e:
        raise CheckpointError(f"{source}: {e}") from e


WEIGHT_NORM = {
    ".parametrizations.weight.original0": ".weight_g",
    ".parametrizations.weight.original1": ".weight_v",
}
"""Names in torch's newer style of weight norm, and in the older."""


def renamed(name: str, parts: Mapping[str, str]) -> str:
    """A name in which parts are replaced, one after the other."""
    for old, new in parts.items():
        name = name.replace(old, new)
    return name


def fold_weight_norm(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Replace `x.weight_g`, `x.weight_v` by `x.weight` = g * v / ||v|| (norm over all dims but the
    first).

    Integers in `x.weight_v` need no scale: the norm takes it out. The weight then has the dtype of
    g. CheckpointError names a tensor that is missing or whose shape is none of a weight norm.
    """
    folded = {k: v for k, v in tensors.items() if not k.endswith(("weight_g", "weight_v"))}
    for key, v in tensors.items():
        if not key.endswith("weight_v"):
            continue
        name = key.removesuffix("_v")
        if f"{name}_g" not in tensors:
            raise CheckpointError(f"tensor {name}_g is missing beside {key}")
        g = tensors[f"{name}_g"]
        if v.ndim < 2 or g.shape != (len(v), *[1] * (v.ndim - 1)):
            shapes = f"tensors {name}_g {list(g.shape)} and {key} {list(v.shape)}"
            raise CheckpointError(
                f"{shapes} are no weight norm: the first must have one value per row of the other"
            )
        wide = v.to(torch.promote_types(v.dtype, torch.float32), copy=True)
        norm = wide.flatten(1).norm(dim=1).view(g.shape)
        wide.mul_(g.to(wide.dtype)).div_(norm)
        folded[name] = wide.to(v.dtype if v.is_floating_point() else g.dtype)
    for key in tensors:
        if key.endswith("weight_g") and f"{key.removesuffix('_g')}_v" not in tensors:
            raise CheckpointError(f"tensor {key.removesuffix('_g')}_v is missing beside {key}")
    return folded


def same_name(name: str) -> str:
    """Return a name as it is, for files whose tensors are named as the modules."""
    return name


def load_weights(
    module: nn.Module,
    tensors: Mapping[str, Tensor],
    source: str,
    device: torch.device,
    ignore: Iterable[str] = (),
    file_name: Callable[[str], str] = same_name,
) -> None:
    """Load `tensors` (checkpoint names) into `module`, fusing projections, in each parameter's own
    dtype.

    `module` may be on the meta device. Tensors whose name starts with an entry of `ignore` may be
    left over. Any other leftover, gap or shape mismatch is a CheckpointError that names the tensor
    and `source`. `file_name` maps a name in `tensors` to the one in the file, for families that
    rename.
    """
    loaded: set[str] = set()
    state: dict[str, Tensor] = {}
    for name, want in module.state_dict().items():
        parts = checkpoint_names(name)
        missing = [p for p in parts if p not in tensors]
        if missing:
            raise CheckpointError(f"{source}: tensor {file_name(missing[0])} is missing")
        loaded.update(parts)
        if len(parts) == 1:
            value = tensors[parts[0]]
        else:
            value = _stacked(tensors, parts, source, file_name)
        if value.shape != want.shape:
            got = f"tensor {' + '.join(map(file_name, parts))} has shape {list(value.shape)}"
            raise CheckpointError(f"{source}: {got}, config.json asks for {list(want.shape)}")
        state[name] = value.to(device=device, dtype=want.dtype)
    extra = sorted(k for k in tensors if k not in loaded and not k.startswith(tuple(ignore)))
    if extra:
        raise CheckpointError(
            f"{source}: tensor {file_name(extra[0])} is not part of this model ({len(extra)} such)"
        )
    module.load_state_dict(state, assign=True)


def _stacked(
    tensors: Mapping[str, Tensor], parts: list[str], source: str, file_name: Callable[[str], str]
) -> Tensor:
    try:
        return torch.cat([tensors[p] for p in parts])
    except RuntimeError as e:  # shapes or dtypes that do not go together
        kinds = ", ".join(
            f"{file_name(p)} {list(tensors[p].shape)} of {tensors[p].dtype}" for p in parts
        )
        raise CheckpointError(
            f"{source}: tensors {kinds} are one layer here, and cannot be stacked"
        ) from e


def checkpoint_names(name: str) -> list[str]:
    """The checkpoint tensors that make up one module tensor."""
    for fused, parts in FUSED.items():
        if f".{fused}." in name:
            return [name.replace(f".{fused}.", f".{part}.") for part in parts]
    return [name]

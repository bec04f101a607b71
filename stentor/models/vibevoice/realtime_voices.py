"""Voices of a release: files of keys and values, which pickle classes of other libraries.

torch.load refuses such a file with `weights_only`. Here the pickle is read by an allow-list: its
tensors are built from the bytes beside it, its two classes become plain dicts, and whatever else it
names is an error. Nothing of the file is called.
"""

from __future__ import annotations

import io
import pickle
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from stentor.errors import CheckpointError
from stentor.layers.configs import StackConfig
from stentor.models.base import Voice
from stentor.models.vibevoice.config import RealtimeConfig
from stentor.models.voice_files import VoiceFiles, voice_files

FOLDERS = ("voices", "demo/voices/streaming_model")
"""Where voices are in a checkpoint, or in a copy of the authors' repository."""
MAX_VOICE_BYTES = 256 << 20
STORAGES = {
    "BFloat16Storage": torch.bfloat16,
    "HalfStorage": torch.float16,
    "FloatStorage": torch.float32,
}
BOXES = {
    "BaseModelOutputWithPast": ("last_hidden_state", "past_key_values"),
    "DynamicCache": (),
    "OrderedDict": (),
}
"""Classes by name, and the names of their arguments."""


class Box(dict[str, Any]):
    """Stand-in for an object of the file: its attributes."""

    fields: tuple[str, ...] = ()

    def __init__(self, *values: Any) -> None:
        super().__init__(zip(self.fields, values, strict=False))

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        self.update(state)


class VoiceUnpickler(pickle.Unpickler):
    """Reads data.pkl of a voice."""

    def __init__(self, archive: zipfile.ZipFile, root: str) -> None:
        super().__init__(io.BytesIO(archive.read(f"{root}/data.pkl")))
        self._archive = archive
        self._root = root

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("torch._utils", "_rebuild_tensor_v2"):
            return rebuild_tensor
        if module == "torch" and name in STORAGES:
            return STORAGES[name]
        if name in BOXES and module.partition(".")[0] in ("transformers", "collections"):
            return type(name, (Box,), {"fields": BOXES[name]})
        raise pickle.UnpicklingError(f"it names {module}.{name}, which no voice needs")

    def persistent_load(self, pid: Any) -> Tensor:
        _, dtype, key, _, count = pid
        data = self._archive.read(f"{self._root}/data/{key}")
        storage = torch.frombuffer(bytearray(data), dtype=dtype)
        if len(storage) != count:
            raise pickle.UnpicklingError(f"storage {key} has {len(storage)} numbers, not {count}")
        return storage


def rebuild_tensor(
    storage: Tensor, offset: int, size: tuple[int, ...], stride: tuple[int, ...], *_: Any
) -> Tensor:
    """A view of a storage. ValueError for one that reaches behind its end."""
    last = offset + sum((n - 1) * step for n, step in zip(size, stride, strict=True))
    if offset < 0 or min((*size, *stride), default=0) < 0 or last >= len(storage):
        raise ValueError(f"a tensor of {list(size)} does not fit its storage")
    return torch.as_strided(storage, size, stride, offset)


def read_voices(path: Path, c: RealtimeConfig) -> VoiceFiles:
    """The voices of a checkpoint, each a file NAME.pt."""
    files: dict[str, Path] = {}
    for folder in FOLDERS:
        files |= voice_files(path / folder, ".pt")
    return VoiceFiles(files, lambda file: read_voice(file, c))


def read_voice(file: Path, c: RealtimeConfig) -> Voice:
    """A voice as `upper`, `lower` and `negative` (keys and values [layers, 2, T, heads, dim]
    float32, keys after RoPE) and `hidden` [hidden], the last hidden state of the negative one.
    """
    parts = _unpickle(file)
    try:
        arrays = {
            "upper": _keys_values(parts["tts_lm"], c.upper),
            "lower": _keys_values(parts["lm"], c.lower),
            "negative": _keys_values(parts["neg_tts_lm"], c.upper),
        }
        hidden = parts["neg_tts_lm"]["last_hidden_state"][0, -1]
    except (KeyError, TypeError, IndexError, ValueError) as e:
        raise CheckpointError(f"{file} is not a voice of this checkpoint: {e!r}") from e
    if hidden.shape != (c.upper.hidden,):
        raise CheckpointError(f"{file}: neg_tts_lm has hidden states of {list(hidden.shape)}")
    if arrays["lower"].shape[2] > arrays["upper"].shape[2]:
        raise CheckpointError(f"{file}: lm has more positions than tts_lm")
    return Voice(file.name, {**arrays, "hidden": hidden.float().numpy()})


def _unpickle(file: Path) -> Mapping[str, Any]:
    try:
        with zipfile.ZipFile(file) as archive:
            if sum(entry.file_size for entry in archive.infolist()) > MAX_VOICE_BYTES:
                raise CheckpointError(f"{file} holds more than {MAX_VOICE_BYTES >> 20} MiB")
            root = archive.namelist()[0].partition("/")[0]
            parts = VoiceUnpickler(archive, root).load()
    except CheckpointError:
        raise
    except Exception as e:  # a corrupt archive or pickle raises many types
        raise CheckpointError(f"{file} is not a voice: {e}") from e
    if not isinstance(parts, dict):
        raise CheckpointError(f"{file} is not a voice: it holds a {type(parts).__name__}")
    return parts


def _keys_values(part: Mapping[str, Any], c: StackConfig) -> np.ndarray:
    cache = part["past_key_values"]
    layers = []
    for keys, values in zip(cache["key_cache"], cache["value_cache"], strict=True):
        both = torch.stack((keys, values)).float()  # [2, 1, heads, T, dim]
        if both.ndim != 5 or both.shape[1:3] != (1, c.kv_heads) or both.shape[4] != c.head_dim:
            raise ValueError(f"keys of shape {list(keys.shape)}")
        layers.append(both[:, 0].transpose(1, 2))
    if len(layers) != c.layers:
        raise ValueError(f"{len(layers)} layers, not {c.layers}")
    return torch.stack(layers).contiguous().numpy()

"""Features of a reference: its codes, mel frames and speaker, and files that hold them.

A voice file needs neither the audio nor the models that encoded it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from stentor.arguments import shown
from stentor.audio import digest
from stentor.errors import CheckpointError
from stentor.models.base import Voice
from stentor.models.cosyvoice3.config import MAX_PROMPT, MELS, SPEAKER
from stentor.models.weights import is_plain, read_pickled_dict

INTEGERS = ("I32", "I64")  # as safetensors names them
FLOATS = ("F16", "F32", "F64")
FOLDER = "voices"
SUFFIX = ".safetensors"
SPEAKERS = "spk2info.pt"


@dataclass(frozen=True)
class StoredVoice:
    """codes int64 [P], mel float32 [2 P, 80], speaker float32 [192]. P is 0 where only the speaker
    is known.

    text: its transcript. None: unknown, so the language model does not see it. id: names all
    but the text.
    """

    codes: np.ndarray
    mel: np.ndarray
    speaker: np.ndarray
    text: str | None = None
    id: str = ""

    @staticmethod
    def of(voice: Voice, text: str | None) -> StoredVoice:
        """From what `encode` returned."""
        codes, mel, speaker = (voice.features[name] for name in ("codes", "mel", "speaker"))
        return StoredVoice(codes.astype(np.int64), mel, speaker, text, voice.id)

    @staticmethod
    def of_speaker(embedding: np.ndarray) -> StoredVoice:
        """A speaker embedding alone."""
        none = np.zeros((0, MELS), np.float32)
        return StoredVoice(
            np.zeros(0, np.int64), none, embedding.astype(np.float32), None, digest(embedding)
        )

    def save(self, file: Path) -> None:
        """Write a voice file."""
        arrays = {"codes": self.codes.astype(np.int32), "mel": self.mel, "speaker": self.speaker}
        if self.text is None:
            metadata = {}
        else:
            metadata = {"text": self.text}
        save_file({name: np.ascontiguousarray(a) for name, a in arrays.items()}, file, metadata)


def load_voice(file: Path, codes: int) -> StoredVoice:
    """A voice file. `codes`: how many there are. Raises CheckpointError if it cannot be used."""
    if not file.is_file():  # a FIFO would wait for ever
        raise CheckpointError(f"{file} is not a regular file")
    try:
        with safe_open(file, "numpy") as opened:
            names = opened.keys()
            _check_tensors(file, {name: opened.get_slice(name) for name in names})
            text = (opened.metadata() or {}).get("text")
            arrays = {name: opened.get_tensor(name) for name in ("codes", "mel", "speaker")}
    except (SafetensorError, OSError, ValueError) as e:
        raise CheckpointError(f"{file} is truncated or corrupt: {e}") from e
    for name, array in arrays.items():
        if not np.isfinite(array).all():
            raise CheckpointError(f"{file}: tensor {name} holds numbers that are NaN or infinite")
    if arrays["codes"].size and not 0 <= arrays["codes"].min() <= arrays["codes"].max() < codes:
        raise CheckpointError(f"{file}: codes must be from 0 to {codes - 1}")
    return StoredVoice.of(Voice(file.name, arrays), text)


def _check_tensors(file: Path, parts: Mapping[str, Any]) -> None:
    """CheckpointError if the tensors are none of a voice. Nothing of them has been read yet."""
    for name in ("codes", "mel", "speaker"):
        if name not in parts:
            raise CheckpointError(f"{file}: tensor {name} is missing")
    count = next(iter(parts["codes"].get_shape()), 0)
    if count > MAX_PROMPT:
        raise CheckpointError(f"{file}: codes must be at most {MAX_PROMPT}, there are {count}")
    expected = {
        "codes": ([count], INTEGERS),
        "mel": ([2 * count, MELS], FLOATS),
        "speaker": ([SPEAKER], FLOATS),
    }
    for name, (shape, dtypes) in expected.items():
        actual = parts[name].get_shape()
        dtype = parts[name].get_dtype()
        if actual != shape or dtype not in dtypes:
            what = f"has shape {actual} of {dtype}, wanted {shape} of {', '.join(dtypes)}"
            raise CheckpointError(f"{file}: tensor {name} {what}")


def load_voices(path: Path, codes: int) -> dict[str, StoredVoice]:
    """Built-in voices of a model directory by name, in lower case: `spk2info.pt`, and the files in
    `voices/`."""
    voices: dict[str, StoredVoice] = {}
    if (path / SPEAKERS).is_file():
        speakers: Mapping[str, Any] = read_pickled_dict(path / SPEAKERS)
        voices = {
            str(name).lower(): StoredVoice.of_speaker(_embedding(path / SPEAKERS, name, v))
            for name, v in speakers.items()
        }
    for file in sorted((path / FOLDER).glob(f"*{SUFFIX}")):
        voices[file.name.removesuffix(SUFFIX).lower()] = load_voice(file, codes)
    return voices


def _embedding(file: Path, name: str, entry: Any) -> np.ndarray:
    if isinstance(entry, dict):
        value = entry.get("embedding")
    else:
        value = None
    if not isinstance(value, torch.Tensor) or not is_plain(value) or value.numel() != SPEAKER:
        raise CheckpointError(
            f"{file}: speaker {shown(name)} has no embedding of {SPEAKER} numbers"
        )
    return value.float().flatten().numpy()

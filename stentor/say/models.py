"""`stentor models`: the models that stentor knows, what they need, and what this machine has."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from importlib.util import find_spec

from stentor.host.installed import pip_install
from stentor.host.machine import has_nvidia_gpu
from stentor.models.families import Family, Release, families

ROOM = 1.5
"""Memory of a model as a multiple of its weights: key-value pages, codec, captured graphs."""
BUILT_IN = Release("English, 6 voices", "word timestamps", 0.04, "Apache-2.0")


@dataclass(frozen=True)
class KnownModel:
    """A model as it is listed. name: for `--model`, "" for the built-in voice. gib: of its weights.
    here: whether this machine can run it, and whether its files are here."""

    name: str
    family: str
    speaks: str
    can: str
    gib: float
    licence: str
    here: str


def run(as_json: bool) -> int:
    """Print the known models as a table or as JSON. Returns 0."""
    models = list(known_models())
    if as_json:
        print(json.dumps([asdict(model) for model in models], indent=1))
        return 0
    rows = [("model", "speaks", "can", "weights", "licence", "on this machine")]
    rows += [
        (m.name or "(built in)", m.speaks, m.can, f"{m.gib:g} GiB", m.licence, m.here)
        for m in models
    ]
    for line in _table(rows):
        print(line)
    print("\nstentor say TEXT --model MODEL downloads a model and speaks with it.")
    return 0


def known_models() -> Iterator[KnownModel]:
    """The built-in voice, then the releases of each family."""
    yield KnownModel("", "voice", *BUILT_IN, here="in the package")
    machine = _Machine()
    for family in families():
        for id, release in family.releases.items():
            yield KnownModel(id, family.name, *release, here=machine.state(family, id, release))


class _Machine:
    """Facts about this machine that decide which models it can run."""

    def __init__(self) -> None:
        self._gpu_gib: float | None = None
        self._has_torch = find_spec("torch") is not None
        if self._has_torch and has_nvidia_gpu():
            from stentor.engine.running.device import Device, pick_device

            free = Device(pick_device("auto")).free_bytes()
            if free is not None:
                self._gpu_gib = free / 2**30

    def state(self, family: Family, id: str, release: Release) -> str:
        """Whether a release runs here, and whether it has been downloaded."""
        if not self._has_torch:
            if family.graph:
                return f"needs torch, or a folder with {family.graph}"
            return f"needs torch: {pip_install('torch')}"
        return self._speed(family, release) + _downloaded(id)

    def _speed(self, family: Family, release: Release) -> str:
        if family.on_cpu:
            return "runs on the CPU"
        if self._gpu_gib is None:
            return "needs a GPU: slow on the CPU"
        if release.gib * ROOM > self._gpu_gib:
            return f"too large for this GPU ({self._gpu_gib:.0f} GiB free)"
        return "runs on the GPU"


def _downloaded(id: str) -> str:
    if find_spec("huggingface_hub") is None:
        return ""
    from stentor.models.hub import cached_bytes

    size = cached_bytes(id)
    if not size:
        return ""
    return f", downloaded ({size / 2**30:.1f} GiB)"


def _table(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Rows as lines with columns of equal width."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
        yield "  ".join(cells).rstrip()

"""Faults of a device, planted where a test says: out of memory at any allocation, for one request, or a dead device."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from stentor.engine.engine import Engine
from stentor.engine.scheduling.sequence import Sequence
from stentor.layers.types import CodecCall, State

SITES = (
    "admit",
    "set_pages",
    "extend",
    "prefill",
    "decode",
    "codec",
    "download",
    "encode",
    "save",
    "restore",
)
"""Calls that the engine makes on the device. `save` and `restore` are of parked rows."""


class Faults:
    """Make the device of an engine fail, from now on or at its next allocations."""

    def __init__(self) -> None:
        self.armed: tuple[str, int] | None = (
            None  # the site, and how many allocations there still succeed
        )
        self.full_for: set[int] = set()  # ids of sequences for which there never is memory
        self.bad_samples = (
            0  # so many next codec calls give their first row samples that are not finite
        )
        self.dead = False
        self.fired: list[str] = []  # sites of the faults that have happened

    def plant(self, engine: Engine) -> None:
        """Ask before every call that reaches the device."""
        runner, codec = engine.runner, engine.codec
        self._wrap(runner, "admit", "admit", lambda new: [seq for seq, _, _ in new])
        self._wrap(codec, "admit", "admit", lambda new: [seq for seq, _ in new])
        self._wrap(runner, "set_pages", "set_pages", lambda sequences: sequences)
        self._wrap(runner, "extend", "extend", lambda seq, *_: [seq])
        self._wrap(runner, "prefill", "prefill", lambda group: [seq for seq, _ in group])
        self._wrap(runner, "decode", "decode", lambda sequences: sequences)
        self._wrap(codec, "_decode", "codec", lambda jobs: [job.seq for job in jobs])
        for owner in (runner, codec):
            self._wrap(owner, "save", "save", lambda seq: [seq])
            self._wrap(owner, "restore", "restore", lambda seq, _: [seq])
        self._wrap(engine.side.device, "download", "download", lambda _: [])
        self._wrap(engine.model, "encode", "encode", lambda *_: [])

        decode = engine.model.codec.decode

        def decoded(frames: Tensor, state: State, call: CodecCall) -> tuple[Tensor, State]:
            samples, new = decode(frames, state, call)
            if self.bad_samples:
                self.bad_samples -= 1
                self.fired.append("samples")
                samples = samples.clone()
                samples[0, -1] = float("nan")
            return samples, new

        engine.model.codec.decode = decoded  # type: ignore[method-assign]

    def _wrap(
        self, owner: object, name: str, site: str, named: Callable[..., Iterable[Sequence]]
    ) -> None:
        plain = getattr(owner, name)

        def call(*args: Any) -> Any:
            return self._call(site, [s.id for s in named(*args)], lambda: plain(*args))

        setattr(owner, name, call)

    def _call(self, site: str, ids: list[int], call: Callable[[], Any]) -> Any:
        if self.dead:
            raise torch.AcceleratorError("planted: the device is gone")
        if self.full_for.intersection(ids):
            self.fired.append(site)
            raise torch.OutOfMemoryError("planted: full for one request")
        if self.armed is None or self.armed[0] != site:
            return call()
        self.allocate()  # also where the call itself takes no memory on a CPU
        with _Allocations(self):
            return call()

    def allocate(self) -> None:
        """An allocation at the armed site. The one that was chosen fails."""
        if self.armed is None:
            return
        site, left = self.armed
        self.armed = (site, left - 1) if left else None
        if not left:
            self.fired.append(site)
            raise torch.OutOfMemoryError("planted: out of memory")


class _Allocations(TorchDispatchMode):
    """Tells `faults` of every operation that takes memory: neither in place nor a view."""

    def __init__(self, faults: Faults) -> None:
        super().__init__()
        self.faults = faults

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        schema = func._schema
        if not schema.is_mutable and any(r.alias_info is None for r in schema.returns):
            self.faults.allocate()
        return func(*args, **(kwargs or {}))

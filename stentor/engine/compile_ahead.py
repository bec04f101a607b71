"""Kernels of what will be captured, compiled in several threads before the first call of it.

The calls are recorded into a graph that is thrown away, so nothing runs. Operations of torch are not even recorded:
their results have shapes and no values. So no library is used, which might keep what its first call would have made.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

from stentor.kernels import launchers
from stentor.kernels.compile_only import compile_only, stamp_of
from stentor.kernels.switches import AVAILABLE

Context = Callable[[], AbstractContextManager[None]]

log = logging.getLogger("stentor.graphs")


class CompileAhead:
    """Of one device and one engine.

    A start is cold unless one of its kind has ended before, with the same cache of kernels. Then nothing is recorded.
    """

    def __init__(self, cuda: bool, current: Context, discarding: Context) -> None:
        """current: makes the device the thread's own. discarding: nothing of what is launched inside runs."""
        self._current, self._discarding = current, discarding
        self._compiles = cuda and AVAILABLE
        self._stamp: Path | None = None
        self.cold = False

    def begin(self, start: str) -> None:
        """A start begins. start: names what decides which kernels it compiles, such as the model and its sizes."""
        if self._compiles:
            launchers.make_launchers_alone()
            self._stamp = stamp_of(start)
            self.cold = not self._stamp.exists()

    def end(self) -> None:
        """It has compiled its kernels. The next of its kind will find them, where the cache can be written."""
        if self._stamp is not None:
            with suppress(OSError):
                self._stamp.parent.mkdir(parents=True, exist_ok=True)
                self._stamp.touch()

    def __call__(self, calls: Iterable[Callable[[], object]]) -> None:
        """Compile what these calls launch, in inference mode. What cannot be recorded is compiled as it runs."""
        if self.cold:
            try:
                self._compile(list(calls))
            except RuntimeError as e:
                log.warning("kernels are compiled one by one: %s", e)
                self.cold = False

    def _compile(self, calls: list[Callable[[], object]]) -> None:
        with compile_only(self._current), self._discarding(), WithoutValues():
            for call in calls:
                _record(call)


def _record(call: Callable[[], object]) -> None:
    """What is wrong with a call shows when it runs."""
    try:
        call()
    except Exception as e:
        log.debug("kernels of a call are compiled one by one: %s", e)


class WithoutValues(TorchDispatchMode):
    """Inside, operations of torch give results of their shapes and launch nothing. Views are views."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given, schema = kwargs or {}, func._schema
        if schema.is_mutable:
            return given.get("out", args[0]) if schema.returns else None
        if any(r.alias_info is not None for r in schema.returns) or func.overloadpacket.__name__.startswith("empty"):
            return func(*args, **given)
        used = [t.device for t in tree_leaves((args, given)) if isinstance(t, Tensor)]
        device = given.get("device") or next((d for d in used if d.type != "cpu"), torch.device("cpu"))
        args, given = tree_map_only(Tensor, lambda t: _like(t, "meta"), (args, given))
        found = func(*args, **(given | {"device": "meta"} if "device" in given else given))
        return tree_map_only(Tensor, lambda t: _like(t, device), found)


def _like(t: Tensor, device: torch.device | str) -> Tensor:
    return torch.empty_strided(t.size(), t.stride(), dtype=t.dtype, device=device)

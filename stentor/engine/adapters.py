"""LoRA adapters by name, loaded and unloaded while requests run.

Weights are in a free slot before their name is known, so loading touches no running request. A
request holds its `Adapter` from its check to its end, with all its pieces. The slot of an unloaded
adapter is free when nobody holds it.
"""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from stentor.arguments import shown
from stentor.config import path_of
from stentor.errors import InvalidRequest
from stentor.models.info import Adapter

if TYPE_CHECKING:
    from stentor.models.lora import AdapterSlots, LoraWeights

Write: TypeAlias = "Callable[[int, LoraWeights], None]"
"""Copies weights into a slot, whose number comes first, and blocks until they are there."""


class Adapters:
    """The adapters of one model. Thread-safe."""

    def __init__(self, slots: AdapterSlots | None = None, write: Write | None = None) -> None:
        """slots: None in a model whose linear layers take no adapters."""
        self.slots = slots
        self.count = 0 if slots is None else slots.count
        self._write = write
        self._lock = threading.Lock()  # guards changes of `_by_name`
        self._by_name: dict[str, Adapter] = {}
        self._made: weakref.WeakSet[Adapter] = weakref.WeakSet()
        # numbers. What is collected comes back at any time, in any thread
        self._free = deque(range(1, self.count + 1))

    @property
    def options(self) -> dict[str, Any]:
        """Load options that make the same slots."""
        return {} if self.slots is None else self.slots.options

    @property
    def loaded(self) -> dict[str, Adapter]:
        """By name, in the order in which they were loaded."""
        with self._lock:
            return dict(self._by_name)

    def named(self, name: object) -> Adapter:
        """The adapter of a name. InvalidRequest if there is none."""
        if not isinstance(name, str):
            raise InvalidRequest(
                "lora", f"must be the name of a loaded adapter, got {type(name).__name__}"
            )
        adapter = self._by_name.get(name)
        if adapter is None:
            names = ", ".join(self._by_name) or "none"
            raise InvalidRequest("lora", f"{name[:80]!r} is not loaded; loaded: {names}")
        return adapter

    def current(self, adapter: Adapter | None) -> Adapter | None:
        """The adapter itself. One of another model, such as this one before it was unloaded: ours
        of that name."""
        if adapter is None or adapter in self._made:
            return adapter
        return self.named(adapter.name)

    def load(self, name: str, path: str | Path) -> None:
        """Load a file or folder of LoRA weights under a name. Waits for the copy to the
        device.

        InvalidRequest: the name is taken or empty, the path is none, or no slot is free.
        CheckpointError names the tensor that is wrong.
        """
        if self.slots is None or self._write is None or not self.count:
            raise InvalidRequest(
                "lora", "this model was loaded without slots for adapters: give loras or max_loras"
            )
        if not isinstance(name, str) or not name.strip():
            raise InvalidRequest(
                "lora", f"an adapter's name must be a string that is not empty, got {shown(name)}"
            )
        weights = self.slots.read(path_of("path", path))
        self.slots.check(weights)
        identity = weights.identity()
        with self._lock:
            if name in self._by_name:
                raise InvalidRequest("lora", f"{name!r} is loaded already")
            number = self._take()
            try:
                self._write(number, weights)
            except BaseException:
                self._free.append(number)
                raise
            adapter = Adapter(name, number, identity, str(path))
            weakref.finalize(adapter, self._free.append, number).atexit = False
            self._made.add(adapter)
            self._by_name[name] = adapter

    def unload(self, name: str) -> None:
        """Refuse a name from now on. Requests that have the adapter keep it. InvalidRequest if it
        is not loaded."""
        with self._lock:
            self.named(name)
            del self._by_name[name]

    def _take(self) -> int:
        try:
            return self._free.popleft()
        except IndexError:
            free = self.count - len(self._by_name)
            if free:
                more = f", {free} of them by requests that run with unloaded adapters"
            else:
                more = ""
            raise InvalidRequest("max_loras", f"all {self.count} slots are taken{more}") from None

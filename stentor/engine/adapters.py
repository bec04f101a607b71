"""LoRA adapters by name, loaded and unloaded while requests run.

Weights are in a free slot before their name is known, so loading touches no running request. A
request holds its `Adapter` from its check to its end, with all its pieces. The slot of an unloaded
adapter is free when nobody holds it.
"""

from __future__ import annotations

import threading
import weakref
from collections import deque
from pathlib import Path

import torch

from stentor.arguments import shown
from stentor.config import path_of
from stentor.engine.running.device import Device
from stentor.errors import InvalidRequest
from stentor.models.info import Adapter
from stentor.models.lora import AdapterSlots


class Adapters:
    """The adapters of one model. Thread-safe."""

    def __init__(self, slots: AdapterSlots, device: Device) -> None:
        self.slots = slots
        self.device = device
        self._stream = device.stream(0)
        self._lock = threading.Lock()  # guards changes of `_by_name`
        self._by_name: dict[str, Adapter] = {}
        self._made: weakref.WeakSet[Adapter] = weakref.WeakSet()
        # numbers. What is collected comes back at any time, in any thread
        self._free = deque(range(1, slots.count + 1))

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
        found = self._by_name.get(name)
        if found is None:
            known = ", ".join(self._by_name) or "none"
            raise InvalidRequest("lora", f"{name[:80]!r} is not loaded; loaded: {known}")
        return found

    def current(self, adapter: Adapter | None) -> Adapter | None:
        """The adapter itself. One of another model, such as this one before it was unloaded: ours
        of that name."""
        if adapter is None or adapter in self._made:
            return adapter
        return self.named(adapter.name)

    def load(self, name: str, path: str | Path) -> None:
        """Read a file or folder of LoRA weights and give them a name. Waits for the copy to the
        device.

        InvalidRequest: the name is taken or empty, the path is none, or no slot is free.
        CheckpointError names the tensor that is wrong.
        """
        if not self.slots.count:
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
                with self.device.current(), self._stream.active(), torch.inference_mode():
                    self.slots.write(number, weights)
                    written = self.device.event()
                    written.record()
                    written.wait_host()
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
            kept = self.slots.count - len(self._by_name)
            if kept:
                more = f", {kept} of them by requests that run with unloaded adapters"
            else:
                more = ""
            raise InvalidRequest(
                "max_loras", f"all {self.slots.count} slots are taken{more}"
            ) from None

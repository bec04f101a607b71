"""sounddevice without a device."""

from __future__ import annotations

import numpy as np


class FakeDevice:
    """The part of sounddevice that is used. `written` is what was played."""

    PortAudioError = OSError

    def __init__(self, device: bool = True, own_rate: int | None = None) -> None:
        self.device, self.own_rate = device, own_rate
        self.written: list[np.ndarray] = []
        self.rate = 0

    def query_devices(self, kind: str) -> dict[str, float]:
        if not self.device:
            raise self.PortAudioError("no default output device")
        return {"default_samplerate": float(self.own_rate or 600)}

    def check_output_settings(self, samplerate: int, channels: int, dtype: str) -> None:
        if self.own_rate not in (None, samplerate):
            raise self.PortAudioError("rate")

    def OutputStream(self, samplerate: int, channels: int, dtype: str) -> FakeDevice:
        self.rate = samplerate
        return self

    def start(self) -> None: ...

    def stop(self) -> None: ...

    def close(self) -> None: ...

    def write(self, block: np.ndarray) -> None:
        self.written.append(block.copy())

"""The loudspeaker. sounddevice (PortAudio) plays, in a thread, while more audio is made."""

from __future__ import annotations

import importlib
import queue
import threading
from typing import Any

import numpy as np

from stentor.errors import InvalidRequest
from stentor.host.installed import pip_install
from stentor.output.effects import EffectChain
from stentor.output.watermark import Make

BLOCKS = 64  # chunks of audio that wait to be played


def library() -> Any:
    """The module sounddevice, with a device to play on. Raises InvalidRequest with what is missing
    and how to get it."""
    try:
        sounddevice = importlib.import_module("sounddevice")
    except ImportError:
        raise InvalidRequest(
            "play", f"needs the package sounddevice: {pip_install('play')}"
        ) from None
    except OSError as e:
        raise InvalidRequest(
            "play", f"needs PortAudio (Debian, Ubuntu: apt install libportaudio2): {e}"
        ) from None
    try:
        sounddevice.query_devices(kind="output")
    except (sounddevice.PortAudioError, ValueError) as e:
        raise InvalidRequest("play", f"this machine has no device to play on: {e}") from None
    return sounddevice


class Player:
    """Plays float32 samples at the model's rate. rate: Hz. `feed` waits where much is unplayed."""

    def __init__(
        self, sounddevice: Any, rate: int, speed: float, watermark: Make | None = None
    ) -> None:
        self._error: BaseException | None = None
        self._failed = sounddevice.PortAudioError
        target = self._device_rate(sounddevice, rate)
        self._chain = EffectChain(rate, target, speed, watermark)
        self._blocks: queue.Queue[np.ndarray | None] = queue.Queue(BLOCKS)
        self._stream = sounddevice.OutputStream(samplerate=target, channels=1, dtype="float32")
        self._stream.start()
        self._thread = threading.Thread(target=self._play, name="stentor-player", daemon=True)
        self._thread.start()

    @staticmethod
    def _device_rate(sounddevice: Any, rate: int) -> int:
        """The model's rate where the device takes it, else the device's own."""
        try:
            sounddevice.check_output_settings(samplerate=rate, channels=1, dtype="float32")
        except sounddevice.PortAudioError:
            return int(sounddevice.query_devices(kind="output")["default_samplerate"])
        return rate

    def feed(self, samples: np.ndarray) -> None:
        self._check()
        self._blocks.put(self._chain.feed(samples))

    def finish(self) -> None:
        """Wait until all has been played."""
        self._blocks.put(self._chain.finish())
        self._blocks.put(None)
        self._thread.join()
        self._stream.close()
        self._check()

    def _check(self) -> None:
        if self._error is not None:
            raise InvalidRequest("play", f"the device failed: {self._error}") from self._error

    def _play(self) -> None:
        """The thread: write blocks until the last. After a failure they are dropped, so that `feed`
        never waits."""
        while (block := self._blocks.get()) is not None:
            if self._error is None and len(block):
                try:
                    self._stream.write(np.ascontiguousarray(block[:, None], np.float32))
                except self._failed as e:
                    self._error = e
        if self._error is None:
            self._stream.stop()  # waits for what the device still has

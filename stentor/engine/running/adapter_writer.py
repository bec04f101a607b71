"""Weights of LoRA adapters on their way to the device."""

from __future__ import annotations

import torch

from stentor.engine.running.device import Device
from stentor.models.lora import AdapterSlots, LoraWeights


class AdapterWriter:
    """Copies adapters into the slots of a model, on a stream of its own."""

    def __init__(self, slots: AdapterSlots, device: Device) -> None:
        self._slots = slots
        self._device = device
        self._stream = device.stream(0)

    def __call__(self, number: int, weights: LoraWeights) -> None:
        """Write adapter `number`, which no row uses, and wait for the copy."""
        with self._device.current(), self._stream.active(), torch.inference_mode():
            self._slots.write(number, weights)
            written = self._device.event()
            written.record()
            written.wait_host()

"""Whether a model can be served so that a request gives the same bytes alone and beside others."""

from __future__ import annotations

from stentor import kernels
from stentor.engine.device import Device
from stentor.errors import InvalidRequest
from stentor.models.base import SpeechModel


def check_deterministic(model: SpeechModel, device: Device) -> None:
    """InvalidRequest says what is missing."""
    spec = model.spec
    if not kernels.batch_invariance_supported(device.torch, spec.kv.dtype):
        raise InvalidRequest(
            "deterministic",
            "needs a CUDA GPU, Triton, a dtype of at most 32 bits, and all kernels on; on a CPU, codes in float32 do "
            "not depend on other requests",
        )
    if not spec.batch_invariant:
        raise InvalidRequest("deterministic", f"is not available for {spec.family}")
    wide = [c.dtype for c in model.codec.columns.values() if c.dtype.is_floating_point and c.dtype.itemsize > 2]
    if wide:
        raise InvalidRequest("deterministic", f"needs a codec in 16 bits, got {str(wide[0]).removeprefix('torch.')}")

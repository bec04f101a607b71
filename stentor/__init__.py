"""stentor: autoregressive text-to-speech at the speed of the hardware.

with stentor.TTS() as tts:
    tts.generate("Hello there.").save("hello.wav")
"""

from importlib import import_module as _import_module
from typing import TYPE_CHECKING as _TYPE_CHECKING
from typing import Any as _Any

from stentor.errors import (
    BatchError,
    CheckpointError,
    EngineError,
    InvalidRequest,
    ModelNotFound,
    Overloaded,
    StentorError,
)
from stentor.version import __version__

if _TYPE_CHECKING:
    from stentor.api import TTS, Speech
    from stentor.audio import Reference

__all__ = [
    "TTS",
    "BatchError",
    "CheckpointError",
    "EngineError",
    "InvalidRequest",
    "ModelNotFound",
    "Overloaded",
    "Reference",
    "Speech",
    "StentorError",
    "__version__",
]

_LATER = {"TTS": "stentor.api", "Speech": "stentor.api", "Reference": "stentor.audio"}


def __getattr__(name: str) -> _Any:
    """Names whose modules import torch or audio libraries are imported at their first use, so that
    the command line answers `--help` and a wrong flag at once."""
    if name not in _LATER:
        raise AttributeError(f"module 'stentor' has no attribute {name!r}")
    return getattr(_import_module(_LATER[name]), name)


def __dir__() -> list[str]:
    """The public names."""
    return __all__

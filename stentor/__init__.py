"""stentor: autoregressive text-to-speech at the speed of the hardware.

with stentor.TTS() as tts:
    tts.generate("Hello there.").save("hello.wav")
"""

from stentor.api import TTS, Speech
from stentor.audio import Reference
from stentor.errors import CheckpointError, EngineError, InvalidRequest, Overloaded, StentorError

__version__ = "0.1.0"

__all__ = [
    "TTS",
    "CheckpointError",
    "EngineError",
    "InvalidRequest",
    "Overloaded",
    "Reference",
    "Speech",
    "StentorError",
    "__version__",
]

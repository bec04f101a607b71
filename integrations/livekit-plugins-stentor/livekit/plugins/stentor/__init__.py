"""Text to speech by a stentor server, for LiveKit Agents."""

from livekit.agents import Plugin

from .tts import TTS, SynthesizeStream, logger

__version__ = "0.1.0"
__all__ = ["TTS", "SynthesizeStream", "__version__"]


class StentorPlugin(Plugin):
    """Tells LiveKit that the package is there."""

    def __init__(self) -> None:
        super().__init__(__name__, __version__, __package__ or __name__, logger)


Plugin.register_plugin(StentorPlugin())

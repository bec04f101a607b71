"""Text to speech by a stentor server, for Pipecat."""

from .tts import StentorTTSService, StentorTTSSettings

__all__ = ["StentorTTSService", "StentorTTSSettings"]

"""stentor: autoregressive text-to-speech at the speed of the hardware."""

__version__ = "0.1.0"

"""Samples to bytes: containers, effects and playback estimates."""

"""Samples on their way out: effects (speed, sample rate) and containers."""

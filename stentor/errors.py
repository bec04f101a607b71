"""The errors that stentor raises on purpose. `InvalidRequest` is a ValueError too."""

from __future__ import annotations


class StentorError(Exception):
    """Base of all errors raised by stentor."""


class InvalidRequest(StentorError, ValueError):
    """The request is wrong. `param` names the field and `message` says what is allowed."""

    def __init__(self, param: str, message: str) -> None:
        super().__init__(f"{param}: {message}")
        self.param = param
        self.message = message


class CheckpointError(StentorError):
    """A model directory is missing, incomplete, corrupt or of an unknown kind."""


class EngineError(StentorError):
    """An accepted request failed while it was being served, or the engine has stopped."""


class Overloaded(EngineError):
    """The engine's queue is full. Try again later."""

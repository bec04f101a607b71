"""The four ways stentor says no. Everything public that it raises on purpose is one of these (or a plain ValueError
for a wrong type at the API, which `InvalidRequest` is too)."""

from __future__ import annotations


class StentorError(Exception):
    """Base of all errors raised by stentor."""


class InvalidRequest(StentorError, ValueError):
    """The request cannot be served as it is. `param` names the field at fault."""

    def __init__(self, param: str, message: str) -> None:
        super().__init__(f"{param}: {message}")
        self.param = param
        self.message = message


class CheckpointError(StentorError):
    """A model directory is missing, incomplete, corrupt or of an unknown kind."""


class EngineError(StentorError):
    """A request that was accepted failed while it was being served, or the engine has stopped."""


class Overloaded(EngineError):
    """The engine's queue is full; try again later."""

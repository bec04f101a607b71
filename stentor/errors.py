"""The errors that stentor raises on purpose. `InvalidRequest` is a ValueError too."""

from __future__ import annotations

from collections.abc import Sequence


class StentorError(Exception):
    """Base of all errors raised by stentor."""


class InvalidRequest(StentorError, ValueError):
    """The request is wrong. `param` names the field and `message` what is allowed."""

    def __init__(self, param: str, message: str) -> None:
        super().__init__(f"{param}: {message}")
        self.param = param
        self.message = message

    def __reduce__(self) -> tuple[object, ...]:
        # to another process: `args` has the words alone
        return type(self), (self.param, self.message)


class CheckpointError(StentorError):
    """A model directory is missing, incomplete, corrupt or of an unknown kind."""


class ModelNotFound(CheckpointError):
    """No model has this name: no such directory, Hub id or dummy."""


class EngineError(StentorError):
    """An accepted request failed while it was being served, or the engine has stopped."""


class Overloaded(EngineError):
    """The engine's queue is full. Try again later."""


class WatermarkError(EngineError):
    """The watermark of an accepted request failed, or did not do what it declares: the `reason`."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"the watermark failed: {reason}")
        self.reason = reason

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.reason,)


class BatchError(EngineError):
    """Some texts of a list failed. `results` has the Speech of each text, or its error, in their
    order."""

    def __init__(self, results: Sequence[object]) -> None:
        failed = [r for r in results if isinstance(r, StentorError)]
        super().__init__(
            f"{len(failed)} of {len(results)} texts failed, the first with: {failed[0]}"
        )
        self.results = list(results)

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.results,)


def request_failed(cause: BaseException) -> EngineError:
    """The error of an accepted request which failed for a reason that is not the engine's own."""
    error = EngineError(f"the request failed while it was being served: {cause}")
    error.__cause__ = cause
    return error


def too_long(taken: int, most: int, text: str | None = None, audio: int = 0) -> InvalidRequest:
    """The error for a prompt that takes `taken` tokens where `most` fit. `audio` of them are
    reference audio. `text` is what was to be spoken, if it is known."""
    room = max(0, most - audio)
    written = taken - audio
    if text is None:
        fits = f"about {100 * room // written} % of it fits"
    else:
        fits = f"it has {len(text)} characters, and about {len(text) * room // written} fit"
    advice = "send it in shorter parts, or shorten the reference audio if there is any"
    return InvalidRequest("text", f"is too long for one request: {fits}; {advice}")

"""Live requests of the Python API whose text still ends inside its first word."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from stentor.engine.engine import Engine
from stentor.engine.scheduling.sequence import Place
from stentor.engine.stream import AudioStream, Chunk, checked_text
from stentor.errors import EngineError, InvalidRequest
from stentor.models.base import Prompt
from stentor.models.byte_bpe import settled
from stentor.models.info import SpeechRequest


def opens(request: SpeechRequest) -> bool:
    """Whether the next letters could change the tokens of all text that a live request has."""
    return request.live and not settled(request.text)


class OpeningStream(AudioStream):
    """The stream of a live request that is queued once its first word is complete.

    A prompt ends with the first token of the text. Queued earlier, the speech would depend on where
    the text was split. make_prompt: makes the request's prompt.
    """

    def __init__(
        self,
        engine: Engine,
        request: SpeechRequest,
        make_prompt: Callable[[SpeechRequest], Prompt],
        streaming: bool,
    ) -> None:
        super().__init__(request.seed, engine.outbox(), None, engine.inbox.put)
        self._engine = engine
        self._request = request
        self._make_prompt = make_prompt
        self._streaming = streaming
        self._over = False  # cancelled, or the engine has stopped, before it was queued

    def append(self, text: str, last: bool = False) -> None:
        """Add text as `AudioStream.append` does, and queue the request once its first word is
        complete. Overloaded if the queue is full then."""
        if self._live is not None:
            super().append(text, last)
            return
        if self._over:
            raise InvalidRequest("text", "nothing may follow: the request has ended")
        self._request = replace(self._request, text=self._request.text + checked_text(text, last))
        if not last and opens(self._request):
            return
        prompt = self._make_prompt(self._request)
        self._engine.queue(prompt, self.seed, self._streaming, Place.NEW, self.outbox)
        self._live = prompt.live
        if last:
            super().append("", True)

    def cancel(self) -> None:
        """Stop the request, queued or not."""
        if self._live is not None:
            super().cancel()
        else:
            self._end(self._engine.cancelled())

    def stop(self) -> None:
        """End it with an error if it is not queued: its engine stops."""
        if self._live is None:
            self._end(EngineError("the engine has stopped"))

    def _end(self, event: Chunk | EngineError) -> None:
        if not self._over:
            self._over = True
            self.outbox.put(event)
            self._engine.notify()

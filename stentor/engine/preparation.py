"""Prompts in the making: from a checked request, by way of the voices that it needs."""

from __future__ import annotations

import threading
from typing import Any

from stentor.engine.once import Claim
from stentor.engine.side import Encoder, Primer
from stentor.models.base import HostModel, Prompt
from stentor.models.info import SpeechRequest


class Preparation:
    """A prompt in the making, for callers that must not wait in a thread. Call `cancel` when it is
    done or dropped.

    It holds a claim on each voice that the prompt needs, then makes the prompt, and claims the
    codec's state at last.
    """

    def __init__(
        self, model: HostModel, encoder: Encoder, primer: Primer, request: SpeechRequest
    ) -> None:
        """Raises InvalidRequest for references that the model does not take."""
        self._model = model
        self._primer = primer
        self._request = request
        self._prompt: Prompt | None = None
        self._lock = threading.Lock()  # guards what follows: `cancel` is called beside `advance`
        self._left = False
        self._claims: list[Claim[Any]] = [
            encoder.claim(source) for source in model.references(request)
        ]

    def advance(self) -> Prompt | Claim[Any]:
        """The prompt, or else what to wait for before the next call. Raises what the request's
        `check` raises."""
        self._request.check()
        for claim in self._claims:
            if not claim.done:
                return claim
        if self._prompt is None:
            self._prompt = self._model.prompt(
                self._request, [claim.result() for claim in self._claims]
            )
            self._prompt.lora = self._request.lora
            if self._prompt.primes_codec:
                self._claim(self._primer.claim(self._prompt))
                return self.advance()
        elif self._prompt.primes_codec:
            self._prompt.codec_state = self._claims[-1].result()
        return self._prompt

    def wait(self) -> Prompt:
        """The prompt, after all that it needs."""
        while not isinstance(step := self.advance(), Prompt):
            step.result()
        return step

    def cancel(self) -> None:
        """Drop work that only this request needs and that has not begun. For any thread, also
        beside `advance`."""
        with self._lock:
            self._left = True
            for claim in self._claims:
                claim.cancel()

    def _claim(self, claim: Claim[Any]) -> None:
        """Hold one more claim. One that comes after `cancel` is cancelled at once."""
        with self._lock:
            self._claims.append(claim)
            if self._left:
                claim.cancel()

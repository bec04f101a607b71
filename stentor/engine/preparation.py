"""From a request to its prompt, with what has to be made first: features of its audio, the codec's state after them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar

from stentor.audio import Recording
from stentor.engine.codec_primer import CodecPrimer
from stentor.engine.once import Claim
from stentor.engine.reference_encoder import Features, ReferenceEncoder
from stentor.models.base import Prompt, SpeechModel
from stentor.models.info import SpeechRequest
from stentor.text.front_end import Check

T = TypeVar("T")


class _NotEncoded(Exception):
    """The features of some audio are not made yet. `claim` waits for them. role: what the audio is."""

    def __init__(self, claim: Claim[Features], role: str) -> None:
        super().__init__("not encoded yet")
        self.claim, self.role = claim, role


class Preparation:
    """A prompt in the making, for callers that must not wait in a thread. Call `leave` when it is done or given up.

    It holds a claim on all that the prompt needs, so that nothing is lost before the last of it is made.
    """

    def __init__(
        self,
        model: SpeechModel,
        encoder: ReferenceEncoder,
        primer: CodecPrimer,
        request: SpeechRequest,
    ) -> None:
        self.request = request
        self._model, self._encoder, self._primer = model, encoder, primer
        self._lock = threading.Lock()  # guards the claims: `leave` is called beside `advance`
        self._claims: dict[str, Claim[Any]] = {}
        self._left = False
        self._waits = False  # for features that are not there yet
        self._prompt: Prompt | None = None

    def advance(self, check: Check) -> Prompt | Claim[Any]:
        """The prompt, or else what to wait for before the next call. Raises what `check` raises."""
        check()
        try:
            if self._prompt is None:
                self._prompt = self._model.prompt(replace(self.request, check=check), self._features)
                self._prompt.lora = self.request.lora
        except _NotEncoded as e:
            for audio in self.request.more_references:  # which the family asks for next, in the same role
                self._encoding(audio.recording, e.role)
            return e.claim
        prompt = self._prompt
        if prompt.primes_codec:
            state = self._claim("codec", lambda: self._primer.claim(prompt))
            if not state.done:
                return state
            prompt.codec_state = state.result()
        return prompt

    def wait(self) -> Prompt:
        """The prompt, after all that it needs."""
        self._waits = True
        while not isinstance(found := self.advance(self.request.check), Prompt):
            found.result()
        return found

    def leave(self) -> None:
        """Drop work that only this request needs and that has not begun. For any thread, also beside `advance`."""
        with self._lock:
            self._left = True
            for claim in self._claims.values():
                claim.leave()

    def _features(self, audio: Recording, role: str) -> Features:
        """A models.base.Encode. _NotEncoded unless this may wait."""
        claim = self._encoding(audio, role)
        if not claim.done and not self._waits:
            raise _NotEncoded(claim, role)
        return claim.result()

    def _encoding(self, audio: Recording, role: str) -> Claim[Features]:
        return self._claim(role + audio.digest, lambda: self._encoder.claim(audio, role))

    def _claim(self, key: str, make: Callable[[], Claim[T]]) -> Claim[T]:
        """This request's claim on a result. One that comes after `leave` is left at once."""
        if key not in self._claims:
            claim = make()
            with self._lock:
                self._claims[key] = claim
                if self._left:
                    claim.leave()
        return self._claims[key]

"""From a request to its prompt, with what has to be made first: features of its audio, the codec's state after them."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from torch import Tensor

from stentor.engine.codec_primer import CodecPrimer
from stentor.engine.once import Claim, Claims
from stentor.engine.reference_encoder import NotEncoded, ReferenceEncoder, RequestFeatures
from stentor.models.base import Prompt, SpeechModel, SpeechRequest
from stentor.text.front_end import Check

PAUSE_SECONDS = 0.05
"""Most launches of a prefill take less than a tenth of it."""


class Upcoming:
    """Counts the requests that are about to be submitted, and has them wait for a prefill's launch. For any thread.

    Each operation of torch lets go of the GIL, and the engine's thread would then wait for each thread that makes a
    prompt.
    """

    def __init__(self, pauses: bool) -> None:
        """pauses: whether anybody waits for a launch. A CPU would compute all of it meanwhile."""
        self._pauses = pauses
        self._lock = threading.Lock()
        self._tickets: set[Ticket] = set()
        self._submitted = 0  # since start
        self._awaited = math.inf  # the engine's thread waits until they are so many. inf: it waits for none
        self._enough = threading.Event()  # they are, or nothing is counted
        self._free = threading.Event()
        self._free.set()

    def __len__(self) -> int:
        return len(self._tickets)

    def ticket(self) -> Ticket:
        """Of one request, which counts from now on."""
        ticket = Ticket(self)
        ticket.count(True)
        return ticket

    @contextmanager
    def paused(self, launching: bool) -> Iterator[None]:
        """Inside, no prompt begins to be made, if the engine's thread is `launching` a prefill. After it, all go on."""
        if launching and self._pauses:
            self._free.clear()
        try:
            yield
        finally:
            self._free.set()

    def wait(self) -> None:
        """Wait while it is paused, for `PAUSE_SECONDS` at most: an event loop waits here too, and a device may hang."""
        self._free.wait(PAUSE_SECONDS)

    def submitted(self) -> None:
        """One more request has been submitted. Where the engine's thread waits for just this one, this waits for its
        launch, as `wait` does."""
        with self._lock:
            self._submitted += 1
            completes = self._submitted >= self._awaited
            if completes and self._pauses:
                self._free.clear()
            self._look()
        if completes:
            self.wait()

    def wait_until(self, submitted: int, seconds: float) -> None:
        """Wait until so many have been submitted since start, or none is about to be, at most so long. Not each of them
        takes the GIL from those who make the others."""
        with self._lock:
            self._awaited = submitted
            self._enough.clear()
            self._look()
        self._enough.wait(seconds)
        with self._lock:
            self._awaited = math.inf

    def count(self, ticket: Ticket, counts: bool) -> None:
        """A ticket that is not over counts from now on, or one counts no longer."""
        with self._lock:
            if counts and not ticket.over:
                self._tickets.add(ticket)
            else:
                self._tickets.discard(ticket)
                self._look()

    def _look(self) -> None:
        if self._submitted >= self._awaited or not self._tickets:
            self._enough.set()


class Ticket:
    """Whether a request counts as `Upcoming`."""

    def __init__(self, upcoming: Upcoming) -> None:
        self._upcoming, self.over = upcoming, False

    def count(self, counts: bool) -> None:
        """It is soon submitted, or it waits for something that takes long."""
        self._upcoming.count(self, counts)

    def end(self) -> None:
        """It is submitted or given up, and never counts again."""
        self.over = True
        self.count(False)


class Preparation:
    """A prompt in the making, for callers that must not wait in a thread. Call `leave` when it is done or given up.

    Until then its request is upcoming, except while it waits for an encoding.
    """

    def __init__(
        self,
        model: SpeechModel,
        encoder: ReferenceEncoder,
        primer: CodecPrimer,
        request: SpeechRequest,
        upcoming: Upcoming,
    ) -> None:
        self.request = request
        self._model, self._primer, self._upcoming = model, primer, upcoming
        self._ticket = upcoming.ticket()
        self._claims = Claims()
        self._features = RequestFeatures(encoder, self._claims)
        self._prompt: Prompt | None = None
        self._state: Claim[Tensor] | None = None

    def advance(self, check: Check) -> Prompt | Claim[Any]:
        """The prompt, or else what to wait for before the next call. Raises what `check` raises.

        It waits for no encoding, and at most for the launch of a prefill.
        """
        check()
        self._ticket.count(True)
        self._upcoming.wait()
        found = self._advance(check)
        if isinstance(found, Claim):
            self._ticket.count(False)
        return found

    def _advance(self, check: Check) -> Prompt | Claim[Any]:
        try:
            if self._prompt is None:
                self._prompt = self._model.prompt(replace(self.request, check=check), self._features)
                self._prompt.lora = self.request.lora
        except NotEncoded as e:
            for audio in self.request.more_references:  # which the family asks for next, in the same role
                self._features.begin(audio.recording, e.role)
            return e.claim
        return self._primed(self._prompt)

    def wait(self) -> Prompt:
        """The prompt, after all that it needs."""
        self._features.waits = True
        while not isinstance(found := self.advance(self.request.check), Prompt):
            found.result()
        return found

    def leave(self) -> None:
        """What only this request needs, and what has not begun, is not made. For any thread, also beside `advance`."""
        self._ticket.end()
        self._claims.leave()

    def _primed(self, prompt: Prompt) -> Prompt | Claim[Tensor]:
        if not prompt.primes_codec:
            return prompt
        self._state = self._state or self._claims.add(self._primer.claim(prompt))
        if not self._state.done:
            return self._state
        prompt.codec_state = self._state.result()
        return prompt

"""Requests that are about to be submitted: those that wait for a prefill wait a moment for them."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any, cast

import pytest

from stentor import TTS
from stentor.config import Policy
from stentor.engine.once import Claim
from stentor.engine.preparation import Preparation, Upcoming
from stentor.engine.reference_encoder import NotEncoded
from stentor.models.base import SpeechRequest
from stentor.text.front_end import proceed


def toy() -> TTS:
    """No test waits for the end of its window."""
    return TTS("dummy:toy", memory_gb=0.01, max_num_seqs=4, policy=Policy(batching_window=3600.0))


def test_a_request_is_prefilled_with_one_whose_prompt_is_being_made() -> None:
    with toy() as tts:
        soon = tts.prepare(tts.request("later", seed=1, max_frames=3))
        first = tts.submit(tts.request("first", seed=2, max_frames=3))
        prompt = soon.advance(proceed)
        assert not isinstance(prompt, Claim)
        second = tts.engine.submit(prompt, 1, True)
        soon.leave()
        assert [sum(len(c.frames) for c in stream) for stream in (first, second)] == [3, 3]
        assert tts.engine.stats.prefills == 1


def test_nobody_waits_for_a_request_that_was_given_up() -> None:
    with toy() as tts:
        given_up = tts.prepare(tts.request("never", seed=1))
        stream = tts.submit(tts.request("first", seed=2, max_frames=3))
        heard: list[int] = []
        reader = threading.Thread(target=lambda: heard.extend(len(c.frames) for c in stream))
        reader.start()
        given_up.leave()
        reader.join()
        assert sum(heard) == 3


def test_a_request_alone_waits_for_nobody() -> None:
    with toy() as tts:
        assert len(tts.generate("alone", max_frames=3).frames) == 3


def test_a_request_that_waits_for_an_encoding_is_not_upcoming() -> None:
    upcoming, claim = Upcoming(), Claim[Any](Future(), lambda: None)

    def prompt(asked: SpeechRequest, features: object) -> None:
        raise NotEncoded(claim, "reference")

    model = cast(Any, SimpleNamespace(prompt=prompt))
    preparation = Preparation(model, cast(Any, None), cast(Any, None), SpeechRequest("text"), upcoming)
    assert upcoming
    assert preparation.advance(proceed) is claim
    assert not upcoming


def test_a_request_that_was_left_never_counts_again() -> None:
    """A thread may still be making the prompt when the server gives the request up."""
    upcoming = Upcoming()
    ticket, other = upcoming.ticket(), upcoming.ticket()
    ticket.end()
    ticket.count(True)
    other.count(False)
    assert not upcoming
    other.count(True)
    assert upcoming


@pytest.mark.parametrize("times", [1, 2])
def test_a_ticket_ends_once_or_twice(times: int) -> None:
    upcoming = Upcoming()
    ticket = upcoming.ticket()
    for _ in range(times):
        ticket.end()
    assert not upcoming

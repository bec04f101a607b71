"""Requests that are about to be submitted: those that wait for a prefill wait a moment for them."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any, cast

import pytest

from stentor import TTS
from stentor.config import Policy
from stentor.engine import preparation as preparations
from stentor.engine.inflight import InFlightStep
from stentor.engine.once import Claim
from stentor.engine.preparation import Preparation, Upcoming
from stentor.engine.reference_encoder import NotEncoded
from stentor.engine.step_plan import StepPlan
from stentor.models.base import SpeechRequest
from stentor.text.front_end import proceed
from tests.helpers.patience import STUCK_S


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


def test_the_engine_waits_until_all_are_submitted_or_given_up() -> None:
    upcoming, ended = Upcoming(pauses=True), threading.Event()
    first, second = upcoming.ticket(), upcoming.ticket()

    def wait() -> None:
        upcoming.wait_until(3, STUCK_S)
        ended.set()

    waiting = threading.Thread(target=wait)
    waiting.start()
    first.end()
    assert not ended.is_set()
    second.count(False)  # it waits for an encoding
    waiting.join()
    second.count(True)
    upcoming.wait_until(3, 0.001)  # and not for ever
    assert upcoming


def test_the_engine_waits_until_enough_are_submitted() -> None:
    upcoming, ended = Upcoming(pauses=False), threading.Event()
    ticket = upcoming.ticket()  # another request follows
    upcoming.submitted()

    def wait() -> None:
        upcoming.wait_until(2, STUCK_S)
        ended.set()

    waiting = threading.Thread(target=wait)
    waiting.start()
    assert not ended.wait(0.02)
    upcoming.submitted()
    waiting.join()
    assert ended.is_set()
    ticket.end()


@pytest.mark.parametrize("pauses", [True, False])
def test_who_submits_the_last_awaited_request_waits_for_its_launch(
    pauses: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    upcoming, submitted = Upcoming(pauses), threading.Event()
    upcoming.ticket()
    monkeypatch.setattr(preparations, "PAUSE_SECONDS", STUCK_S)

    def submit() -> None:
        upcoming.submitted()
        submitted.set()

    caller = threading.Thread(target=submit)
    engine = threading.Thread(target=lambda: upcoming.wait_until(1, STUCK_S))
    engine.start()
    while upcoming._awaited == math.inf:
        time.sleep(0.001)
    caller.start()
    engine.join()
    assert submitted.wait(0.05) != pauses
    with upcoming.paused(True):  # the engine launches it
        assert submitted.is_set() != pauses
    caller.join()
    assert submitted.is_set()


def test_a_request_alone_waits_for_nobody() -> None:
    with toy() as tts:
        assert len(tts.generate("alone", max_frames=3).frames) == 3


def test_a_request_that_waits_for_an_encoding_is_not_upcoming() -> None:
    upcoming, claim = Upcoming(pauses=True), Claim[Any](Future(), lambda: None)

    def prompt(asked: SpeechRequest, features: object) -> None:
        raise NotEncoded(claim, "reference")

    model = cast(Any, SimpleNamespace(prompt=prompt))
    preparation = Preparation(model, cast(Any, None), cast(Any, None), SpeechRequest("text"), upcoming)
    assert upcoming
    assert preparation.advance(proceed) is claim
    assert not upcoming


def test_a_request_that_was_left_never_counts_again() -> None:
    """A thread may still be making the prompt when the server gives the request up."""
    upcoming = Upcoming(pauses=True)
    ticket, other = upcoming.ticket(), upcoming.ticket()
    ticket.end()
    ticket.count(True)
    other.count(False)
    assert not upcoming
    other.count(True)
    assert upcoming


@pytest.mark.parametrize("times", [1, 2])
def test_a_ticket_ends_once_or_twice(times: int) -> None:
    upcoming = Upcoming(pauses=True)
    ticket = upcoming.ticket()
    for _ in range(times):
        ticket.end()
    assert not upcoming


def test_a_ticket_that_ends_in_another_thread_while_it_is_counted_does_not_count() -> None:
    upcoming = Upcoming(pauses=True)
    ticket, lock = upcoming.ticket(), upcoming._lock
    ticket.count(False)

    class Late:
        """The other thread ends the ticket just before this one has the lock."""

        def __enter__(self) -> None:
            ticket.over = True
            lock.acquire()

        def __exit__(self, *error: object) -> None:
            lock.release()

    upcoming._lock = cast(Any, Late())
    ticket.count(True)
    assert not upcoming


def test_no_prompt_begins_to_be_made_while_a_prefill_is_launched(monkeypatch: pytest.MonkeyPatch) -> None:
    upcoming, begun, claim = Upcoming(pauses=True), threading.Event(), Claim[Any](Future(), lambda: None)

    def prompt(asked: SpeechRequest, features: object) -> None:
        begun.set()
        raise NotEncoded(claim, "reference")

    model = cast(Any, SimpleNamespace(prompt=prompt))
    preparation = Preparation(model, cast(Any, None), cast(Any, None), SpeechRequest("text"), upcoming)
    maker = threading.Thread(target=lambda: preparation.advance(proceed))
    monkeypatch.setattr(preparations, "PAUSE_SECONDS", STUCK_S)
    with upcoming.paused(True):
        maker.start()
        assert not begun.wait(0.05)
        assert upcoming  # which the engine may wait for
    maker.join()
    assert begun.is_set()


def test_a_prompt_is_made_though_a_launch_does_not_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server's event loop makes it, and must answer whatever a device does."""
    upcoming = Upcoming(pauses=True)
    monkeypatch.setattr(preparations, "PAUSE_SECONDS", 0.001)
    with upcoming.paused(True):
        upcoming.wait()  # and not for ever


def test_a_step_without_a_prefill_and_one_that_failed_hold_up_no_prompt() -> None:
    upcoming = Upcoming(pauses=True)
    with upcoming.paused(False):
        upcoming.wait()
    with pytest.raises(RuntimeError, match="launch"), upcoming.paused(True):
        raise RuntimeError("the launch failed")
    upcoming.wait()


@pytest.mark.parametrize("cuda", [True, False])
def test_a_gpus_engine_pauses_the_making_of_prompts_for_launches_of_prefills_only(
    cuda: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A CPU computes a prefill where a GPU launches it, so prompts of others are made meanwhile."""
    with toy() as tts:
        seen: list[tuple[bool, bool]] = []
        launch = tts.engine._launcher.step

        def step(plan: StepPlan) -> list[InFlightStep]:
            seen.append((bool(plan.prefill), not tts.engine.upcoming._free.is_set()))
            return launch(plan)

        monkeypatch.setattr(tts.engine._launcher, "step", step)
        monkeypatch.setattr(tts.engine.upcoming, "_pauses", cuda)
        tts.generate("hello", max_frames=3)
    assert {prefill for prefill, _ in seen} == {True, False}
    assert all(paused == (prefill and cuda) for prefill, paused in seen)


def test_audio_is_handed_out_between_writing_rows_and_launching_the_step(monkeypatch: pytest.MonkeyPatch) -> None:
    with toy() as tts:
        engine, order = tts.engine, []
        write, ready, step = engine._launcher.write, engine._delivery.ready, engine._launcher.step

        def noting(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
            def noted(*given: Any) -> Any:
                order.append(name)
                return call(*given)

            return noted

        monkeypatch.setattr(engine._launcher, "write", noting("write", write))
        monkeypatch.setattr(engine._delivery, "ready", noting("ready", ready))
        monkeypatch.setattr(engine._launcher, "step", noting("step", step))
        tts.generate("hello", max_frames=3)
    at = order.index("write")
    assert order[at : at + 3] == ["write", "ready", "step"]

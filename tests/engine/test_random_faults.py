"""Whatever happens, every stream ends, everything comes back, and audio of requests that were not hit is as alone.

A state machine plays callers and a device that fails. The engine's thread takes its steps only when the machine says
so, on the machine's clock, so that a run is the same every time. FULL_SIZE=1 searches longer, and elsewhere each time.
"""

from __future__ import annotations

import os
import threading
from typing import ClassVar

import pytest
import torch
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
    run_state_machine_as_test,
)

from stentor import TTS, EngineError, Overloaded
from stentor.config import Policy
from stentor.models.base import Prompt
from tests.helpers.faults import SITES, Faults
from tests.helpers.random_callers import KINDS, Talk, all_alone, cut_text
from tests.helpers.stepped_engine import SteppedEngine, stepped_engines

FULL = os.environ.get("FULL_SIZE") == "1"
PAGE_BYTES = 4 * 2 * 2 * 2 * 8 * 8  # tokens, layers, keys and values, heads, numbers, bytes
# frames, rows of both page sets, keys and values, heads, numbers, bytes
FRAMES_BYTES = 2 * (2 + 1) * 2 * 2 * 4 * 8
MODELS = {
    "dummy:toy": PAGE_BYTES,
    "dummy:toy-utterance": PAGE_BYTES,
    "dummy:toy-frames": PAGE_BYTES + FRAMES_BYTES,
}
"""Bytes of a page of each."""
ROW_MB = 0.0145  # holds one parked row of either
QUIET_STEPS = 300  # after which nothing goes on by itself
LAST_STEPS = 3000  # in which everything must have ended

kinds = st.integers(0, len(KINDS) - 1)
REPEATED = {"admit", "set_pages", "restore", "samples"}
"""Sites whose calls are repeated, so that one failure ends no request."""
LAUNCHES = {"prefill", "decode", "codec", "download"}
"""Sites at which a request for which there is no memory ends those that are launched with it."""
steps = st.integers(0, 8)  # that follow a request


class RandomFaults(RuleBasedStateMachine):
    """Callers of an engine, and its device."""

    parked: ClassVar[list[int]] = []  # rows that were parked for others, whenever somebody looked

    def __init__(self) -> None:
        super().__init__()
        self.stepping = stepped_engines()
        self.stepping.__enter__()
        self.talks: list[Talk] = []
        self.engines: list[SteppedEngine] = []

    @initialize(
        slots=st.integers(1, 4),
        pages=st.sampled_from((20, 40, 400)),
        overlap=st.integers(0, 2),
        budget=st.sampled_from((5, 2048)),
        model=st.sampled_from(list(MODELS)),
        rows=st.sampled_from((0, 1, 1000)),
        cache=st.booleans(),
    )
    def start(
        self, slots: int, pages: int, overlap: int, budget: int, model: str, rows: int, cache: bool
    ) -> None:
        """rows: that may be parked."""
        policy = Policy(
            reserve_tokens=4, max_queue=4, max_ahead=0.3, max_frames_in_codec=30,
            max_prefill_tokens=budget, min_cached_tokens=8, parked_mb=rows * ROW_MB, prefix_cache=cache,
        )  # fmt: skip
        self.model = model
        self.how = {
            "max_num_seqs": slots, "memory_gb": pages * MODELS[model] / 2**30, "overlap_steps": overlap, "policy": policy,
        }  # fmt: skip
        self._load()

    def _load(self) -> None:
        self.faults, others = Faults(), threading.enumerate()
        self.tts = TTS(
            self.model, dtype="float64", page_size=4, threads=1, max_frames=128, **self.how
        )
        self.engine: SteppedEngine = self.tts.engine  # type: ignore[assignment]
        self.engines.append(self.engine)
        (self.thread,) = [
            t for t in threading.enumerate() if t.name == "stentor-engine" and t not in others
        ]
        self.faults.plant(self.engine)

    # -- callers --

    def _prompt(self, kind: int) -> Prompt:
        text, options = KINDS[kind]
        return self.tts.prompt(self.tts.request(text, **options))

    def _submit(
        self, kinds: list[int], steps: int, streaming: bool, live: int = 0, nan: bool = False
    ) -> None:
        self._hand_over(kinds, streaming, live, nan)
        self.engine.step(steps)

    def _hand_over(self, kinds: list[int], streaming: bool, live: int, nan: bool) -> None:
        try:
            prompts = [self._prompt(kind) for kind in kinds]
        except (torch.OutOfMemoryError, torch.AcceleratorError) as e:
            if "planted" not in str(e):
                raise
            return
        for prompt, then in zip(prompts, [*prompts[1:], None], strict=True):
            prompt.continuation = (
                None if then is None and len(kinds) == 1 else lambda _, then=then: then
            )
        talk = Talk(self.model, streaming, kinds, None)
        if live:
            talk.unsent = cut_text(prompts[0], live)
        if nan:
            prompts[0].columns["cfg"] = float("nan")
            talk.may_fail.append("frame that is not finite")
        try:
            talk.stream = self.tts.engine.submit(prompts[0], KINDS[kinds[0]][1]["seed"], streaming)
        except Overloaded:
            assert self.engine.health().queued >= 4
        except EngineError as e:
            if "stopped" not in str(e):
                raise
        else:
            self.talks.append(talk)

    @rule(count=st.integers(2, 4), then=st.integers(2, 4))
    def join_and_wait_for_text(self, count: int, then: int) -> None:
        """Live requests that run out of text, and others that want their slots."""
        for _ in range(count):
            self._submit([4], 4, True, live=1)
        for _ in range(then):
            self._submit([1], 4, False)
        self.engine.step(40)
        self.parked.append(len(self.engine.scheduler.parked))

    @rule(count=st.integers(2, 4))
    def join_and_give_no_text(self, count: int) -> None:
        """Live requests that take most pages and wait for text, and one that has all of its text."""
        for _ in range(count):
            self._submit([4], 4, True, live=1)
        self._submit([4], 0, False)
        self.wait()

    @rule(kind=kinds, steps=steps, streaming=st.booleans())
    def join(self, kind: int, steps: int, streaming: bool) -> None:
        self._submit([kind], steps, streaming)

    @rule(more=st.lists(kinds, min_size=2, max_size=3), steps=steps, streaming=st.booleans())
    def join_with_further_prompts(self, more: list[int], steps: int, streaming: bool) -> None:
        self._submit(more, steps, streaming)

    @rule(kind=st.sampled_from((1, 2, 4)), known=st.integers(1, 4), steps=steps)
    def join_with_live_text(self, kind: int, known: int, steps: int) -> None:
        self._submit([kind], steps, True, live=known)

    @rule(kind=kinds, steps=steps)
    def join_with_a_frame_that_is_not_finite(self, kind: int, steps: int) -> None:
        self._submit([kind], steps, True, nan=True)

    def _some(self, data: st.DataObject, which: list[Talk]) -> Talk:
        return which[data.draw(st.integers(0, len(which) - 1))]

    def _open(self) -> list[Talk]:
        return [t for t in self.talks if t.stream is not None and not t.ended]

    @precondition(lambda self: self._open())
    @rule(data=st.data())
    def read(self, data: st.DataObject) -> None:
        self._some(data, self._open()).read()

    @precondition(lambda self: self._open())
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        self._some(data, self._open()).stream.cancel()  # type: ignore[union-attr]

    @precondition(lambda self: self._open())
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        """A caller cancels, as `TTS.stream` does, and forgets its stream."""
        talk = self._some(data, self._open())
        assert talk.stream is not None
        talk.stream.cancel()
        talk.forget()

    @precondition(lambda self: self._open())
    @rule(data=st.data())
    def drop(self, data: st.DataObject) -> None:
        """A caller forgets its stream, which cancels itself."""
        self._some(data, self._open()).forget()

    @precondition(lambda self: any(t.unsent for t in self._open()))
    @rule(data=st.data(), count=st.integers(1, 6))
    def append(self, data: st.DataObject, count: int) -> None:
        self._some(data, [t for t in self._open() if t.unsent]).append(count)

    # -- the device --

    @rule(count=st.integers(1, 20))
    def step(self, count: int) -> None:
        self.engine.step(count)

    @rule()
    def wait(self) -> None:
        """Nobody does anything. What waits then waits for text or a reader, or for the slots of those that do."""
        self.engine.step(QUIET_STEPS)
        scheduler = self.engine.scheduler
        assert not [s for s in (*scheduler.live, *scheduler.parked) if s.may_go_on], (
            "a request does not go on"
        )
        assert not scheduler.queue or not scheduler.free_slots, "a request does not begin"

    @rule(site=st.sampled_from(SITES), after=st.integers(0, 40))
    def run_out_of_memory(self, site: str, after: int) -> None:
        self.faults.armed = site, after

    @rule()
    def decode_bad_samples(self) -> None:
        self.faults.bad_samples = 1

    @precondition(lambda self: self._open())
    @rule(data=st.data())
    def never_have_memory_for_one_request(self, data: st.DataObject) -> None:
        talk = self._some(data, self._open())
        assert talk.stream is not None
        request = self.engine._requests.of_outbox(talk.stream.outbox)
        if request is not None:
            self.faults.full_for.add(request.seq.id)
            talk.may_fail.append("full for one request")

    @rule(dead=st.booleans())
    def restart(self, dead: bool) -> None:
        """Close the engine in the middle of its work, after its device was lost if `dead`."""
        if dead:
            self.faults.dead = True
            self.engine.step(2)
        self._restart()

    def _restart(self) -> None:
        self._close()
        self.talks = []
        self._load()

    # -- the end --

    def _close(self) -> None:
        self.tts.close()
        self._read_all()
        assert not self.thread.is_alive()
        assert not [t for t in self.talks if t.stream is not None and not t.ended], (
            "a stream has not ended"
        )
        assert self.engine.health().queued == 0
        error = self.engine.health().error
        assert error is None or (self.faults.dead and "planted" in error), error
        with pytest.raises(EngineError, match="stopped"):
            self.engine.submit(self._plain_prompt(), 1, True)
        for talk in self.talks:
            if talk.stream is not None:
                self._check(talk)
        bad = sum("samples that are not finite" in str(talk.error) for talk in self.talks)
        assert bad <= self.faults.fired.count("samples"), "bad samples of one row ended others"

    def _plain_prompt(self) -> Prompt:
        self.faults.dead, self.faults.armed = False, None
        return self._prompt(0)

    def _check(self, talk: Talk) -> None:
        if talk.error is not None:
            hit = "planted: out of memory" in str(talk.error) and not REPEATED.issuperset(
                self.faults.fired
            )
            hit = hit or "samples that are not finite" in str(talk.error)
            hit = hit or (
                "full for one request" in str(talk.error)
                and not LAUNCHES.isdisjoint(self.faults.fired)
            )
            own = any(words in str(talk.error) for words in talk.may_fail)
            assert hit or own or "stopped" in str(talk.error), (talk.error, self.faults.fired)
        talk.check()

    def _read_all(self) -> None:
        for talk in self.talks:
            talk.read()

    def teardown(self) -> None:
        try:
            if self.engines:
                self._finish()
        finally:
            for engine in self.engines:
                engine.close()
            self.stepping.__exit__(None, None, None)

    def _finish(self) -> None:
        """Nothing new comes: all streams end, and everything is free again."""
        self.engine.step(1)  # those that were dropped last are cancelled
        for talk in self._open():
            while talk.unsent:
                talk.append(100)
        for _ in range(LAST_STEPS // 10):
            self._read_all()
            health = self.engine.health()
            if not self._open() and not health.running and not health.queued:
                break
            self.engine.step(10)
        health = self.engine.health()
        assert health.alive, health.error
        assert not self._open(), "a stream does not end"
        assert health.running == health.queued == 0
        assert health.free_slots == self.engine.sizes.slots
        assert health.free_pages == health.pages
        assert self.engine.scheduler.audio.in_codec == 0
        assert not self.engine._requests._by_id
        assert not self.engine._requests._by_outbox
        self._close()


@pytest.mark.slow
def test_every_stream_ends_and_everything_comes_back_whatever_fails():
    for model in MODELS:
        for streaming in (True, False):
            all_alone(model, streaming)
    found = settings(
        max_examples=400 if FULL else 16,
        stateful_step_count=60 if FULL else 25,
        derandomize=not FULL,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    RandomFaults.parked.clear()
    run_state_machine_as_test(RandomFaults, settings=found)
    assert any(RandomFaults.parked), "the search parks nothing"

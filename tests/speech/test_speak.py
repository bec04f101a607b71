"""A list of texts: queued as there is room, run-ons tried again together, and one failure is one failure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest
import torch

from stentor import EngineError, InvalidRequest, Overloaded, Speech, StentorError
from stentor.engine.engine import Engine
from stentor.engine.scheduling.sequence import Place
from stentor.engine.stream import Chunk
from stentor.models.base import Prompt
from stentor.models.info import SpeechRequest
from stentor.models.toy.spec import make_spec
from stentor.speech.spoken_text import SpokenText, speak_in_thread
from stentor.text.sentences import Segment

NONE = np.zeros(0)


class FakeEngine:
    """Takes so many requests at once. A request is served when it is read, and runs on with the seeds of `run_ons`."""

    model = SimpleNamespace(spec=make_spec(torch.float32))

    def __init__(self, room: int = 100, run_ons: tuple[int, ...] = ()) -> None:
        self.room, self.run_ons = room, run_ons
        self.open = 0
        self.events: list[tuple[object, ...]] = []
        self.fails: set[str] = set()
        self.silent: set[str] = set()  # what ends in its first draw

    def fit(self, prompt: Prompt) -> None:
        """Any prompt fits."""

    def submit(self, prompt: Prompt, seed: int, streaming: bool, place: Place) -> FakeStream:
        assert not streaming
        if place is Place.NEW and self.open >= self.room:
            raise Overloaded("full")
        self.open += 1
        self.events.append(("submit", name(prompt), seed, place))
        return FakeStream(self, prompt, seed)

    def done(self, kind: str) -> list[tuple[object, ...]]:
        return [e[1:] for e in self.events if e[0] == kind]


class FakeStream:
    def __init__(self, engine: FakeEngine, prompt: Prompt, seed: int) -> None:
        self.engine, self.prompt, self.seed = engine, prompt, seed

    def __iter__(self) -> Iterator[Chunk]:
        self.engine.events.append(("read", name(self.prompt), self.seed))
        self.engine.open -= 1
        if name(self.prompt) in self.engine.fails:
            raise EngineError("broken")
        ran_on = self.seed in self.engine.run_ons
        frames = 0 if name(self.prompt) in self.engine.silent else 9 if ran_on else 4
        finish = "length" if ran_on else "stop"
        yield Chunk(np.zeros(frames, np.float32), np.zeros((frames, 1)), finish)

    def cancel(self) -> None:
        self.engine.events.append(("cancel", name(self.prompt)))


def name(prompt: Prompt) -> str:
    return str(prompt.columns["name"])


def texts(engine: FakeEngine, names: str, tries: int = 3, unprepared: str = "") -> list[SpokenText]:
    """Texts between spaces, whose characters are segments that do not depend on each other. There is no memory to
    encode what `unprepared` has."""

    def prompt(request: SpeechRequest) -> Prompt:
        if request.text in unprepared:
            raise torch.OutOfMemoryError("no room")
        return Prompt(
            {"text": NONE}, NONE, NONE, {"name": request.text}, 1, 0, NONE, runaway_frames=9
        )

    def spoken(text: str) -> SpokenText:
        segments = [Segment(one, i, i + 1) for i, one in enumerate(text)]
        request = SpeechRequest(text[0], seed=1, voice="low", options={})
        return SpokenText(
            cast(Engine, engine),
            prompt,
            lambda text: True,
            {None: request},
            segments,
            tries,
            streaming=False,
        )

    return [spoken(text) for text in names.split()]


def frames(results: Sequence[Speech | StentorError]) -> list[int | str]:
    return [len(r.frames) if isinstance(r, Speech) else str(r) for r in results]


def test_run_ons_are_tried_again_together_in_the_places_they_had():
    engine = FakeEngine(run_ons=(1, 2))
    results = speak_in_thread(texts(engine, "a b c"))
    assert frames(results) == [4, 4, 4]
    assert [r.seed for r in results if isinstance(r, Speech)] == [3, 3, 3]
    for seed in (2, 3):
        submitted = [engine.events.index(("submit", n, seed, Place.NEXT)) for n in "abc"]
        read = [engine.events.index(("read", n, seed)) for n in "abc"]
        assert max(submitted) < min(read)


def test_the_last_try_is_kept_and_the_seed_of_the_first_repeats_it():
    for _ in range(2):
        engine = FakeEngine(run_ons=(1, 2))
        (result,) = speak_in_thread(texts(engine, "a", tries=2))
        assert isinstance(result, Speech)
        assert (len(result.frames), result.seed) == (9, 1)
        assert [seed for _, seed, _ in engine.done("submit")] == [1, 2]


def test_a_segment_that_ends_in_its_first_draw_is_named(caplog: pytest.LogCaptureFixture):
    engine = FakeEngine()
    engine.silent = {"b"}
    (result,) = speak_in_thread(texts(engine, "abc"))
    assert isinstance(result, Speech)
    assert (len(result.frames), result.ignored) == (8, ("b",))
    assert "ended 'b' before its first sound" in caplog.text


def test_what_the_queue_does_not_hold_waits_for_others_to_end():
    engine = FakeEngine(room=2, run_ons=(1,))
    assert frames(speak_in_thread(texts(engine, "a b c d e f"))) == [4] * 6
    assert [e[0] for e in engine.done("submit") if e[1] == 1] == list("abcdef")
    assert not any(place is Place.ADMITTED for *_, place in engine.done("submit"))


def test_a_list_that_has_begun_is_not_refused_when_others_fill_the_queue(
    monkeypatch: pytest.MonkeyPatch,
):
    engine = FakeEngine(room=1)
    begun = FakeStream.__iter__

    def read(stream: FakeStream) -> Iterator[Chunk]:
        engine.room = 0
        return begun(stream)

    monkeypatch.setattr(FakeStream, "__iter__", read)
    assert frames(speak_in_thread(texts(engine, "a b c"))) == [4, 4, 4]
    assert [place for *_, place in engine.done("submit")] == [
        Place.NEW,
        Place.ADMITTED,
        Place.ADMITTED,
    ]


def test_the_first_text_is_refused_by_a_full_queue():
    engine = FakeEngine(room=0)
    with pytest.raises(Overloaded):
        speak_in_thread(texts(engine, "a b"))
    assert not engine.done("submit")


def test_one_failure_is_one_failure():
    engine = FakeEngine(run_ons=(1,))
    engine.fails = {"b"}
    assert frames(speak_in_thread(texts(engine, "a b c"))) == [4, "broken", 4]


def test_a_segment_that_fails_ends_its_text_and_no_other():
    engine = FakeEngine()
    engine.fails = {"b"}
    assert frames(speak_in_thread(texts(engine, "abcdefghijk xyz"))) == ["broken", 12]
    assert {e[0] for e in engine.done("cancel")} >= set("bcdefgh")
    assert not {"j", "k"} & {e[0] for e in engine.done("submit")}


def test_audio_that_cannot_be_encoded_ends_its_text_and_no_other():
    """A later segment takes the voice of the one before, whose encoding may find no memory."""
    broken, fine = speak_in_thread(texts(FakeEngine(), "abcdefghijk xyz", unprepared="b"))
    assert isinstance(broken, EngineError)
    assert "no room" in str(broken)
    assert isinstance(broken.__cause__, torch.OutOfMemoryError)
    assert frames([fine]) == [12]


def test_all_are_checked_before_one_is_queued():
    class Small(FakeEngine):
        def fit(self, prompt: Prompt) -> None:
            if name(prompt) == "c":
                raise InvalidRequest("text", "is too long")

    engine = Small()
    with pytest.raises(InvalidRequest, match="too long"):
        speak_in_thread(texts(engine, "a b c"))
    assert not engine.done("submit")


def test_an_interrupted_caller_leaves_nothing_running(monkeypatch: pytest.MonkeyPatch):
    engine = FakeEngine()

    def interrupted(stream: FakeStream) -> Iterator[Chunk]:
        raise KeyboardInterrupt

    monkeypatch.setattr(FakeStream, "__iter__", interrupted)
    with pytest.raises(KeyboardInterrupt):
        speak_in_thread(texts(engine, "a b c"))
    assert engine.done("cancel") == [("a",), ("b",), ("c",)]

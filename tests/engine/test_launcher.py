"""A launch that fails ends its rows, of which each half is tried where memory ran out. No other audio changes."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

from stentor import TTS, EngineError, Speech
from tests.engine.test_engine import _checked, assert_all_free, assert_equal, requests, toy  # noqa: F401

PLACES = {
    "the rows of new requests": lambda tts: (tts.engine.runner, "admit"),
    "their codec state": lambda tts: (tts.engine.codec, "admit"),
    "page tables": lambda tts: (tts.engine.runner, "set_pages"),
    "prefill": lambda tts: (tts.engine.runner, "prefill"),
    "decode": lambda tts: (tts.engine.runner, "decode"),
    "the report of a step": lambda tts: (tts.engine.runner, "_in_flight"),
    "a codec call": lambda tts: (tts.engine.codec.graphs, "fn"),
}
Place = Callable[[TTS], tuple[Any, str]]


def spoken(tts: TTS) -> list[Speech | EngineError]:
    """Fate of eight requests that are submitted together, two more than there are slots."""
    work = [(text, {k: v for k, v in o.items() if k != "retries"}) for text, o in requests(8)]
    streams = [tts.submit(tts.request(text, **options)) for text, options in work]
    results: list[Speech | EngineError] = []
    for stream in streams:
        try:
            results.append(tts.speech(list(stream), stream.seed))
        except EngineError as e:
            results.append(e)
    return results


@pytest.fixture(scope="module")
def tts() -> Iterator[TTS]:
    """One engine for all faults: it must serve on after each."""
    with toy() as running:
        yield running


@pytest.fixture(scope="module")
def honest(tts: TTS) -> list[Speech | EngineError]:
    return spoken(tts)


def failing(
    monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, when: Callable[[int], bool], after: bool
) -> None:
    """Out of memory at each call that `when` names by its number, before or after the call has done its work."""
    plain, calls = getattr(owner, name), iter(range(10**9))

    def call(*args: object) -> object:
        out_of_memory = when(next(calls))
        result = plain(*args) if after or not out_of_memory else None
        if out_of_memory:
            raise torch.OutOfMemoryError("full")
        return result

    monkeypatch.setattr(owner, name, call)


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("every", [3, 7])
@pytest.mark.parametrize("place", PLACES.values(), ids=PLACES.keys())
def test_out_of_memory_now_and_then_changes_nobodys_audio(
    monkeypatch: pytest.MonkeyPatch,
    tts: TTS,
    honest: list[Speech | EngineError],
    place: Place,
    every: int,
    after: bool,
):
    failing(monkeypatch, *place(tts), lambda n: n % every == 1, after)
    results = spoken(tts)
    for want, got in zip(honest, results, strict=True):
        assert isinstance(want, Speech)
        if isinstance(got, Speech):
            assert_equal(want, got)
        else:
            assert "full" in str(got)
    assert tts.engine.health().alive
    assert_all_free(tts)


@pytest.mark.parametrize("name", ["prefill", "decode", "set_pages"])
def test_memory_that_runs_out_once_before_a_launch_fails_nobody(
    monkeypatch: pytest.MonkeyPatch, tts: TTS, honest: list[Speech | EngineError], name: str
):
    failing(monkeypatch, tts.engine.runner, name, lambda n: n == 5, after=False)
    for want, got in zip(honest, spoken(tts), strict=True):
        assert_equal(want, got)  # type: ignore[arg-type]


@pytest.mark.parametrize("error", [RuntimeError, torch.OutOfMemoryError])
def test_a_launch_that_fails_ends_its_rows_and_no_others(
    monkeypatch: pytest.MonkeyPatch,
    tts: TTS,
    honest: list[Speech | EngineError],
    error: type[Exception],
):
    plain, victim = tts.engine.runner.decode, next(tts.engine.sequences.ids) + 5
    with_it: set[int] = set()  # of the last try

    def decode(sequences: list[Any]) -> object:
        if victim in (ids := {s.id for s in sequences}):
            with_it.clear()
            with_it.update(ids)
            raise error("row 4")
        return plain(sequences)

    monkeypatch.setattr(tts.engine.runner, "decode", decode)
    results = spoken(tts)
    ended = {i for i, got in enumerate(results) if isinstance(got, EngineError)}
    assert ended == {id - victim + 4 for id in with_it}
    assert 4 in ended
    for i, (want, got) in enumerate(zip(honest, results, strict=True)):
        if i not in ended:
            assert_equal(want, got)  # type: ignore[arg-type]
    assert_all_free(tts)


def test_memory_that_has_run_out_is_given_back_before_the_next_try(
    monkeypatch: pytest.MonkeyPatch, tts: TTS
):
    released: list[int] = []
    monkeypatch.setattr(tts.engine.side.device, "release_cached", lambda: released.append(1))
    failing(monkeypatch, tts.engine.runner, "decode", lambda n: n == 2, after=False)
    assert len(tts.generate("hello", seed=1, max_frames=9, min_frames=9, retries=1).frames) == 9
    assert np.sum(released) == 1

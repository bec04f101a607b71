"""Graphs that are left for later are captured while nobody asks for anything, and change nothing that is kept."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext

import numpy as np
import pytest
import torch

from stentor import TTS, Reference, kernels
from stentor.config import Policy
from stentor.engine import captures, device
from stentor.engine.audio_scheduler import RAMP
from stentor.engine.cuda_graphs import CudaGraphRunner
from stentor.engine.device import Device
from stentor.engine.model_runner import ModelRunner
from stentor.errors import EngineError
from tests.helpers.captured import TOKENS, make_prefill_buffers, read_rows_from_tokens, simulate_captures, small_shapes

SMALL = {"memory_gb": 0.002, "max_frames": 64, "batch_sizes": (6, 4, 2, 1), "max_num_seqs": 6}
VOICE = Reference((np.sin(np.arange(1200) / 30).astype(np.float32), 6000))
Event = tuple[str, tuple[int, ...]]


@pytest.fixture
def events(monkeypatch: pytest.MonkeyPatch) -> list[Event]:
    """Names and keys of what is captured, as on a GPU, and of steps."""
    simulate_captures(monkeypatch)
    found: list[Event] = []
    capture, decode = CudaGraphRunner._capture, ModelRunner._decode

    def captured(self: CudaGraphRunner, key: tuple[int, ...]) -> None:
        found.append((f"capture {self.name}", key))
        capture(self, key)

    def decoded(self: ModelRunner, *key: int) -> None:
        found.append(("step", key))
        decode(self, *key)

    monkeypatch.setattr(CudaGraphRunner, "_capture", captured)
    monkeypatch.setattr(ModelRunner, "_decode", decoded)
    return found


def wait_for(what: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not what():
        assert time.monotonic() < end, "nothing more happens"
        time.sleep(0.001)


def wake(tts: TTS) -> None:
    tts.engine.inbox.put(None)


def all_captured(tts: TTS) -> bool:
    return tts.engine._captures.left == 0


def kept_by(tts: TTS) -> list[torch.Tensor]:
    """Pages of the language model and of the codec, and how many frames each slot has, without what is padding."""
    runner, codec = tts.engine.runner, tts.engine.codec
    pages = [runner.kv.pool[:, :, :-1], *(pool[:-1] for pool in codec.pages.pool.values())]
    return [part.clone() for part in (*pages, runner.slots.table["step"][:-1])]


def spoken(tts: TTS, count: int) -> list[np.ndarray]:
    """Streams that run beside each other."""
    options = {"max_frames": 60, "min_frames": 60}
    streams = [tts.submit(tts.request(f"number {i}", seed=i, **options)) for i in range(count)]
    return [np.concatenate([chunk.samples for chunk in stream]) for stream in streams]


@pytest.mark.parametrize("model", ["dummy:toy", "dummy:toy-lookahead"])
def test_graphs_for_which_requests_ask_are_captured_beside_them(
    events: list[Event], model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Steps of three rows ran in the graph of six. What the requests have is left as it is."""
    monkeypatch.setattr(captures, "LEAD_SECONDS", 0.0)
    with TTS(model, dtype="float64", capture_all=True, **SMALL) as tts:
        want = spoken(tts, 3)
    events.clear()
    with TTS(model, dtype="float64", **SMALL) as tts:
        got = spoken(tts, 3)
        assert 4 in {rows for rows, *_ in tts.engine.runner.decode_graphs.graphs}
    for a, b in zip(got, want, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-9)
    names = [(name, key[0]) for name, key in events]
    captured = names.index(("capture decode", 4))
    assert ("step", 6) in names[:captured]
    assert ("step", 4) in names[captured + 3 :]  # a capture runs it twice


def test_nothing_is_captured_beside_a_client_that_has_little_audio(
    events: list[Event], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(captures, "LEAD_SECONDS", 1e9)
    monkeypatch.setattr(captures, "QUIET_SECONDS", 1e3)  # nor while idle
    with TTS("dummy:toy", dtype="float64", **SMALL) as tts:
        spoken(tts, 3)
        assert ("capture decode", 4) not in [(name, key[0]) for name, key in events]
        assert tts.engine.runner.decode_graphs.asked


@pytest.fixture
def going_on(events: list[Event], monkeypatch: pytest.MonkeyPatch) -> Iterator[TTS]:
    """An idle engine that has captured a graph and would go on with the next. Its thread waits for a message."""
    monkeypatch.setattr(captures, "QUIET_SECONDS", 1e3)
    with TTS("dummy:toy", dtype="float64", **SMALL) as tts:
        found = tts.engine._captures
        assert found.wait == 1e3
        with torch.inference_mode():
            found.next()
        assert found.left
        assert found.wait == 0.0
        yield tts


def test_graphs_are_captured_one_after_another_until_a_message_comes(going_on: TTS) -> None:
    going_on.generate("a message", max_frames=2)
    assert going_on.engine._captures.wait == 1e3


def test_nothing_is_captured_while_a_prompt_is_made_and_the_engine_waits_for_it(going_on: TTS) -> None:
    """Otherwise its thread would ask all the time whether the prompt is there, and take the time in which it is made."""
    found, ticket = going_on.engine._captures, going_on.engine.upcoming.ticket()
    left = found.left
    wake(going_on)
    wait_for(lambda: found.wait == 1e3)
    assert found.left == left
    ticket.end()


def test_an_engine_waits_again_where_another_is_loaded_between_its_captures(
    going_on: TTS, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise its thread would ask all the time whether the other is ready."""
    found = going_on.engine._captures
    left = found.left
    monkeypatch.setattr(type(found.device), "capturing", lambda self: nullcontext(False))
    found.next()
    assert found.left == left
    assert found.wait == 1e3


@pytest.mark.parametrize("model", ["dummy:toy", "dummy:toy-lookahead"])
def test_all_graphs_are_captured_once_while_nobody_asks_and_serve_afterwards(events: list[Event], model: str) -> None:
    with TTS(model, dtype="float64", **SMALL) as tts:
        wait_for(lambda: all_captured(tts))
        keys = [event for event in events if event[0].startswith("capture")]
        assert len(keys) == len(set(keys))
        runner, codec = tts.engine.runner, tts.engine.codec
        assert set(runner.decode_graphs.graphs) == set(runner.decode_keys())
        assert set(codec.graphs.graphs) == set(codec.graph_keys(6))
        assert set(codec.whole.graphs.graphs) == set(codec.whole.keys(6))
        got = tts.generate("what a graph makes", seed=1, max_frames=20).samples
        assert runner.decode_graphs.eager_calls == codec.graphs.eager_calls == codec.whole.graphs.eager_calls == 0
    np.testing.assert_allclose(got, eager(model), atol=1e-6)


def eager(model: str) -> np.ndarray:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CudaGraphRunner, "capture", lambda *_: None)
        with TTS(model, dtype="float64", **SMALL) as tts:
            return tts.generate("what a graph makes", seed=1, max_frames=20).samples


class Later:
    """Notes when a capture that was left for later begins and ends. The first waits until it may go on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, events: list[Event]) -> None:
        self.began, self.go_on = threading.Event(), threading.Event()
        usual = CudaGraphRunner.capture_next

        def capture_next(graphs: CudaGraphRunner) -> None:
            self.began.set()
            assert self.go_on.wait(60)
            events.append(("begins", ()))
            usual(graphs)
            events.append(("ends", ()))

        monkeypatch.setattr(CudaGraphRunner, "capture_next", capture_next)


def test_a_request_that_comes_during_a_capture_is_served_before_the_next(
    events: list[Event], monkeypatch: pytest.MonkeyPatch
) -> None:
    later = Later(monkeypatch, events)
    with TTS("dummy:toy", **SMALL) as tts:
        assert later.began.wait(60)
        del events[:]
        stream = tts.submit(tts.request("now", max_frames=9, min_frames=9))
        later.go_on.set()
        assert sum(len(chunk.frames) for chunk in stream) == 9
        wait_for(lambda: all_captured(tts))
    kinds = [name for name, _ in events]
    first = kinds.index("ends")
    second = kinds.index("begins", first)
    assert set(kinds[first + 1 : second]) == {"step"}
    assert second - first >= 9  # frame 0 is the prefill's
    rest = kinds[second:]
    assert rest.count("begins") == rest.count("ends") > 1
    assert all(rest[i + 1] == "begins" for i, name in enumerate(rest[:-1]) if name == "ends")


@pytest.mark.parametrize("model", ["dummy:toy", "dummy:toy-lookahead"])
def test_what_requests_have_left_for_others_is_as_it_was(
    events: list[Event], monkeypatch: pytest.MonkeyPatch, model: str
) -> None:
    """Prompts find the pages of one that began alike, and streams the codec's pages of their voice. Every slot had some,
    and every buffer of inputs has what the last call read."""
    small_shapes(monkeypatch)
    options = {"max_num_seqs": 3, "memory_gb": 0.004, "max_frames": 64, "batch_sizes": (3, 2, 1), "dtype": "float64"}
    with TTS(
        model, policy=Policy(max_prefill_tokens=TOKENS, crowd_prefill_tokens=1, ramp=RAMP), capture_all=True, **options
    ) as tts:
        runner = tts.engine.runner
        first = speak(tts)
        leave_a_row(tts)
        make_prefill_buffers(tts)
        read_rows_from_tokens(runner.kv, tts.engine.sizes.max_pages)
        for _ in range(2):
            before, captured = kept_by(tts), len(events)
            leave_all_for_later(tts)
            wake(tts)
            wait_for(lambda: all_captured(tts))
            assert len(events) > captured + 20
            assert not any(graphs.failed for graphs in tts.engine.graph_runners)
            assert any(part.any() for part in before)
            assert all(map(torch.equal, kept_by(tts), before))
            found, eager_before = tts.engine.stats.cached_tokens, tts.engine.eager_calls
            again = speak(tts)
            assert tts.engine.stats.cached_tokens > found
            assert tts.engine.eager_calls == eager_before
            for a, b in zip(again, first, strict=True):
                np.testing.assert_allclose(a, b, atol=1e-6)
            leave_a_row(tts)


def speak(tts: TTS) -> list[np.ndarray]:
    """Three streams of one voice."""
    text = "a text that is long enough to be found in pages by one that is alike " * 3
    asked = {"max_frames": 30, "min_frames": 30, "split_granularity": "none", "reference": VOICE}
    streams = [tts.stream(text, seed=i, **asked) for i in range(3)]
    return [np.concatenate([chunk.samples for chunk in stream]) for stream in streams]


def leave_a_row(tts: TTS) -> None:
    """A request that was cancelled has left a row that goes on, if a step names it."""
    stream = tts.stream("so long", max_frames=60, min_frames=60)
    next(stream)
    stream.close()
    wait_for(lambda: tts.engine.health().running == 0)


def leave_all_for_later(tts: TTS) -> None:
    """As if nothing had been captured yet."""
    runner, codec, slots = tts.engine.runner, tts.engine.codec, tts.engine.sizes.slots
    keys: list[tuple[CudaGraphRunner, Iterable[tuple[int, ...]]]] = [
        (runner.first_graphs, runner.first_keys()),
        (runner.prefill_graphs, runner.prefill_keys()),
        (runner.decode_graphs, runner.decode_keys()),
        (codec.graphs, codec.graph_keys(slots)),
        (codec.whole.graphs, codec.whole.keys(slots)),
    ]
    for graphs, given in keys:
        graphs.later.extend(given)


def test_nothing_is_captured_while_another_model_is_loaded(
    events: list[Event], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[bool] = []
    usual = Device.capturing

    @contextmanager
    def capturing(self: Device) -> Iterator[bool]:
        with usual(self) as alone:
            asked.append(alone)
            yield alone

    monkeypatch.setattr(Device, "capturing", capturing)
    with device._LOADING, TTS("dummy:toy", **SMALL) as tts:
        left = tts.engine._captures.left
        wait_for(lambda: len(asked) >= 3)
        assert tts.engine._captures.left == left > 0
        assert tts.generate("it speaks", max_frames=5).samples.size
        device._LOADING.release()
        try:
            wait_for(lambda: all_captured(tts))
        finally:
            device._LOADING.acquire()
    assert asked[:3] == [False] * 3
    assert asked.count(True) == left


@pytest.mark.parametrize("required", [False, True])
def test_a_capture_that_fails_while_the_engine_is_idle_leaves_its_key_to_a_larger_graph(
    events: list[Event], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, required: bool
) -> None:
    capture = CudaGraphRunner._capture

    def fail(self: CudaGraphRunner, key: tuple[int, ...]) -> None:
        if self.name == "decode" and key[0] in (2, 4):
            raise RuntimeError("no memory")
        capture(self, key)

    monkeypatch.setattr(CudaGraphRunner, "_capture", fail)
    with TTS("dummy:toy", require_graphs=required, **SMALL) as tts:
        wait_for(lambda: all_captured(tts))
        graphs = tts.engine.runner.decode_graphs
        assert {key[0] for key in graphs.failed} == {2, 4}
        assert {key[0] for key in graphs.graphs} == {6, 1}
        streams = [tts.stream(f"number {i}", max_frames=9, min_frames=9) for i in range(3)]
        assert [sum(len(chunk.frames) for chunk in stream) for stream in streams] == [9, 9, 9]
        assert graphs.eager_calls == 0
        assert tts.engine.health().alive
    assert "graph capture of decode(4, " in caplog.text
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CudaGraphRunner, "_capture", fail)
        if required:
            with pytest.raises(EngineError, match="could not start: graph capture of decode"):
                TTS("dummy:toy", require_graphs=True, capture_all=True, **SMALL)


@pytest.mark.parametrize("wanted", [False, True])
def test_a_deterministic_engine_captures_with_one_order_of_sums_while_it_is_idle(
    monkeypatch: pytest.MonkeyPatch, wanted: bool
) -> None:
    simulate_captures(monkeypatch)
    monkeypatch.setattr("stentor.engine.engine.check_deterministic", lambda *_: None)
    usual, seen = CudaGraphRunner.capture_next, set[tuple[bool, bool]]()

    def capture_next(self: CudaGraphRunner) -> None:
        seen.add((kernels.is_batch_invariant(), torch.is_inference_mode_enabled()))
        usual(self)

    monkeypatch.setattr(CudaGraphRunner, "capture_next", capture_next)
    with TTS("dummy:toy", deterministic=wanted, **SMALL) as tts:
        wait_for(lambda: all_captured(tts))
    assert seen == {(wanted, True)}


def test_capture_all_captures_every_graph_before_the_engine_is_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    simulate_captures(monkeypatch, quiet=1000)
    with TTS("dummy:toy", **SMALL) as tts:
        few, left = len(tts.engine.codec.graphs.graphs), tts.engine._captures.left
    with TTS("dummy:toy", capture_all=True, **SMALL) as tts:
        assert tts.engine._captures.left == 0
        assert len(tts.engine.codec.graphs.graphs) > few > 0
    assert left > 0


def test_an_engine_closes_after_the_graph_that_it_captures(
    events: list[Event], monkeypatch: pytest.MonkeyPatch
) -> None:
    later = Later(monkeypatch, events)
    tts = TTS("dummy:toy", **SMALL)
    assert later.began.wait(60)
    left = tts.engine._captures.left
    closing = threading.Thread(target=tts.close)
    closing.start()
    wait_for(lambda: tts.engine.inbox.refusal is not None)
    later.go_on.set()
    closing.join(60)
    assert not closing.is_alive()
    assert left > 1
    assert [name for name, _ in events].count("ends") == 1
    assert not any(runner.graphs or runner.later for runner in tts.engine.graph_runners)


def test_an_idle_engine_on_a_cpu_has_nothing_to_capture_and_waits_for_ever() -> None:
    with TTS("dummy:toy", max_num_seqs=2, memory_gb=0.001) as tts:
        assert tts.engine._captures.wait is None
        assert not any(runner.graphs or runner.later for runner in tts.engine.graph_runners)

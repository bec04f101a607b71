"""Kernels are compiled ahead in cold starts only, and nothing of what is recorded for that runs or is kept."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

import pytest
import torch

from stentor import TTS
from stentor.engine import compile_ahead
from stentor.engine.compile_ahead import CompileAhead, WithoutValues
from stentor.engine.device import Device

EVENTS: list[object] = []


@contextmanager
def compiling(current: object) -> Iterator[None]:
    EVENTS.append("compile")
    yield
    EVENTS.append("compiled")


@contextmanager
def discarding() -> Iterator[None]:
    EVENTS.append("record")
    yield
    EVENTS.append("recorded")


class Graph:
    """One whose capture was broken."""

    def __init__(self, keep_graph: bool) -> None:
        assert keep_graph, "it is not instantiated"

    def capture_begin(self, capture_error_mode: str) -> None:
        EVENTS.append(capture_error_mode)

    def capture_end(self) -> None:
        EVENTS.append("end")
        raise RuntimeError("it was broken")


@pytest.fixture
def ahead(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> CompileAhead:
    """Of a GPU that is simulated."""
    EVENTS.clear()
    monkeypatch.setattr(compile_ahead, "compile_only", compiling)
    monkeypatch.setattr(compile_ahead, "AVAILABLE", True)
    monkeypatch.setattr(compile_ahead, "stamp_of", lambda start: tmp_path / "cache" / start)
    return CompileAhead(True, nullcontext, discarding)


def says(what: object) -> Callable[[], object]:
    return lambda: EVENTS.append(what)


def test_a_cold_start_records_every_call_and_then_waits_for_the_compiler(ahead) -> None:
    ahead.begin("a start")
    ahead([says(1), says(2)])
    recorded = ["compile", "record", 1, 2, "recorded", "compiled"]
    assert recorded == EVENTS
    ahead([says(1), says(2)])
    assert [*recorded, *recorded] == EVENTS


def test_a_start_of_which_one_has_ended_records_nothing(ahead) -> None:
    ahead.begin("a start")
    assert ahead.cold
    ahead.end()
    for start, cold in (("a start", False), ("another", True), ("a start", False)):
        ahead.begin(start)
        assert ahead.cold is cold
    ahead([says(1)])
    assert EVENTS == []


def test_a_start_that_did_not_end_is_no_proof(ahead) -> None:
    for _ in range(2):
        ahead.begin("a start")
        assert ahead.cold


def test_a_cache_that_cannot_be_written_stops_no_start(ahead, tmp_path, monkeypatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setattr(compile_ahead, "stamp_of", lambda start: tmp_path / "file" / "cache" / start)
    ahead.begin("a start")
    ahead.end()
    assert ahead.cold


def test_a_call_that_cannot_be_recorded_stops_no_other(ahead) -> None:
    ahead.cold = True
    ahead([lambda: torch.ones(1).item(), says(2)])
    assert EVENTS == ["compile", "record", 2, "recorded", "compiled"]


def test_a_device_that_cannot_record_compiles_as_it_runs(ahead, monkeypatch, caplog) -> None:
    def refuses(_: object) -> None:
        raise RuntimeError("no capture here")

    ahead.cold = True
    monkeypatch.setattr(compile_ahead, "compile_only", refuses)
    with caplog.at_level(logging.WARNING):
        ahead([says(1)])
        ahead([says(2)])
    assert "no capture here" in caplog.text
    assert EVENTS == []


def test_what_is_recorded_is_thrown_away_whatever_became_of_it(monkeypatch) -> None:
    EVENTS.clear()
    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
    cpu = Device("cpu")
    monkeypatch.setattr(cpu, "release_cached", lambda: EVENTS.append("release"))
    with cpu.discarding():
        EVENTS.append("call")
    assert EVENTS == ["relaxed", "call", "end", "release"]
    with pytest.raises(ValueError, match="of the model"), cpu.discarding():
        raise ValueError("of the model")
    assert EVENTS[4:6] == ["relaxed", "end"]


def test_a_cpu_compiles_nothing_ahead() -> None:
    Device("cpu").compile_ahead([lambda: pytest.fail("it ran")])


def test_what_runs_without_values_has_the_same_shapes_and_writes_nothing() -> None:
    x = torch.randn(2, 3, 8)
    kept = x.clone()

    def run(x: torch.Tensor) -> list[torch.Tensor]:
        y = torch.nn.functional.linear(x[:, 1:], torch.ones(5, 8)).transpose(1, 2)
        x[:, 0].add_(1)
        x[0].copy_(torch.zeros(3, 8))
        torch.add(x, 1, out=x)
        return [y, *y.softmax(-1).to(torch.float16).split(2, 1), torch.arange(4), y.sort().indices, y.new_zeros(3), x]

    with torch.inference_mode(), WithoutValues():
        without = run(x)
    assert torch.equal(x, kept)
    with torch.inference_mode():
        usual = run(x)
    assert [(t.shape, t.dtype, t.stride(), t.device) for t in without] == [
        (t.shape, t.dtype, t.stride(), t.device) for t in usual
    ]


def test_steps_and_codec_calls_without_values_change_nothing_that_the_engine_keeps() -> None:
    text = "Nothing is changed."
    with TTS("dummy:toy", memory_gb=0.001, max_num_seqs=2) as tts:
        runner, codec = tts.engine.runner, tts.engine.codec
        buffers = [*runner.slots.table.values(), runner.slots.frames, runner.kv.table, codec.states.data]
        before, audio = [t.clone() for t in buffers], tts.generate(text, seed=1).samples
        now = [t.clone() for t in buffers]
        assert any(not torch.equal(a, b) for a, b in zip(before, now, strict=True))
        with torch.inference_mode(), WithoutValues():
            runner._decode(2, 1, runner.model.spec.num_evals)
            codec._decode_call(2, 4)
        assert all(torch.equal(a, b) for a, b in zip(now, buffers, strict=True))
        assert (tts.generate(text, seed=1).samples == audio).all()

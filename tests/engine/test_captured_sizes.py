"""Whatever is launched takes a graph of those that are captured."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

import numpy as np
import pytest
import torch

from stentor import TTS
from stentor.engine.running.cuda_graphs import CudaGraphRunner
from stentor.engine.running.model_runner import ModelRunner, default_batch_sizes
from stentor.engine.scheduling.audio_scheduler import AudioJob
from stentor.engine.scheduling.sequence import Sequence
from stentor.engine.sizes import LEVELS
from tests.helpers.captured import TOKENS, capture_prefills, small_shapes
from tests.helpers.tiny import FIXTURES, Bench, checkpoint

SLOTS = 32
BATCH_SIZES = (1, 2, 4, 8, 16, 24, 32)
Key = tuple[int, ...]


class Recorded:
    """In place of a CUDA graph: says in `ran` that it was replayed."""

    def __init__(self, key: Key, ran: list[Key]) -> None:
        self.key, self.ran = key, ran

    def replay(self) -> None:
        self.ran.append(self.key)


@pytest.fixture
def runner() -> Iterator[ModelRunner]:
    """A runner that is to capture all loop lengths of VoxCPM2, as on a GPU."""
    with torch.inference_mode():
        runner = Bench(
            FIXTURES / "voxcpm2", "cpu", torch.float32, slots=SLOTS, batch_sizes=BATCH_SIZES
        ).runner
        runner.evals = {*runner.model.spec.captured_evals, runner.model.spec.num_evals}
        yield runner


def record(graphs: CudaGraphRunner, keys: Iterable[Key]) -> list[Key]:
    """Capture graphs with these keys. Returns those that will be replayed."""
    ran: list[Key] = []
    for key in keys:
        assert key not in graphs.graphs, "captured twice"
        graphs.graphs[key] = Recorded(key, ran)  # type: ignore[assignment]
    return ran


def test_every_number_of_rows_takes_a_graph_of_its_own_loop_length(runner: ModelRunner) -> None:
    steps = record(runner.decode_graphs, runner.decode_keys())
    first = record(runner.first_graphs, runner.first_keys())
    main = runner.model.spec.num_evals
    for evals in sorted(runner.evals):
        for count in range(1, SLOTS + 1):
            rows = [
                Sequence(i, 4, 4, evals, 0, 0.1, True, slot=i, num_scheduled=1)
                for i in range(count)
            ]
            runner.decode(rows)
            runner._launch_first_frame(rows)
            batch = min(b for b in BATCH_SIZES if b >= count)
            assert steps[-1][2] == first[-1][2] == evals
            assert steps[-1][0] == batch if evals == main else count <= steps[-1][0] <= 4 * count
            assert first[-1][0] >= count
    assert runner.decode_graphs.eager_calls == runner.first_graphs.eager_calls == 0


@pytest.mark.parametrize("slots", [1, 3, 20, 64, 200])
def test_steps_and_frames_0_fit_into_what_is_captured(slots: int) -> None:
    with torch.inference_mode():
        sizes = default_batch_sizes(slots)
        runner = Bench(
            FIXTURES / "voxcpm2", "cpu", torch.float32, slots=slots, batch_sizes=sizes
        ).runner
    spec = runner.model.spec
    runner.evals = {*spec.captured_evals, spec.num_evals}
    for graphs, keys in (
        (runner.decode_graphs, runner.decode_keys()),
        (runner.first_graphs, runner.first_keys()),
    ):
        record(graphs, keys)
        for evals in runner.evals:
            for rows in range(1, slots + 1):
                key = graphs.covering_key((rows, 1, evals), least=1)
                assert key in graphs.graphs
                assert key[0] >= rows
                assert key[2] == evals
        assert graphs.covering_key((1, 1, spec.num_evals), least=1)[0] == 1


def test_a_loop_of_its_own_is_taken_before_fewer_rows_of_a_longer_one(runner: ModelRunner) -> None:
    graphs = runner.decode_graphs
    record(graphs, [(2, 4, 9), (32, 4, 5), (4, 4, 5), (1, 4, 24)])
    assert graphs.covering_key((2, 4, 5), least=1) == (4, 4, 5)
    assert graphs.covering_key((1, 4, 8), least=1) == (2, 4, 9)
    assert graphs.covering_key((3, 4, 9), least=1) == (3, 4, 9)  # no graph covers it
    assert graphs.covering_key((1, 1, 1)) == (1, 4, 24)


@pytest.mark.parametrize("most", [tokens for tokens, _ in LEVELS])
@pytest.mark.parametrize("family", ["voxcpm2", "fish_s2"])
def test_prefills_of_any_tokens_fit_into_what_is_captured(family: str, most: int, tmp_path) -> None:
    """Prompts with any number of given frames, and with frames that are replayed."""
    with torch.inference_mode():
        runner = Bench(checkpoint(family, tmp_path), "cpu", torch.float32).runner
    runner.sizes = replace(runner.sizes, prefill_tokens=most)
    graphs = runner.prefill_graphs
    record(graphs, runner.prefill_keys())
    for tokens in range(1, most + 1):
        for need in (
            (tokens, 0, 0),
            (tokens, tokens // 3, 0),
            (tokens, tokens, 0),
            (tokens, 0, tokens),
        ):
            if need[1] == 0 or runner.model.spec.gives_frames:
                key = graphs.covering_key(need, least=1)
                assert key in graphs.graphs, need
                assert bool(key[2]) == bool(need[2])


def test_a_prompt_takes_no_graph_that_replays_frames_where_its_own_failed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Such a graph reads other inputs."""
    small_shapes(monkeypatch)
    with TTS("dummy:toy", dtype="float64", max_num_seqs=1, memory_gb=0.002) as tts:
        capture_prefills(tts)
        graphs = tts.engine.runner.prefill_graphs
        want = tts.generate("abc", seed=1, max_frames=5).samples
        for key in [k for k in graphs.graphs if k[0] < TOKENS and not k[2]]:
            del graphs.graphs[key]
        assert (4, 0, 4) in graphs.graphs
        np.testing.assert_allclose(
            tts.generate("abc", seed=1, max_frames=5).samples, want, atol=1e-6
        )
        assert graphs.eager_calls == 0


@pytest.mark.parametrize("slots", [1, 3, 20, 64])
@pytest.mark.parametrize("model", ["dummy:toy", "dummy:toy-utterance"])
def test_codec_calls_fit_into_what_is_captured(model: str, slots: int) -> None:
    """Chunks of any length and number of rows, at the end of their stream or not, and utterances as a whole."""
    with TTS(model, max_num_seqs=slots, memory_gb=0.01) as tts:
        codec = tts.engine.codec
        rows = [Sequence(i, 4, 4, 0, 0, 0.1, True, slot=i) for i in range(slots)]
        shapes = codec.calls.captured_shapes(slots)
        record(codec.graphs, shapes)
        lengths = {shape.decodes for shape in shapes}
        longest = max(shape.reads for shape in shapes)
        for count in range(1, longest + 1):
            for waiting in range(1, slots + 1):
                last = count not in lengths
                jobs = [AudioJob(seq, 0, count, last, count) for seq in rows[:waiting]]
                parts = codec.parts(jobs)
                assert sum(map(len, parts)) == waiting
                for part in parts:
                    assert codec.calls.shape(part, codec.captured) in codec.graphs.graphs


def test_fewer_steps_are_captured_of_other_loop_lengths(runner: ModelRunner) -> None:
    """Each holds the whole flow, and all would lengthen a start."""
    keys, main = list(runner.decode_keys()), runner.model.spec.num_evals
    captured = {
        evals: sorted({rows for rows, _, n in keys if n == evals}) for evals in runner.evals
    }
    assert captured.pop(main) == [*BATCH_SIZES]
    assert set(map(tuple, captured.values())) == {(1, 4, 16, 32)}

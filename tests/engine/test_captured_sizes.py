"""Steps and frames 0 of every number of rows take a graph, also where `emit` loops another number of times."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pytest
import torch

from stentor.engine.cuda_graphs import CudaGraphRunner
from stentor.engine.model_runner import ModelRunner
from stentor.engine.sequence import Sequence
from tests.helpers.tiny import FIXTURES, Bench

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
        runner = Bench(FIXTURES / "voxcpm2", "cpu", torch.float32, slots=SLOTS, batch_sizes=BATCH_SIZES).runner
        runner.evals = {*runner.model.spec.captured_evals, runner.model.spec.num_evals}
        yield runner


def record(graphs: CudaGraphRunner, keys: Iterable[Key]) -> list[Key]:
    """Which of the graphs with these keys will be replayed."""
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
            rows = [Sequence(i, 4, 4, evals, 0, 0.1, True, slot=i, num_scheduled=1) for i in range(count)]
            runner.decode(rows)
            runner._launch_first_frame(rows)
            batch = min(b for b in BATCH_SIZES if b >= count)
            assert steps[-1][2] == first[-1][2] == evals
            assert steps[-1][0] == batch if evals == main else count <= steps[-1][0] <= 4 * count
            assert first[-1][0] >= count
    assert runner.decode_graphs.eager_calls == runner.first_graphs.eager_calls == 0


def test_fewer_steps_are_captured_of_other_loop_lengths(runner: ModelRunner) -> None:
    """Each holds the whole flow, and all would lengthen a start."""
    keys, main = list(runner.decode_keys()), runner.model.spec.num_evals
    captured = {evals: sorted({rows for rows, _, n in keys if n == evals}) for evals in runner.evals}
    assert captured.pop(main) == [*BATCH_SIZES]
    assert set(map(tuple, captured.values())) == {(1, 4, 16, 32)}

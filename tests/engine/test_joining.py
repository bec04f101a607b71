"""A request whose frame 0 is made by a decode step, beside the next frames of others, speaks as it does alone."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from stentor.config import Policy
from stentor.engine.model_runner import ModelRunner
from stentor.engine.sequence import Sequence
from stentor.models.base import Prompt
from tests.helpers.tiny import DEVICE, EVERY, FIXTURES, Bench, checkpoint

FRAMES = 4
TEXTS = ("The first one runs already.", "Another joins it.")
FAMILIES = (*EVERY, "voxcpm2_window")


def bench_with(family: str, folder: Path) -> tuple[Bench, list[tuple[Sequence, Prompt]]]:
    folder.mkdir()
    bench = Bench(checkpoint(family, folder), DEVICE, torch.float32)
    return bench, [bench.admit(family, slot, seed=slot, text=text) for slot, text in enumerate(TEXTS)]


def decoded(bench: Bench, sequences: list[Sequence], count: int) -> None:
    for _ in range(count):
        for seq in sequences:
            seq.num_scheduled += 1
        bench.runner.decode(sequences)


def made(bench: Bench, slot: int, frames: int) -> Tensor:
    return bench.runner.slots.frames[slot, :frames].clone().cpu()


@pytest.mark.parametrize("family", FAMILIES)
def test_frames_of_a_row_that_joins_and_of_those_it_joins_are_those_of_each_alone(family: str, tmp_path: Path) -> None:
    with torch.inference_mode():
        bench, group = bench_with(family, tmp_path / "alone")
        for one in group:
            bench.runner.prefill([one])
            decoded(bench, [one[0]], FRAMES)
        wanted = [made(bench, slot, FRAMES) for slot in range(2)]
        used = bench.runner.kv.pool.clone()

        bench, (first, second) = bench_with(family, tmp_path / "joined")
        bench.runner.prefill([first])
        decoded(bench, [first[0]], 1)
        second[0].joins, second[0].num_scheduled = True, 0
        bench.runner.prefill([second])
        assert bench.runner.slots.table["step"][:2].tolist() == [2, 0]
        decoded(bench, [first[0], second[0]], FRAMES - 1)
        found = [made(bench, 0, FRAMES), made(bench, 1, FRAMES - 1)]
    assert bench.runner.slots.table["pos"][1] == second[1].length + FRAMES - 2
    for want, got in zip(wanted, found, strict=True):
        if want.is_floating_point():
            assert torch.allclose(got, want[: len(got)], atol=1e-4)
        else:
            assert torch.equal(got, want[: len(got)])
    pages = torch.tensor(second[0].pages[: second[1].length // bench.sizes.page_size])
    assert len(pages)
    assert torch.allclose(bench.runner.kv.pool[:, :, pages], used[:, :, pages], atol=1e-4), "its prompt was overwritten"


def test_a_row_that_joins_alone_makes_its_frame_0(tmp_path: Path) -> None:
    """Those that it was to join may have failed."""
    with torch.inference_mode():
        bench, group = bench_with("voxcpm2", tmp_path / "alone")
        bench.runner.prefill([group[0]])
        wanted = made(bench, 0, 1)
        bench, group = bench_with("voxcpm2", tmp_path / "joined")
        seq = group[0][0]
        seq.joins, seq.num_scheduled = True, 0
        bench.runner.prefill([group[0]])
        assert not made(bench, 0, 1).any()
        decoded(bench, [seq], 1)
        assert torch.allclose(made(bench, 0, 1), wanted, atol=1e-5)


def runner_with_graphs(rows: int) -> tuple[ModelRunner, dict[str, list[tuple[int, ...]]]]:
    """A runner for which a GPU would capture several loop lengths, and the keys of its graphs. rows: that may join."""
    settings = {"policy": Policy(join_rows=rows), "batch_sizes": (1, 2, 4, 8, 16, 24, 32)}
    runner = Bench(FIXTURES / "voxcpm2", "cpu", torch.float32, slots=32, **settings).runner
    runner.evals = {*runner.model.spec.captured_evals, runner.model.spec.num_evals}
    keys = {"decode": list(runner.decode_keys()), "frame 0": list(runner.first_keys())}
    for graphs in (runner.decode_graphs, runner.first_graphs):
        graphs.graphs = dict.fromkeys(keys[graphs.name])
    return runner, keys


def test_steps_with_rows_that_join_are_captured_only_where_rows_join() -> None:
    """They would lengthen each start."""
    for rows, variants in ((0, {0}), (16, {0, 1})):
        runner, keys = runner_with_graphs(rows)
        assert {key[-1] for key in keys["decode"]} == variants
        assert {key[2] for key in keys["decode"] if key[-1]} <= {runner.model.spec.num_evals}
        assert len(keys["decode"]) == len(set(keys["decode"]))


def test_every_number_of_rows_has_a_graph_of_its_own_loop_length() -> None:
    """Also where `emit` loops another number of times, for which fewer sizes are captured."""
    runner, keys = runner_with_graphs(16)
    main, pages = runner.model.spec.num_evals, runner.sizes.max_pages
    for evals in runner.evals:
        for count in range(1, 33):
            batch = min(b for b in runner.batch_sizes if b >= count)
            found = runner.decode_graphs.covering_key((batch, pages, evals, 0), exact=2)
            first = runner.first_graphs.covering_key((count, pages, evals), exact=1)
            assert found in keys["decode"]
            assert first in keys["frame 0"]
            assert found[2] == first[2] == evals
            assert found[0] == batch if evals == main else count <= found[0] <= max(4 * count, 4)
    assert runner.decode_graphs.covering_key((2, pages, min(runner.evals), 1), exact=1) == (2, pages, main, 1)

"""Batches of prefills in static buffers."""

from __future__ import annotations

import pytest
import torch

from stentor.engine.running.prefill_batch import BatchShape, PrefillBuffers
from tests.helpers.prefill import write
from tests.helpers.tiny import DEVICE, EVERY, Bench, checkpoint


@pytest.mark.parametrize("family", EVERY)
def test_no_two_tokens_of_a_batch_claim_a_place_in_the_cache_unless_they_are_alike(
    family, tmp_path
):
    bench = Bench(checkpoint(family, tmp_path), DEVICE, torch.float32)
    spec, slots = bench.model.spec, bench.sizes.slots
    group = [bench.admit(family, i, seed=i) for i in range(slots)]
    for tokens, rows in ((32, 1), (96, 1), (128, slots)):
        for frames in (0, tokens) if spec.takes_reference else (0,):
            size = BatchShape(tokens, rows, frames)
            bench.runner.prefill_buffers = PrefillBuffers(spec, size, slots, bench.where)
            write(bench, group, size)
            batch = bench.runner.prefill_buffers.batch(size)
            places = list(zip(batch.slot.tolist(), batch.pos.tolist(), strict=True))
            spoken = [place for place in places if place[0] != slots]
            padding = torch.tensor([place[0] == slots for place in places])
            at = [n for n in batch.prompt.frame_at.tolist() if n < tokens]
            assert len(spoken) == len(set(spoken)) >= 14
            assert set(places) - set(spoken) <= {(slots, 0)}
            assert len(at) == len(set(at))
            assert bool(at) == bool(frames)
            assert not padding[at].any()
            assert (batch.prompt.frames[len(at) :] == 0).all()
            for name, column in spec.prompt_rows.items():
                assert (batch.prompt.rows[name].cpu()[padding] == column.fill).all()

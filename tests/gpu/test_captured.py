"""What only a GPU can show: captured steps equal eager ones, and steady serving never waits for the device."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
import torch

from stentor import TTS
from stentor.engine.prefill_batch import Group, Layout, StaticPrefill
from tests.helpers.tiny import DEVICE, FAMILIES, TEXT, VOICE, Bench, checkpoint

STREAMS, FRAMES = 4, 40
GIVEN = 8  # codes that every codebook has


def options(tts: TTS, family: str) -> dict:
    return {**VOICE[family], "max_frames": FRAMES} | ({"ignore_eos": True} if "ignore_eos" in tts.spec.options else {})


def cut(bench: Bench, group: Group, size: Layout) -> Group:
    """Requests of `group`, a row less than there is room for where there is room for several, shortened to fit; every
    other token carries a given frame as long as there is room."""
    frame, count = bench.model.spec.frame, max(1, min(len(group), size.rows - 1))
    out = []
    for seq, prompt in group[:count]:
        length = min(prompt.length, size.tokens // count)
        given = min(length // 2, size.frames // count)
        shape = (given, *frame.shape)
        frames = torch.randn(shape) if frame.dtype.is_floating_point else torch.randint(GIVEN, shape, dtype=frame.dtype)
        rows = {name: values[:length] for name, values in prompt.rows.items()}
        at = torch.arange(given).numpy() * 2
        out.append((seq, replace(prompt, rows=rows, frames=frames.numpy(), frame_at=at)))
    return out


def write(bench: Bench, group: Group, size: Layout) -> None:
    """A batch into the buffers of captured prefills. Tokens of padding are all alike: they share a place in the cache."""
    packed = bench.worker.packed
    for name, column in bench.model.spec.prompt_rows.items():
        packed.rows[name].fill_(column.fill)
    packed.frames.zero_()
    packed.write(cut(bench, group, size), size)


@pytest.mark.parametrize("family", FAMILIES)
def test_no_two_tokens_of_a_batch_claim_a_place_in_the_cache_unless_they_are_alike(family, tmp_path):
    bench = Bench(checkpoint(family, tmp_path), DEVICE, torch.float32)
    spec, slots = bench.model.spec, bench.sizes.slots
    group = [bench.admit(family, i, seed=i) for i in range(slots)]
    for tokens, rows in ((32, 1), (96, 1), (128, slots)):
        for frames in (0, tokens) if spec.takes_reference else (0,):
            size = Layout(tokens, rows, frames)
            bench.worker.packed = StaticPrefill(spec, size, slots, bench.where)
            write(bench, group, size)
            batch = bench.worker.packed.batch(size, 0)
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


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("family", FAMILIES)
def test_every_captured_graph_does_what_its_function_does(family, dtype, tmp_path):
    bench = Bench(checkpoint(family, tmp_path), "cuda", dtype, slots=4, require_graphs=True)
    w = bench.worker
    w.warm_up()
    group = [bench.admit(family, i, seed=i) for i in range(4)]
    held = [*w.slots.table.values(), w.slots.frames, w.slots.report, w.kv.pool, *w.state.values()]
    torch.manual_seed(3)
    with torch.inference_mode():
        w.kv.pool.normal_()
        w.slots.table["pos"][:4] = torch.tensor([3, 17, 9, 30], device="cuda")
        w.slots.table["step"][:4] = 2
        w.idx.fill_(4)
        w.idx[:4] = torch.arange(4, device="cuda")
        w.codec_in[0, :4] = torch.arange(4, device="cuda")
        before = [t.clone() for t in held]
        for ladder in w._ladders:
            assert ladder.graphs
            assert not ladder.failed
            for key in ladder.graphs:
                after = []
                if ladder is w.prefill_ladder:
                    torch.cuda.synchronize()
                    write(bench, group, Layout(*key[:3]))
                for run in (ladder, ladder.fn):
                    for t, value in zip(held, before, strict=True):
                        t.copy_(value)
                    torch.cuda.synchronize()
                    with ladder.stream.active():
                        run(*key)
                    torch.cuda.synchronize()
                    after.append([t.clone() for t in held])
                for captured, eager in zip(*after, strict=True):
                    assert torch.equal(captured.nan_to_num(), eager.nan_to_num()), f"{ladder.name}{key}"


@pytest.mark.gpu
@pytest.mark.parametrize("family", FAMILIES)
def test_serving_does_not_wait_for_the_device(family, tmp_path):
    """Admission, prefill, steps and audio, with streams that join the running ones; a hidden wait would raise."""
    with TTS(checkpoint(family, tmp_path), device="cuda", max_num_seqs=STREAMS, memory_gb=0.1) as tts:
        started = threading.Barrier(STREAMS)

        def speak(seed: int) -> int:
            stream = tts.submit(tts.request(TEXT, seed=seed, **options(tts, family)))
            started.wait(20)
            return sum(len(c.frames) for c in stream)

        tts.generate(TEXT, retries=1, **options(tts, family))
        eager = tts.engine.health().eager_calls
        torch.cuda.set_sync_debug_mode("error")
        try:
            with ThreadPoolExecutor(STREAMS) as pool:
                made = list(pool.map(speak, range(STREAMS)))
        finally:
            torch.cuda.set_sync_debug_mode("default")
        health = tts.engine.health()
    assert made == [FRAMES] * STREAMS
    assert health.stats.failed == 0
    assert health.eager_calls == eager == 0

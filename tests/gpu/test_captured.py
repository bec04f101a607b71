"""Promises that only a GPU can show: captured steps equal eager ones, and steady serving never waits for the device."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch

from stentor import TTS, registry
from stentor.engine.running.codec_calls import CallShape
from stentor.engine.running.device import BACKGROUND, Device
from stentor.engine.voice import EncoderGraphs
from stentor.layers.types import ADAPTER, NO_END, Eager
from stentor.layers.windows import COLUMNS
from stentor.models.base import Prompt
from tests.helpers.prefill import write
from tests.helpers.tiny import (
    EVERY,
    FAMILIES,
    FIXTURES,
    TEXT,
    VOICE,
    Bench,
    checkpoint,
    reference_checkpoint,
)

pytestmark = pytest.mark.gpu
STREAMS, FRAMES = 4, 40


def options(tts: TTS, family: str) -> dict:
    return {**VOICE[family], "max_frames": FRAMES} | (
        {"ignore_eos": True} if "ignore_eos" in tts.spec.options else {}
    )


CASES = [(family, dtype, {}) for family in EVERY for dtype in (torch.float32, torch.bfloat16)]
CASES += [
    (family, torch.bfloat16, {"quantization": bits})
    for family in FAMILIES
    for bits in ("int8", "fp8")
]
CASES += [(family, torch.bfloat16, {"max_loras": 2, "max_lora_rank": 8}) for family in FAMILIES]
CASES += [("voxcpm2_window", dtype, {}) for dtype in (torch.float32, torch.bfloat16)]
CASES += [
    (family, torch.bfloat16, {"max_loras": 2, "max_lora_rank": 8, "quantization": "int8"})
    for family in FAMILIES
]


def fill_adapters(bench: Bench) -> None:
    """Random weights in every slot, and rows that use them."""
    if bench.model.adapters.count:
        for place in bench.model.adapters._places.values():
            place.layer.lora_a.normal_(std=0.1)
            place.layer.lora_b.normal_(std=0.1)
        bench.runner.slots.table[ADAPTER][:4] = torch.tensor([0, 1, 2, 1], device="cuda")


@pytest.mark.parametrize(("family", "dtype", "load"), CASES)
def test_every_captured_graph_does_what_its_function_does(family, dtype, load, tmp_path):
    bench = Bench(
        checkpoint(family, tmp_path), "cuda", dtype, slots=4, load=load, require_graphs=True
    )
    w = bench.runner
    bench.where.synchronize()
    with torch.inference_mode():
        bench.capture()
    group = [bench.admit(family, i, seed=i) for i in range(4)]
    buffers = [
        *w.slots.table.values(),
        w.slots.frames,
        w.slots.report,
        w.slots.attended,
        *w.slots.hidden,
        w.kv.pool,
        *bench.codec.states.columns.values(),
    ]
    torch.manual_seed(3)
    with torch.inference_mode():
        fill_adapters(bench)
        w.kv.pool.normal_()
        for hidden in w.slots.hidden:
            hidden.normal_()
        w.slots.table["pos"][:4] = torch.tensor([3, 17, 9, 30], device="cuda")
        w.slots.table["step"][:4] = 2
        w.slots.attended[..., :1] = 3.0
        w.idx.fill_(4)
        w.idx[:4] = w.first_idx[:4] = torch.arange(4, device="cuda")
        before = [t.clone() for t in buffers]
        for graphs in (*w.graph_runners, bench.codec.graphs):
            assert graphs.graphs
            assert not graphs.failed
            for key in graphs.graphs:
                after = []
                if graphs is w.prefill_graphs:
                    torch.cuda.synchronize()
                    write(bench, group, w.prefill_shape(*key))
                if graphs is bench.codec.graphs:
                    write_chunks(bench, CallShape(*key))
                for run in (graphs, graphs.fn, graphs.fn):
                    for t, value in zip(buffers, before, strict=True):
                        t.copy_(value)
                    torch.cuda.synchronize()
                    with graphs.stream.active():
                        run(*key)
                    torch.cuda.synchronize()
                    after.append([t.clone() for t in buffers])
                for captured, eager, again in zip(*after, strict=True):
                    assert torch.equal(captured.nan_to_num(), eager.nan_to_num()), (
                        f"{graphs.name}{key}, function twice equal: {torch.equal(eager, again)}"
                    )


def write_chunks(bench: Bench, shape: CallShape) -> None:
    """The codec's next call has the first frames of these slots, whose streams go on."""
    slots = list(range(shape.rows))
    zeros = [0] * shape.rows
    stops = [shape.decodes] * shape.rows
    ends = [NO_END] * shape.rows
    bench.codec.device.fill(bench.codec.inputs, [*slots, *zeros, *zeros, *stops, *ends])


@pytest.mark.parametrize("path", ["dummy:toy", FIXTURES / "voxcpm2"])
def test_the_codec_is_primed_by_graphs_as_it_is_eagerly(path):
    bench = Bench(path, "cuda", torch.float32, require_graphs=True, codec_states_mb=0)
    primer, shape = bench.primer, bench.model.spec.frame.shape
    bench.where.synchronize()
    frames = np.random.default_rng(0).random((7, *shape)).astype(np.float32)
    prompt = Prompt({}, frames, np.zeros(0), {}, 1, 0, codec_prefix=frames, voice="v")
    eager = primer.claim(prompt).result()
    calls = primer.graphs.eager_calls
    with torch.inference_mode():
        primer.capture()
    assert torch.equal(primer.claim(prompt).result(), eager)
    assert primer.graphs.eager_calls == calls > 0
    primer.close()


@pytest.mark.parametrize("family", FAMILIES)
def test_references_are_encoded_by_graphs_as_they_are_eagerly(family, tmp_path):
    where = Device("cuda")
    model = registry.load(reference_checkpoint(family, tmp_path), where.torch, torch.bfloat16, {})
    stream = where.stream(BACKGROUND)
    plain = Eager(COLUMNS[0])
    launch = EncoderGraphs(where, stream, required=True, columns=plain.columns)
    wav, counts = (
        torch.randn(200_000, device="cuda") * 0.1,
        (200_000, 190_001),
    )  # whose last windows differ in size
    where.synchronize()
    with torch.inference_mode(), stream.active():
        with launch.capturing():
            for count in counts:
                model.encode(wav[:count], "reference", launch)
        for count in counts:
            got = {
                name: value.clone()
                for name, value in model.encode(wav[:count], "reference", launch).items()
            }
            want = model.encode(wav[:count], "reference", plain)
            assert all(torch.equal(got[name], want[name]) for name in want)
    assert launch.graphs.graphs
    assert not launch.graphs.failed
    assert launch.graphs.eager_calls == 0


@pytest.mark.parametrize("family", EVERY)
def test_every_graph_is_captured_before_the_engine_is_ready_and_serves(family, tmp_path):
    """None fails, and no call runs eagerly."""
    with TTS(
        checkpoint(family, tmp_path),
        device="cuda",
        max_num_seqs=4,
        memory_gb=0.1,
    ) as tts:
        runner = tts.engine.runner
        assert not any(graphs.failed for graphs in tts.engine.side.graph_runners)
        assert set(runner.decode_graphs.graphs) == set(runner.decode_keys())
        assert set(runner.prefill_graphs.graphs) == set(runner.prefill_keys())
        tts.generate([TEXT] * 3, seed=1, retries=1, **options(tts, family))
        assert tts.engine.health().eager_calls == 0


@pytest.mark.filterwarnings(
    "default:Synchronization debug mode:UserWarning"
)  # torch says that it misses some waits
@pytest.mark.parametrize("family", EVERY)
def test_serving_does_not_wait_for_the_device(family, tmp_path):
    """Admission, prefill, steps and audio, with an utterance that is not streamed; a hidden wait would raise."""
    with TTS(
        checkpoint(family, tmp_path),
        device="cuda",
        max_num_seqs=STREAMS,
        memory_gb=0.1,
    ) as tts:
        started = threading.Barrier(STREAMS)

        def speak(seed: int) -> int:
            stream = tts.submit(
                tts.request(TEXT, seed=seed, **options(tts, family)), streaming=seed > 0
            )
            started.wait(60)
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

"""Sizing: pages from what is free, within every limit that was given, reported at start."""

import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from stentor import TTS, InvalidRequest, registry
from stentor.config import EngineConfig
from stentor.engine.memory import CODEC_COPIES, ENCODER_COLUMNS, ENCODER_COPIES, plan_memory
from stentor.engine.running.device import Device
from stentor.engine.sizes import (
    CODEC_FRAMES,
    CODEC_SHARE,
    CONTEXT,
    GIB,
    GRAPHS,
    WORKSPACE,
    BufferSizes,
)
from stentor.errors import EngineError
from stentor.layers.types import Eager
from stentor.models.toy.model import Toy

HALF = GIB / 2 / 0.9  # of which 0.9 may be taken


class Gpu(Device):
    """A CPU that answers as a GPU with `free` bytes does, `taken` of them by weights."""

    def __init__(self, free: float, taken: float, codec: int = 0) -> None:
        super().__init__("cpu")
        self.cuda, self.free, self.taken, self.codec = True, int(free), int(taken), codec

    def free_bytes(self) -> int:
        return self.free

    def release_cached(self) -> None:
        pass

    def allocated_bytes(self) -> int:
        return self.taken

    def peak_bytes(self, run: Callable[[], object]) -> int:
        run()
        return self.codec


def sizes(free: float, taken: float = 0.0, **config: float) -> BufferSizes:
    model = Toy(0, torch.float32, torch.device("cpu"))
    return plan_memory(model, EngineConfig(max_num_seqs=4, **config), Gpu(free * GIB, taken * GIB))


def pages_bytes(s: BufferSizes) -> int:
    return s.pages * s.page_bytes


def test_pages_rows_and_graphs_stay_within_the_share_of_what_is_free():
    s = sizes(free=0.002)
    assert 0 < pages_bytes(s) + s.slots * s.slot_bytes <= 0.9 * 0.002 * GIB
    assert pages_bytes(sizes(free=0.002, gpu_memory_utilization=0.6)) < pages_bytes(s)


def test_memory_for_encoding_references_is_left_free():
    model = Toy(0, torch.float32, torch.device("cpu"))
    asked = []
    model.encode = lambda wav, role, *launch: asked.append((len(wav), *launch))
    found = plan_memory(model, EngineConfig(max_num_seqs=4), Gpu(HALF, 0, 40 << 20))
    assert found.encoder_bytes == ENCODER_COPIES * 40 << 20
    assert "encoding of references (80 MiB)" in found.describe()
    share = pytest.approx(0.2 * GIB / 2, abs=2)
    assert (
        plan_memory(model, EngineConfig(max_num_seqs=4), Gpu(HALF, 0, 60 << 20)).encoder_bytes
        == share
    )
    budget = EngineConfig(max_num_seqs=4, max_memory_gb=1 + CONTEXT / GIB)
    all_of_it = plan_memory(
        model, budget, Gpu(HALF, 0, 150 << 20)
    ).encoder_bytes  # it must not be exceeded
    assert all_of_it == ENCODER_COPIES * 150 << 20
    with pytest.raises(EngineError, match=r"0.59 are for encoding references; .* GiB hold 4 slots"):
        plan_memory(model, budget, Gpu(HALF, 0, 300 << 20))
    assert max(count for count, *_ in asked) == int(5.0 * 600)  # the longest

    def full(wav: torch.Tensor, role: str, *launch: Eager) -> None:
        if len(wav) > 600:
            raise torch.OutOfMemoryError

    model.encode = full
    assert plan_memory(model, EngineConfig(max_num_seqs=4), Gpu(HALF, 0)).encoder_bytes == share
    model.spec = replace(model.spec, takes_reference=False)
    more = plan_memory(model, EngineConfig(max_num_seqs=4), Gpu(HALF, 0, 40 << 20))
    assert more.encoder_bytes == 0
    assert pages_bytes(found) <= pages_bytes(more)


@pytest.mark.parametrize(("mib", "columns"), [((50, 10), 1024), ((60, 10), 256), ((90, 80), 256)])
def test_references_are_encoded_in_large_windows_where_there_is_memory(
    mib: tuple[int, int], columns: int
) -> None:
    """mib: what an encoding takes in large and in small windows. 51 may be taken, twice."""
    model, gpu = Toy(0, torch.float32, torch.device("cpu")), Gpu(HALF, 0)
    peaks = dict(zip(ENCODER_COLUMNS, mib, strict=True))

    def encode(wav: torch.Tensor, role: str, *launch: Eager) -> None:
        gpu.codec = peaks[launch[0].columns] << 20 if launch else 0

    model.encode = encode
    found = plan_memory(model, EngineConfig(max_num_seqs=4, max_memory_gb=0.5 + CONTEXT / GIB), gpu)
    assert (found.encoder_columns, found.encoder_bytes) == (
        columns,
        ENCODER_COPIES * peaks[columns] << 20,
    )


def test_codec_calls_are_as_long_as_a_share_of_memory_holds_and_it_is_left_for_them():
    model = Toy(0, torch.float32, torch.device("cpu"))

    def found(codec: int) -> BufferSizes:
        return plan_memory(model, EngineConfig(max_num_seqs=64), Gpu(40 * GIB, 0, codec))

    plenty, dear = found(25 << 20), found(25 << 24)
    assert plenty.codec_frames == CODEC_FRAMES
    assert plenty.codec_bytes == CODEC_COPIES * (CODEC_FRAMES + model.spec.codec_prefix) << 20
    assert 25 <= dear.codec_frames < CODEC_FRAMES
    assert dear.codec_bytes <= CODEC_SHARE * 40 * GIB
    assert found(25 << 30).codec_frames == 25  # one row at least


def test_a_limit_for_everything_counts_the_weights():
    free = sizes(free=0.1)
    limited = sizes(
        free=0.1, taken=0.02, max_memory_gb=0.029 + CONTEXT / GIB
    )  # and what CUDA takes for the process
    assert 0 < pages_bytes(limited) < pages_bytes(free)
    assert pages_bytes(limited) + limited.slots * limited.slot_bytes + 0.02 * GIB <= 0.029 * GIB


def test_slots_for_adapters_are_among_the_sizes_and_are_said() -> None:
    path = Path(__file__).parents[1] / "fixtures" / "voxcpm2"
    for slots, said in ((0, False), (3, True)):
        model = registry.load(path, torch.device("cpu"), None, {"max_loras": slots})
        found = plan_memory(model, EngineConfig(max_num_seqs=1, max_frames=8), Device("cpu"))
        assert found.adapter_bytes == model.adapters.bytes
        assert ("adapters (" in found.describe()) == (found.adapter_bytes > 0) == said


def test_memory_for_pages_is_taken_as_it_is_given():
    assert pages_bytes(sizes(free=1.0, memory_gb=0.0005)) <= 0.0005 * GIB


def test_slots_beside_pages_that_were_asked_for_are_as_many_as_fit() -> None:
    model, pages = Toy(0, torch.float32, torch.device("cpu")), 0.0005
    plenty = plan_memory(model, EngineConfig(memory_gb=pages), Gpu(40 * GIB, 0))
    assert plenty.slots == 64
    beside = pages * GIB + WORKSPACE + GRAPHS
    some = plan_memory(
        model, EngineConfig(memory_gb=pages), Gpu((beside + 20 * plenty.slot_bytes) / 0.9, 0)
    )
    assert some.slots == 16
    assert pages_bytes(some) <= pages * GIB


def test_slots_and_pages_that_cannot_be_are_named_before_they_are_made() -> None:
    model = Toy(0, torch.float32, torch.device("cpu"))
    with pytest.raises(
        EngineError, match=r"64 slots with memory_gb 0\.01 take .* max_num_seqs or memory_gb"
    ):
        plan_memory(model, EngineConfig(memory_gb=0.01, max_num_seqs=64), Gpu(0.005 * GIB, 0))


def test_rows_that_the_host_may_hold_fit_into_their_budget():
    found = sizes(free=1.0)
    assert (
        found.parked(64.0) * found.slot_bytes
        <= 64 * 2**20
        < (found.parked(64.0) + 1) * found.slot_bytes
    )
    assert found.parked(0.0) == 0


def test_no_room_for_a_single_page_is_an_error_that_says_so():
    with pytest.raises(EngineError, match="no memory for key-value pages"):
        sizes(free=0.1, taken=0.05, max_memory_gb=0.01)


@pytest.mark.parametrize("name", ["memory_gb", "max_memory_gb"])
def test_a_limit_below_zero_is_named(name: str):
    with pytest.raises(InvalidRequest, match=name):
        EngineConfig(**{name: -1.0})


def test_what_fits_is_said_at_start(caplog: pytest.LogCaptureFixture):
    with (
        caplog.at_level(logging.INFO, "stentor.engine"),
        TTS("dummy:toy", max_num_seqs=3, memory_gb=0.001) as tts,
    ):
        assert (
            f"3 slots (1 MiB), {tts.engine.sizes.pages} KV pages of 16 tokens (1 MiB), at most 1024 tokens"
            in caplog.text
        )

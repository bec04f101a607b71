"""Kernels of this family, against its reference implementations."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import tests.helpers.kernel_tests  # noqa: F401  (first: it imports the kernels interpreted where there is no GPU)
from stentor.kernels import norm_rope, switches
from stentor.kernels.types import RowRef
from stentor.layers.conv import StreamingState, cast_codec, state_columns
from stentor.layers.rope import angles
from stentor.models.cosyvoice3 import (
    attention_kernels,
    kernels,
    live_text,
    live_text_kernels,
    ops,
)
from stentor.models.cosyvoice3.codec_flow import Attention, Turns
from stentor.models.cosyvoice3.codec_vocoder import ResidualBlock
from stentor.models.cosyvoice3.config import FEED, MARK, LanguageConfig, RasConfig
from stentor.models.cosyvoice3.language_model import sample_ras
from stentor.models.cosyvoice3.live_text import LiveStep
from stentor.models.cosyvoice3.live_text_kernels import FusedStep
from stentor.models.dummy import random_init
from tests.helpers.child import python
from tests.helpers.kernel_tests import DEVICE, DOTS, DTYPES, close, integers, random

pytestmark = pytest.mark.usefixtures("kernel_test")


@pytest.fixture
def reference(monkeypatch: pytest.MonkeyPatch) -> None:
    """Layers run without kernels."""
    monkeypatch.setattr(switches, "AVAILABLE", False)


def turns(rows: int, frames: int, dim: int) -> Turns:
    where = angles(dim, 5000, 1e4)[torch.randint(0, 4000, (rows, frames))].to(DEVICE)
    return Turns(where.cos(), where.sin())


@pytest.fixture(params=[1, attention_kernels.ENOUGH_CTAS], ids=["one split", "splits"])
def splits(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """One CTA reads all keys of a head, or several share them."""
    monkeypatch.setattr(attention_kernels, "ENOUGH_CTAS", request.param)


def room(qkv: torch.Tensor) -> torch.Tensor:
    """Room for the keys and values of a call of wholes."""
    batch, _, frames, width = qkv.shape
    return qkv.new_full((batch, 2, 2, frames, width // 3), float("nan"))


@pytest.mark.parametrize("dtype", DOTS)
@pytest.mark.parametrize(("heads", "frames"), [(3, 50), (2, 130)])
def test_frames_see_their_chunk_and_those_before_or_all_of_a_row_that_has_ended(
    dtype, heads, frames, reference, splits
):
    rope = turns(3, frames, 16)
    count = integers(frames, frames - 21, frames)
    ended = torch.tensor([True, True, False], device=DEVICE)
    qkv = random(3, 2, frames, 3 * 16 * heads, dtype=dtype)
    got = attention_kernels.row_attention(qkv, *rope, (count, ended, 20), heads, room(qkv))
    close(got, Attention(count, ended, 20).attend(qkv, rope))


@pytest.mark.parametrize(
    ("ctas", "blocks", "splits"), [(32, 20, 8), (64, 20, 4), (128, 20, 2), (256, 20, 1), (32, 2, 2)]
)
def test_calls_of_few_rows_are_split(ctas: int, blocks: int, splits: int):
    assert attention_kernels.splits_of(ctas, blocks) == splits


def test_attention_of_a_row_has_the_bits_of_a_call_of_one_row_if_they_must_not_depend_on_rows():
    """By default, the keys of a call of one row have more splits."""
    num_rows, heads, frames = 9, 4, 150
    rope = turns(num_rows, frames, 16)
    count = integers(*[frames] * num_rows)
    ended = count > 0
    qkv = random(num_rows, 2, frames, 3 * 16 * heads)

    def attend(rows: slice) -> torch.Tensor:
        part = qkv[rows]
        turned = Turns(*(x[rows] for x in rope))
        which = (count[rows], ended[rows], 20)
        return attention_kernels.row_attention(part, *turned, which, heads, room(part))

    assert not torch.equal(attend(slice(2, 3)), attend(slice(None))[2:3])
    with switches.batch_invariant(True):
        assert torch.equal(attend(slice(2, 3)), attend(slice(None))[2:3])


def test_a_query_without_keys_so_far_has_an_exact_largest_product():
    """A GPU fuses the product of a masked key and the scale with the subtraction of the largest."""
    masked = attention_kernels.MASKED.value
    for scale in np.float32(attention_kernels.LOG2_E) * np.float32([16, 32, 64]) ** np.float32(
        -0.5
    ):
        assert float(np.float32(masked) * scale) == masked * float(scale)


def test_a_row_without_frames_gives_no_nan(splits):
    qkv, rope = random(1, 2, 70, 96), turns(1, 70, 16)
    rows = (integers(0), torch.tensor([True], device=DEVICE), 20)
    assert attention_kernels.row_attention(qkv, *rope, rows, 2, room(qkv)).isfinite().all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("adds", [True, False])
def test_a_sum_is_normalised_and_modulated(dtype, adds, reference):
    x, delta = random(2, 2, 7, 80, dtype=dtype), random(2, 2, 7, 80, dtype=dtype) if adds else None
    rows = [random(80, dtype=dtype) for _ in range(3)]
    fused = norm_rope.add_modulated_norm(x, delta, *rows, 1e-6, constant=True)
    for got, want in zip(fused, ops.add_norm(x, delta, *rows), strict=True):
        close(got, want)


@pytest.mark.parametrize("dtype", DOTS)
@pytest.mark.parametrize(("frames", "adds"), [(50, True), (70, False)])
@pytest.mark.parametrize("enough", [1, kernels.CONV_CTAS], ids=["two branches of a CTA", "one"])
def test_a_position_convolution_sees_zeros_before_the_first_frame(
    dtype, frames, adds, enough, reference, monkeypatch
):
    monkeypatch.setattr(kernels, "CONV_CTAS", enough)
    conv = nn.Conv1d(32, 32, 31, groups=2, device=DEVICE, dtype=dtype)
    x = random(2, 2, frames, 32, dtype=dtype)
    residual = random(2, 2, frames, 32, dtype=dtype) if adds else None
    got = kernels.position_conv(x, conv.weight, conv.bias, residual)
    close(got, ops.position_conv(conv, x, residual))


def test_a_residual_block_of_the_vocoder_is_as_close_to_float32_with_kernels_as_without(
    monkeypatch,
):
    """Rows that begin inside the call and before it, with steps that are decoded ahead."""
    x, first, past = random(2, 16, 12), integers(4, 0), random(2, 10, 16)
    if DEVICE == "cpu":
        monkeypatch.setattr(switches, "INTERPRETED", True)

    def heard(dtype: torch.dtype) -> torch.Tensor:
        with torch.device(DEVICE):
            block = ResidualBlock(16, 3)
        random_init(block, 0, gain=2.0)
        cast_codec(block, dtype)
        old = {name: past[:, : c.shape[0]].to(dtype) for name, c in state_columns(block).items()}
        ahead = integers(1, 2)
        state = StreamingState(old, ahead, 3)
        with torch.inference_mode():
            y = block(x.to(dtype), first, state)[:, :, 4:]
        return torch.cat(
            [part.double().flatten() for part in (y, *(state.new[name] for name in sorted(old)))]
        )

    fused = heard(torch.float16)
    monkeypatch.setattr(switches, "AVAILABLE", False)
    want, plain = heard(torch.float32), heard(torch.float16)
    assert (fused - want).norm() < 1.5 * (plain - want).norm()
    assert not torch.equal(fused, plain)


def test_large_values_pass_mish():
    conv = nn.Conv1d(32, 32, 31, groups=2, device=DEVICE)
    x = random(1, 2, 50, 32) * 300
    got = kernels.position_conv(x, conv.weight, conv.bias, None)
    assert got.isfinite().all()


def test_ids_of_ranked_logits_are_those_of_the_reference(reference):
    """The kernel draws in the order of ids, which is that of the reference where logits fall. Most first draws are in
    the window, so the second uniform draws from all others."""
    count = 6
    logits = (random(count, 60) * 2).sort(descending=True).values
    logits[1, 50:] = float("-inf")
    u = torch.rand(count, 2, device=DEVICE)
    temperature, top_p = (
        torch.tensor(v, device=DEVICE)
        for v in ([1, 0.7, 1.3, 1, 0, 1], [0.8, 0.5, 1, 0.01, 0.8, 0.9])
    )
    recent = (
        integers(0, 1, 2, 3, 4).expand(count, 5).contiguous(),
        torch.ones(count, 5, dtype=torch.bool, device=DEVICE),
    )
    recent[1][0] = False
    given = (logits, u, temperature, top_p, integers(25, 4, 0, 25, 25, 0), recent, 1.0)
    assert kernels.sample_ras(*given).tolist() == sample_ras(*given).tolist()


def test_logits_that_cannot_be_drawn_from_give_no_id():
    logits = random(2, 50)
    logits[0, 4] = float("nan")
    ones, recent = (
        torch.ones(2, device=DEVICE),
        (integers(0, 0).view(2, 1), torch.zeros(2, 1, device=DEVICE).bool()),
    )
    found = kernels.sample_ras(
        logits, random(2, 2).sigmoid(), ones, ones, integers(0, 0), recent, 1.0
    )
    assert found[0] == -1
    assert found[1] >= 0


def test_every_kernel_compiles_for_a_hopper_gpu():
    done = python("-m", "tests.models.cosyvoice3.compile_kernels", TRITON_INTERPRET="0")
    assert done.returncode == 0, done.stderr[-3000:]


class TableRows:
    """Some rows of a slot table (as models.base.Rows)."""

    def __init__(
        self, table: dict[str, torch.Tensor], frames: torch.Tensor, idx: torch.Tensor
    ) -> None:
        self.table, self.frames, self.idx = table, frames, idx

    def __getitem__(self, name: str) -> torch.Tensor:
        return self.table[name][self.idx].contiguous()

    def lookup(self, name: str, index: torch.Tensor) -> torch.Tensor:
        return self.table[name][self.idx, index]

    def recent(self, count: int) -> tuple[torch.Tensor, torch.Tensor]:
        at = self["step"][:, None] - torch.arange(1, count + 1, device=DEVICE)
        return self.frames[self.idx[:, None], at.clamp_min(0)], at >= 0

    def column(self, name: str) -> RowRef:
        return RowRef(self.table[name], self.idx)

    def history(self) -> RowRef:
        return RowRef(self.frames, self.idx)


LANGUAGE = LanguageConfig(stack=None, theta=1e6, text_vocab=300, codes=60, ras=RasConfig())


def table_rows(slots: int, taken: int) -> TableRows:
    """Rows in every state: before their first frame, behind a code, and behind each kind of fed text."""

    def draw(low: int, high: int, *shape: int) -> torch.Tensor:
        return torch.randint(low, high, (slots, *shape), device=DEVICE)

    frames = torch.where(draw(0, 2, 9, 1) == 1, draw(0, 60, 9, 1), MARK + draw(0, 20, 9, 1))
    table = {
        "step": draw(0, 9),
        "feed": 4 * draw(-1, 9, FEED) + draw(0, 3, FEED),
        "asks": draw(0, 2),
        "taken": draw(0, 9),
        "made_count": draw(0, 3),
        "next_fill": draw(0, 3),
        "silent": draw(0, 8),
        "made": draw(-1, 60, 10),
        "min_frames": draw(0, 9),
        "start_from": draw(0, 9),
    }
    last = (table["step"] - 1).clamp_min(0)
    table["prev"] = frames[torch.arange(slots, device=DEVICE), last]
    return TableRows(table, frames, torch.randperm(slots, device=DEVICE)[:taken])


def test_a_step_with_live_text_is_that_of_the_reference(reference):
    rows, silence = table_rows(400, 390), integers(1, 2, 28, 55)
    fused, want = FusedStep(rows, silence, LANGUAGE), LiveStep(rows, silence, LANGUAGE)
    logits = random(390, 70)
    assert torch.equal(fused.masked(logits), want.masked(logits))
    code = torch.randint(-1, 70, (390,), device=DEVICE)
    code[:60] = silence.repeat(15)
    got, expected = fused.emitted(code), want.emitted(code)
    for name, value in expected.columns.items():
        assert torch.equal(got.columns[name], value), name
    for name in ("frame", "stop", "emitted"):
        assert torch.equal(getattr(got, name), getattr(expected, name)), name
    assert 5 < int(expected.stop.sum()) < 300
    assert 50 < int(expected.emitted.sum()) < 300


def test_what_a_step_feeds_is_that_of_the_reference(reference):
    rows = table_rows(400, 390)
    want = live_text.fed_rows(rows, LANGUAGE)
    got = live_text_kernels.fed_rows(
        rows["prev"], rows["step"], rows.column("feed"), rows.history(), 300
    )
    assert torch.equal(got, want)
    again = rows.lookup("feed", (rows["prev"][:, 0] - MARK).clamp(0, FEED - 1)) < 0
    assert int((again & (rows["prev"][:, 0] >= MARK)).sum()) > 5

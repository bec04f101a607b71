"""The flow meets the official values: with full attention, and in chunks."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from stentor import kernels
from stentor.models.cosyvoice3 import checkpoint
from stentor.models.cosyvoice3.codec_flow import Flow, step_times
from stentor.models.cosyvoice3.codec_noise import flow_noise
from stentor.models.cosyvoice3.config import FlowConfig
from stentor.models.cosyvoice3.ops import by_row
from stentor.models.weights import load_weights, meta_init
from tests.fixtures.cosyvoice3 import tiny_cosyvoice3 as tiny

E = {name: torch.from_numpy(value) for name, value in tiny.expected().items() if value.ndim}
P = tiny.PROMPT
CODES = torch.cat((E["prompt_speech"][:P], E["flow_token"]))
TOTAL = len(CODES)
MOST = 1e-5  # of the largest; the issue allows 1e-4


def error(got: Tensor, want: Tensor) -> float:
    assert got.shape == want.shape
    return float((got - want).abs().max() / want.abs().max())


@pytest.fixture(scope="module")
def flow() -> Flow:
    t = tiny.sizes()
    d = t["dit"]
    c = FlowConfig(
        t["speech_token_size"],
        t["lookahead_channels"],
        d["dim"],
        d["depth"],
        d["heads"],
        d["dim_head"],
        2 * d["dim"],
        0.7,
    )
    with meta_init():
        made = Flow(c)
    load_weights(made, checkpoint.read_flow(tiny.FIXTURE), "flow.pt", torch.device("cpu"))
    made.process_weights_after_loading(flow_noise(), torch.float32)
    return made.requires_grad_(False)


def at(*values: int) -> Tensor:
    return torch.tensor(values)


def solved(flow: Flow, codes: Tensor = CODES, pad: int = 0, ended: bool = True) -> Tensor:
    """Mel frames [80, n] of the generated codes, with `pad` codes of nothing behind them."""
    count = len(codes)
    mu = flow.means(F.pad(codes, (0, pad), value=3)[None], at(count))
    cond = F.pad(E["flow_feat"], (0, 0, 0, 2 * (count + pad) - 2 * P))[None]
    speaker = flow.speaker(E["spk"][None])
    mel = flow.solve(mu, cond, speaker, at(2 * count), torch.tensor([ended]))
    return mel[0, 2 * P : 2 * count].T


def test_times_are_the_accumulated_ones():
    assert torch.equal(step_times().time, E["t_seen"])


def test_full_attention_gives_the_official_mel(flow: Flow):
    assert error(solved(flow), E["mel_full"]) < MOST


def test_the_first_velocities_of_both_branches_are_the_official_ones(flow: Flow):
    seen: list[Tensor] = []
    with flow.dit.register_forward_hook(lambda module, inputs, output: seen.append(output)):
        solved(flow, ended=False)
    want = E["dit_out0"]
    assert error(seen[0][0, :, : want.shape[2]].transpose(1, 2), want) < MOST


def test_padding_behind_a_row_changes_nothing(flow: Flow):
    assert error(solved(flow, pad=9), E["mel_full"]) < MOST


def test_chunks_give_the_official_chunk_masked_mel(flow: Flow):
    assert error(solved(flow, ended=False), E["mel_chunked"]) < MOST


@pytest.mark.parametrize("chunks", [2, 3, 4])
def test_a_chunk_that_is_solved_with_what_exists_so_far_is_that_of_the_whole(
    flow: Flow, chunks: int
):
    """With the three codes ahead, whatever stands behind them."""
    count = 25 * chunks
    so_far = solved(flow, CODES[: count + 3], ended=False)
    frames = 2 * (count - P)
    assert error(so_far[:, :frames], E["mel_chunked"][:, :frames]) < MOST


def test_rows_that_have_ended_and_rows_that_go_on_share_a_call(flow: Flow):
    count = at(2 * TOTAL, 2 * TOTAL)
    mu = flow.means(CODES.expand(2, -1), at(TOTAL, TOTAL))
    cond = F.pad(E["flow_feat"], (0, 0, 0, 2 * TOTAL - 2 * P)).expand(2, -1, -1)
    speaker = flow.speaker(E["spk"].expand(2, -1))
    mel = flow.solve(mu, cond, speaker, count, torch.tensor([True, False]))[:, 2 * P :]
    assert error(mel[0].T, E["mel_full"]) < MOST
    assert error(mel[1].T, E["mel_chunked"]) < MOST


def test_chunks_and_full_attention_are_two_results():
    assert error(E["mel_chunked"], E["mel_full"]) > 0.01


def test_only_the_first_head_has_rope(flow: Flow):
    c = flow.config
    q = torch.randn(1, 2, 9, c.heads, c.head_dim)
    rotated = flow.dit.rope_at(torch.arange(9)[None])(q)
    moved = (rotated != q).any(-1).any(2)[0, 0]
    assert moved.tolist() == [True, *[False] * (c.heads - 1)]


def test_neither_speaker_nor_prompt_enters_the_modulations(flow: Flow):
    """So their weights are gone, and a table of ten steps is left."""
    assert flow.dit.modulations.shape == (10, flow.config.depth, 6, flow.config.dim)
    assert not any("modulation" in name for name, _ in flow.named_parameters())


def test_what_is_missing_behind_the_last_code_is_zero_and_not_code_0(flow: Flow):
    count = len(CODES)
    end = flow.means(CODES[None], at(count))
    other = flow.means(F.pad(CODES, (0, 3), value=9)[None], at(count))
    code_0 = flow.means(F.pad(CODES, (0, 3))[None], at(count + 3))
    assert torch.equal(end, other[:, : 2 * count])
    assert not torch.equal(end, code_0[:, : 2 * count])


def test_a_prompts_last_frames_depend_on_the_codes_behind_it(flow: Flow):
    codes = CODES[None, :28]
    changed = codes.clone()
    changed[0, -1] += 1
    a, b = (flow.means(c, at(28))[:, :50] for c in (codes, changed))
    assert not torch.equal(a[0, -2:], b[0, -2:])
    assert torch.equal(a[0, :-2], b[0, :-2])


def test_the_noise_is_the_official_one_and_the_same_for_every_request():
    assert torch.allclose(flow_noise().T[:3, :4], E["flow_noise_head"], rtol=0, atol=3e-6)


@pytest.mark.parametrize("invariant", [False, True])
def test_operations_of_a_library_see_one_row_where_rows_must_not_depend_on_their_number(
    invariant: bool,
):
    x = torch.randn(12, 5)[1::3]
    calls: list[Tensor] = []

    def double(rows: Tensor) -> Tensor:
        calls.append(rows)
        return 2 * rows

    with kernels.batch_invariant(invariant):
        doubled = by_row(double, x)

    assert torch.equal(doubled, 2 * x)
    if invariant:
        assert [call.shape for call in calls] == [(1, 5)] * 4
        assert all(call.is_contiguous() and call.storage_offset() == 0 for call in calls)
    else:
        assert [call is x for call in calls] == [True]

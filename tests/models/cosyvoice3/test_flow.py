"""The flow meets the official values: whole with full attention, and in cells with kept keys and values."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from stentor.models.cosyvoice3 import checkpoint
from stentor.models.cosyvoice3.codec_flow import PAST, DiT, Flow, KeptKeys, step_times
from stentor.models.cosyvoice3.codec_noise import flow_noise
from stentor.models.cosyvoice3.config import FlowConfig
from stentor.models.weights import load_weights, meta_init
from tests.fixtures.cosyvoice3 import tiny_cosyvoice3 as tiny

E = {name: torch.from_numpy(value) for name, value in tiny.expected().items() if value.ndim}
P, CELL = tiny.PROMPT, 25
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


def whole(flow: Flow, codes: Tensor = CODES, pad: int = 0) -> Tensor:
    """Mel frames [80, n] of the generated codes, with `pad` codes of nothing behind them."""
    n, look = len(codes), flow.config.look
    mu = flow.means(F.pad(codes, (PAST, look + pad))[None], at(0), at(n))
    cond = F.pad(E["flow_feat"], (0, 0, 0, 2 * (n + pad) - 2 * P))[None]
    return flow.whole(mu, cond, flow.speaker(E["spk"][None]), at(2 * n))[0, 2 * P : 2 * n].T


class Streams:
    """Streams of one voice each, in calls of some cells, each in its own row and pages."""

    def __init__(
        self, flow: Flow, streams: list[tuple[Tensor, Tensor, Tensor]], cells: int
    ) -> None:
        """streams: codes [n] with the prompt, the prompt's mel [2 P, 80] and the speaker [192]."""
        self.flow, self.streams, self.cells, self.size = flow, streams, cells, cells * CELL
        c, rows, most = flow.config, len(streams), max(len(s[0]) for s in streams) // CELL + 2
        pages = torch.randperm(rows * most, generator=torch.Generator().manual_seed(0))
        self.table = pages.view(rows, most)
        self.pool = torch.full((rows * most, 10, c.depth, 2, 2, c.heads, 2 * CELL, c.head_dim), 7.0)
        self.state = {n: torch.zeros(rows, *k.shape) for n, k in flow.columns().items()}
        self.done: list[list[Tensor]] = [[] for _ in streams]

    def step(self, rows: list[int]) -> None:
        """The next cells of these rows, in one call."""
        flow, idx = self.flow, torch.tensor(rows)
        cells = at(*(self.cells * len(self.done[r]) for r in rows))
        first, end = CELL * cells, at(*(len(self.streams[r][0]) for r in rows))
        codes = torch.stack([self._codes(r, int(f)) for r, f in zip(rows, first, strict=True)])
        cond = torch.stack([self._cond(r, 2 * int(f)) for r, f in zip(rows, first, strict=True)])
        speaker = flow.speaker(torch.stack([self.streams[r][2] for r in rows]))
        count = (2 * (end - first)).clamp(0, 2 * self.size)
        keys = KeptKeys(self.pool, self.table[idx], cells, count, self.cells)
        state = {n: v[idx] for n, v in self.state.items()}
        mel, new = flow.solve(flow.means(codes, first, end), cond, speaker, 2 * first, keys, state)
        for name, value in new.items():
            self.state[name][idx] = value
        for r, m, n in zip(rows, mel, count, strict=True):
            self.done[r].append(m[:n])

    def _codes(self, row: int, first: int) -> Tensor:
        return F.pad(self.streams[row][0], (PAST, 2 * self.size), value=5)[
            first : first + PAST + self.size + 3
        ]

    def _cond(self, row: int, first: int) -> Tensor:
        return F.pad(self.streams[row][1], (0, 0, 0, 2 * len(CODES)))[first : first + 2 * self.size]

    def mel(self, row: int) -> Tensor:
        return torch.cat(self.done[row])[len(self.streams[row][1]) :].T


def in_cells(flow: Flow, streams: list[tuple[Tensor, Tensor, Tensor]], cells: int = 1) -> Streams:
    """Rows start one call after another."""
    run = Streams(flow, streams, cells)
    for turn in range(20):
        ready = [
            r
            for r, s in enumerate(streams)
            if turn >= r and run.size * len(run.done[r]) < len(s[0])
        ]
        if ready:
            run.step(ready)
    return run


MAIN = (CODES, E["flow_feat"], E["spk"])


def test_times_are_the_accumulated_ones():
    assert torch.equal(step_times().time, E["t_seen"])


def test_full_attention_gives_the_official_mel(flow: Flow):
    assert error(whole(flow), E["mel_full"]) < MOST


def test_the_first_velocities_of_both_branches_are_the_official_ones(flow: Flow):
    seen: list[Tensor] = []
    with flow.dit.register_forward_hook(lambda module, given, out: seen.append(out[0])):
        in_cells(flow, [MAIN])
    assert error(seen[0][0].transpose(1, 2), E["dit_out0"]) < MOST


def test_padding_behind_a_row_changes_nothing(flow: Flow):
    assert error(whole(flow, pad=9), E["mel_full"]) < MOST


@pytest.mark.parametrize("cells", [1, 2])
def test_cells_with_kept_keys_give_the_official_chunk_masked_mel_alone_and_among_others(
    flow: Flow, cells: int
):
    others = [
        (
            torch.cat((E["prompt_speech"][:25], E["flow_token"][:60])),
            E["flow_feat"][:50],
            -E["spk"],
        ),
        (
            torch.cat((E["prompt_speech"][:7], E["flow_token"][5:48])),
            E["flow_feat"][:14],
            E["spk"].flip(0),
        ),
    ]
    together = in_cells(flow, [MAIN, *others], cells)
    assert error(together.mel(0), E["mel_chunked"]) < MOST
    for row, stream in enumerate(others, 1):
        assert error(together.mel(row), in_cells(flow, [stream]).mel(0)) < MOST


def test_cells_and_full_attention_are_two_results():
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
    n = len(CODES)
    end = flow.means(F.pad(CODES, (PAST, 3))[None], at(0), at(n))
    other = flow.means(F.pad(CODES, (PAST, 3), value=9)[None], at(0), at(n))
    code_0 = flow.means(F.pad(CODES, (PAST, 3))[None], at(0), at(n + 3))
    assert torch.equal(end, other)
    assert not torch.equal(end, code_0)


def test_a_prompts_last_cell_depends_on_the_codes_behind_it(flow: Flow):
    """So a cell that ends with the prompt cannot be kept with the voice."""
    given = F.pad(CODES, (PAST, 3))[None, : PAST + CELL + 3]
    other = given.clone()
    other[0, -1] += 1
    a, b = (flow.means(codes, at(0), at(10**6)) for codes in (given, other))
    assert not torch.equal(a[0, -2:], b[0, -2:])
    assert torch.equal(a[0, :-2], b[0, :-2])


def test_the_noise_is_the_official_one_and_the_same_for_every_request():
    assert torch.allclose(flow_noise().T[:3, :4], E["flow_noise_head"], rtol=0, atol=3e-6)


def test_the_transformer_has_tails_for_each_step_and_branch():
    with meta_init():
        dit = DiT(FlowConfig(6561, 1024, 1024, 22, 16, 64, 2048, 0.7))
    assert dit.columns(torch.bfloat16)["dit.0"].shape == (10, 2, 30, 1024)

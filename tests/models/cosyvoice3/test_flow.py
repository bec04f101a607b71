"""The flow meets the official values with full attention."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from stentor.models.cosyvoice3 import checkpoint
from stentor.models.cosyvoice3.codec_dit import step_times
from stentor.models.cosyvoice3.codec_flow import PAST, Flow
from stentor.models.cosyvoice3.codec_noise import flow_noise
from stentor.models.cosyvoice3.config import FlowConfig
from stentor.models.weights import load_weights, meta_init
from tests.fixtures.cosyvoice3 import tiny_cosyvoice3 as tiny

E = {name: torch.from_numpy(value) for name, value in tiny.expected().items() if value.ndim}
P = tiny.PROMPT
CODES = torch.cat((E["prompt_speech"][:P], E["flow_token"]))
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


def test_times_are_the_accumulated_ones():
    assert torch.equal(step_times().time, E["t_seen"])


def test_full_attention_gives_the_official_mel(flow: Flow):
    assert error(whole(flow), E["mel_full"]) < MOST


def test_padding_behind_a_row_changes_nothing(flow: Flow):
    assert error(whole(flow, pad=9), E["mel_full"]) < MOST


def test_the_official_chunk_masks_give_another_result():
    """So an utterance that is not streamed is never solved in cells."""
    assert error(E["mel_chunked"], E["mel_full"]) > 0.01


def test_only_the_first_head_is_turned(flow: Flow):
    c = flow.config
    q = torch.randn(1, 2, 9, c.heads, c.head_dim)
    turned = flow.dit.turn(torch.arange(9)[None])(q)
    moved = (turned != q).any(-1).any(2)[0, 0]
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


def test_the_noise_is_the_official_one_and_the_same_for_every_request():
    assert torch.allclose(flow_noise().T[:3, :4], E["flow_noise_head"], rtol=0, atol=3e-6)

"""Numbers that are not finite fail their own request: in families of floats and of integers, and in no page after it."""

import pytest
import torch

from stentor import TTS, EngineError
from stentor.engine.engine import Engine
from stentor.engine.scheduling.sequence import BROKEN, RUNNING
from stentor.kernels.constants import NO_ID
from stentor.kernels.types import SampleOut, SamplingParams
from stentor.layers.sampling import sample, sample_into
from stentor.layers.types import torch_dtype
from stentor.models.base import Emit
from stentor.models.fish_s2.language_model import rank, sample_ranked
from tests.engine.test_engine import LONG, assert_all_free, assert_equal, toy
from tests.helpers.tiny import Bench, checkpoint

NAN, INF = float("nan"), float("inf")
BAD = torch.tensor([[0.0, NAN, 1.0], [INF, 0.0, 1.0], [-INF, -INF, -INF]])
FINE = torch.tensor([[-INF, 0.0, -INF]]).expand(3, -1)


@pytest.mark.parametrize("temperature", [0.0, 0.9])
@pytest.mark.parametrize("top_k", [0, 2])
@pytest.mark.parametrize("top_p", [0.8, 1.0])
def test_no_id_is_drawn_from_logits_that_are_not_numbers(
    temperature: float, top_k: int, top_p: float
):
    params = SamplingParams(*(torch.full((3,), v) for v in (0.5, temperature, top_k, top_p)))
    for draw in (sample, lambda logits, *p: sample_ranked(rank(logits), *p)):
        assert draw(BAD, *params).tolist() == [NO_ID] * 3
        assert draw(FINE, *params).tolist() == [1] * 3


def test_a_row_without_an_id_goes_on_with_some_embedding():
    params = SamplingParams(*(torch.full((3,), v) for v in (0.5, 0.9, 0, 1.0)))
    x, table = torch.zeros(3, 1, 4), torch.randn(3, 4)
    sample_into(BAD, params, SampleOut(torch.zeros(3, dtype=torch.int64), table, x))
    assert torch.equal(x[:, 0], table[:1].expand(3, -1))


@pytest.mark.parametrize("family", ["fish_s2", "qwen3_tts"])
def test_a_code_below_zero_breaks_its_row_and_no_other(family, tmp_path):
    bench = Bench(checkpoint(family, tmp_path), "cpu", torch.float32)
    slots, spec = bench.runner.slots, bench.model.spec
    idx = torch.tensor([0, 1])
    slots.table["stop"][idx] = RUNNING
    slots.table["max_frames"][idx] = 9
    slots.table["step"][idx] = 0
    frame = torch.ones(2, *spec.frame.shape, dtype=torch_dtype(spec.frame.dtype))
    frame[1, -1] = NO_ID
    rows = slots.rows(idx, 0)
    columns = {name: rows[name] for name in spec.columns if name == "seen"}
    slots.commit(rows, Emit(frame, torch.zeros(2, dtype=torch.bool), columns), None)
    assert slots.table["stop"][idx].tolist() == [RUNNING, BROKEN]
    assert slots.table["step"][idx].tolist() == [1, 0]


def poisoned(tts: TTS, patch: pytest.MonkeyPatch) -> None:
    """From now on prompts with a "z" have embeddings that are not numbers."""
    plain = tts.engine.model.embed_prompt

    def embed(p, rows):
        x = plain(p, rows)[0]
        return (torch.where((p.rows["token"] == ord("z"))[:, None], NAN, x),)

    patch.setattr(tts.engine.model, "embed_prompt", embed)


def test_keys_and_values_that_are_not_numbers_do_not_reach_the_next_owner_of_their_pages(
    monkeypatch,
):
    with toy(max_num_seqs=1, page_size=16, memory_gb=0.0001) as tts:
        want = tts.generate("hello", seed=1, **LONG)
        poisoned(tts, monkeypatch)
        for _ in range(3):
            with pytest.raises(EngineError, match="not finite"):
                tts.generate("z" * 150, seed=1, **LONG)
        assert_equal(tts.generate("hello", seed=1, **LONG), want)
        assert isinstance(tts.engine, Engine)
        assert_all_free(tts)

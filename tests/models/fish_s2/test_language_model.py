"""The two transformers and one step of the loop, against the float64 oracle and against hand-made rows."""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.stats import chisquare

from stentor import registry
from stentor.kernels.types import SampleOut, SamplingParams
from stentor.layers.attention import sdpa
from stentor.layers.rng import uniform
from stentor.layers.sampling import store_sample
from stentor.models.base import PromptRows
from stentor.models.fish_s2 import language_model
from stentor.models.fish_s2.language_model import rank, sample_first_code, sample_ranked
from stentor.models.fish_s2.prompt import Speakers, SpokenTurn, opening, tagged, tokenize_turns
from tests.models.fish_s2.oracle import CHECKPOINT, Oracle, probabilities

EXPECTED = np.load(Path(__file__).parents[2] / "fixtures" / "fish_s2" / "expected.npz")
DRAWS = 20_000


class Dense:
    """A whole sequence at once (models.base.KVView)."""

    def __init__(self, length):
        self.pos = torch.arange(length)

    def attend(self, layer, q, k, v, norm_rope):
        q, k = norm_rope.apply(q, k)
        return sdpa(q[None], k[None], v[None], causal=True)[0]


class FakeRows(dict):
    """Rows with a given past (models.base.Rows)."""

    work = 0

    def __init__(self, past, **columns):
        """past [B, T, books], the last frame of which was made at step T - 1."""
        batch, made = past.shape[:2]
        super().__init__(
            step=torch.full((batch,), made),
            min_frames=torch.zeros(batch, dtype=torch.int64),
            **columns,
        )
        self.past = past

    def recent(self, count):
        made = self.past.shape[1]
        at = made - torch.arange(1, count + 1)
        frames = (
            self.past[:, at.clamp_min(0)]
            if made
            else self.past.new_zeros(len(self.past), count, 10)
        )
        return frames, (at >= 0).expand(len(self.past), -1)


def rows(past, temperature, top_k=0, top_p=1.0):
    batch = len(past)
    return FakeRows(
        past,
        temperature=torch.full((batch,), float(temperature)),
        top_k=torch.full((batch,), top_k),
        top_p=torch.full((batch,), float(top_p)),
    )


@pytest.fixture(scope="module")
def model():
    with torch.inference_mode():
        yield registry.load(CHECKPOINT, torch.device("cpu"), None, {})


@pytest.fixture(scope="module")
def oracle():
    return Oracle()


def prompts(model):
    generator = np.random.default_rng(0)
    codes = [generator.integers(0, 256, (n, 10)) for n in (23, 4)]
    one, two = (
        SpokenTurn("A short reference.", codes[0], "one"),
        SpokenTurn("再来一个。", codes[1], "two"),
    )
    texts = {
        "plain": ([], []),
        "cloned": ([one], []),
        "two voices": ([one, two], []),
        "continued": ([one], [two]),
    }
    return {name: tokenized(model, "Say [softly] this.", *args) for name, args in texts.items()}


def tokenized(model, text, references, history):
    tokens = model.prompts.tokens
    speakers = Speakers(opening(tokens, tagged(r.text for r in references)), references)
    return tokenize_turns(tokens, 10, text, speakers, history)


@pytest.mark.parametrize("name", ["plain", "cloned", "two voices", "continued"])
def test_prefill_hidden_states_and_logits_equal_the_oracle(model, oracle, name):
    p = prompts(model)[name]
    x = model.embed_prompt(
        PromptRows(
            {"token": torch.tensor(p.token)}, torch.tensor(p.frames), torch.tensor(p.frame_at)
        ),
        None,
    )
    h = model.backbone(x, Dense(len(p.token)))[0]
    want_h, want_logits = oracle.slow(oracle.prompt(p.token, p.frames, p.frame_at))
    assert (h.double() - want_h).abs().max() < 1e-4
    ids = [*range(oracle.semantic, oracle.semantic + oracle.codes), oracle.im_end]
    assert (model.language.logits(h).double() - want_logits[:, ids]).abs().max() < 1e-4
    emitted = model.emit(
        (h[-1:],), rows(torch.zeros(1, 0, 10, dtype=torch.int64), 0), torch.full((1, 11), 0.5)
    )
    assert emitted.frame.tolist() == [oracle.greedy_frame(want_h[-1], want_logits[-1])]


def test_the_first_expected_frame_is_also_the_oracles(model, oracle):
    p = tokenized(model, "Hello there, this is a test.", [], [])
    h, logits = oracle.slow(oracle.prompt(p.token, p.frames, p.frame_at))
    assert oracle.greedy_frame(h[-1], logits[-1]) == EXPECTED["g0_0_frames"][0].tolist()


def test_a_frame_is_embedded_as_the_oracle_does(model, oracle):
    frames = torch.tensor(EXPECTED["g0_0_frames"].astype(np.int64))
    want = torch.stack([oracle.embed(oracle.semantic + int(f[0]), f) for f in frames])
    got = model.embed_frame({"prev": frames})[0]
    assert (got.double() - want).abs().max() < 1e-6


def test_padding_frames_of_a_prompt_change_nothing(model):
    p = prompts(model)["cloned"]
    token, frames, at = torch.tensor(p.token), torch.tensor(p.frames), torch.tensor(p.frame_at)
    padded = (torch.cat((frames, frames[:3])), torch.cat((at, torch.full((3,), len(token)))))
    plain = model.embed_prompt(PromptRows({"token": token}, frames, at), None)[0]
    assert torch.equal(model.embed_prompt(PromptRows({"token": token}, *padded), None)[0], plain)


def hidden(model, batch):
    return torch.randn(
        1, model.language.config.slow.hidden, generator=torch.Generator().manual_seed(1)
    ).expand(batch, -1)


def first_code(language, h, r, u):
    """Codes [B] of `sample_first_code`, with the end as the id behind the last code."""
    out = SampleOut(torch.empty(len(h), dtype=torch.int64))
    params = SamplingParams(u, r["temperature"], r["top_k"], r["top_p"])
    stop = sample_first_code(language.logits(h), params, out, r)
    return torch.where(stop, language.config.codes, out.code)


def past_with(code, at, made, fill=0):
    """Frames 0 .. made - 1 whose first code is `fill`, except that of frame `at`."""
    past = torch.full((1, made, 10), fill)
    past[:, at, 0] = code
    return past


@pytest.mark.parametrize(
    ("at", "made", "again"),
    [
        (1, 2, True),
        (0, 1, False),
        (0, 5, False),
        (4, 14, True),
        (3, 14, False),
        (13, 14, True),
        (1, 11, True),
    ],
)
def test_a_code_of_the_last_ten_frames_is_drawn_again_but_that_of_frame_0_never_counts(
    model, at, made, again
):
    h = hidden(model, 1)
    # The first draw is all but greedy, the second one is not: the rank that 0.89 of the mass falls on.
    u = torch.full((1, 11), 0.98)
    greedy = int(model.language.logits(h)[0].argmax())
    r = rows(past_with(greedy, at, made, fill=(greedy + 1) % 256), 1e-4)
    code = int(first_code(model.language, h, r, u[:, :2]))
    free = rank(model.language.logits(h))
    second = int(
        sample_ranked(
            free, u[:, 1], torch.ones(1), torch.zeros(1, dtype=torch.int64), torch.full((1,), 0.9)
        )
    )
    assert second != greedy
    assert code == (second if again else greedy)


def test_greedy_rows_repeat_themselves(model):
    h = hidden(model, 1)
    greedy = int(model.language.logits(h)[0].argmax())
    r = rows(torch.full((1, 12, 10), greedy), 0)
    assert int(first_code(model.language, h, r, torch.full((1, 2), 0.99))) == greedy


def test_the_end_cannot_be_drawn_before_min_frames(model):
    language = model.language
    h = (language.head[-1] * 100)[None]
    for step, minimum, ends in ((3, 4, False), (4, 4, True)):
        r = rows(torch.zeros(1, step, 10, dtype=torch.int64), 0)
        r["min_frames"] = torch.tensor([minimum])
        emitted = model.emit((h,), r, torch.full((1, 11), 0.5))
        assert bool(emitted.stop) is ends
        assert (emitted.frame >= 0).all()
        assert (emitted.frame < language.config.codes).all()


SETTINGS = [
    (0.8, 30, 0.8),
    (1.0, 0, 0.9),
    (1.3, 0, 1.0),
    (0.3, 5, 0.95),
    (2.0, 3, 1.0),
    (0.7, 1, 0.5),
    (1.0, 50, 0.0),
]
"""temperature, top_k, top_p"""


def fits(counts, p):
    """Chi-square over the indices that can be drawn (rare ones pooled); none of the others may have been."""
    assert counts[p == 0].sum() == 0
    common = p * counts.sum() >= 5
    observed, wanted = counts[common], p[common] * counts.sum()
    if (~common).any() and p[~common].sum() > 0:
        observed, wanted = (
            np.append(observed, counts[~common].sum()),
            np.append(wanted, p[~common].sum() * counts.sum()),
        )
    return (
        len(observed) == 1
        or chisquare(observed, wanted * observed.sum() / wanted.sum()).pvalue > 1e-4
    )


def mixed(settings):
    """One batch in which row i has setting i % len(settings): columns, and each setting's rows."""
    total = DRAWS * len(settings)
    which = torch.arange(total) % len(settings)
    columns = [torch.tensor(c)[which] for c in zip(*settings, strict=True)]
    return columns, which


def test_20_000_draws_follow_the_filtered_probabilities_with_settings_mixed_in_one_batch():
    logits = torch.randn(97, generator=torch.Generator().manual_seed(2)) * 2
    (temperature, top_k, top_p), which = mixed(SETTINGS)
    u = uniform(torch.full((len(which),), 5), torch.arange(len(which)), 1)[:, 0]
    drawn = sample_ranked(rank(logits.expand(len(which), -1)), u, temperature, top_k, top_p)
    for i, setting in enumerate(SETTINGS):
        counts = np.bincount(drawn[which == i].numpy(), minlength=97)
        assert fits(counts, probabilities(logits, *setting)), setting


def test_20_000_first_codes_follow_the_two_draws_of_repetition_aware_sampling(model):
    settings = SETTINGS[:4]
    (temperature, top_k, top_p), which = mixed(settings)
    h = hidden(model, 1) * 3
    logits = model.language.logits(h)[0]
    likely = logits.argsort(descending=True)[:3].clamp_max(255)
    past = torch.stack([likely[torch.tensor([2, 0, 1, 0])]] * 10, dim=-1)[None].expand(
        len(which), -1, -1
    )
    r = FakeRows(past, temperature=temperature, top_k=top_k, top_p=top_p)
    u = uniform(torch.full((len(which),), 6), torch.arange(len(which)), 2)
    drawn = first_code(model.language, h.expand(len(which), -1), r, u)
    for i, setting in enumerate(settings):
        first, free = probabilities(logits, *setting), probabilities(logits, 1.0, setting[1], 0.9)
        seen = np.isin(
            np.arange(len(first)), likely[:2].numpy()
        )  # frame 0 held likely[2]: it does not count
        p = np.where(seen, 0, first) + first[seen].sum() * free
        assert fits(np.bincount(drawn[which == i].numpy(), minlength=len(p)), p), setting


def test_20_000_second_codes_follow_the_fast_transformers_probabilities(model, oracle, monkeypatch):
    settings = SETTINGS[:4]
    (temperature, top_k, top_p), which = mixed(settings)
    h = hidden(model, 1) * 2
    two_books = copy.copy(model.language)
    two_books.config = replace(
        model.language.config, books=2
    )  # the other codes would only take time
    two_books.process_weights_after_loading()
    past = torch.zeros(len(which), 0, 10, dtype=torch.int64)
    r = FakeRows(past, temperature=temperature, top_k=top_k, top_p=top_p)
    u = uniform(torch.full((len(which),), 7), torch.arange(len(which)), 1)
    batch = h.expand(len(which), -1)

    def first_is_17(logits, params, out, rows):
        store_sample(torch.full((len(logits),), 17), out)
        return torch.zeros(len(logits), dtype=torch.bool)

    monkeypatch.setattr(language_model, "sample_first_code", first_is_17)
    drawn = two_books.frame(batch, r, u.expand(-1, 3))[0][:, 1]
    logits = oracle.fast(h[0].double(), [17])
    for i, setting in enumerate(settings):
        p = probabilities(logits, *setting)
        assert fits(np.bincount(drawn[which == i].numpy(), minlength=len(p)), p), setting


def test_the_token_that_crosses_top_p_is_dropped_and_temperature_comes_after():
    logits = torch.tensor([[0.6, 0.3, 0.1]]).log()
    u = torch.tensor([0.999999])

    def last(temperature, top_p):
        zero = torch.zeros(1, dtype=torch.int64)
        return int(
            sample_ranked(rank(logits), u, torch.tensor([temperature]), zero, torch.tensor([top_p]))
        )

    assert [last(1.0, p) for p in (0.5, 0.7, 0.95, 1.1)] == [0, 0, 1, 2]
    assert last(50.0, 0.7) == 0  # a temperature first would have flattened the mass below 0.7


def test_equal_logits_go_to_the_lower_index_in_greedy_rows():
    one = torch.ones(1, dtype=torch.int64)
    assert (
        int(
            sample_ranked(
                rank(torch.zeros(1, 300)), torch.tensor([0.9]), torch.zeros(1), one * 0, one.float()
            )
        )
        == 0
    )

"""The language model's hidden states and logits are the official ones, and RAS draws as specified."""

from __future__ import annotations

import json

import pytest
import torch
from torch import Tensor

from stentor.kernels.constants import NO_ID
from stentor.layers.attention import causal
from stentor.layers.configs import StackConfig
from stentor.models.cosyvoice3 import checkpoint
from stentor.models.cosyvoice3.config import LanguageConfig, RasConfig
from stentor.models.cosyvoice3.language_model import Language, sample_ras
from stentor.models.weights import load_weights
from tests.fixtures.cosyvoice3 import tiny_cosyvoice3 as tiny

E = {name: torch.from_numpy(value) for name, value in tiny.expected().items() if value.ndim}


@pytest.fixture(scope="module")
def language() -> Language:
    t = tiny.sizes()
    q = json.loads((tiny.FIXTURE / "CosyVoice-BlankEN" / "config.json").read_text())
    heads, hidden = q["num_attention_heads"], q["hidden_size"]
    kv, layers = q["num_key_value_heads"], q["num_hidden_layers"]
    stack = StackConfig(
        hidden, q["intermediate_size"], layers, heads, kv, hidden // heads, 1e-6, qkv_bias=True
    )
    made = Language(
        LanguageConfig(stack, 1e6, t["text_vocab"], t["speech_token_size"], RasConfig()),
        torch.float32,
    )
    load_weights(made, checkpoint.read_language(tiny.FIXTURE), "llm.pt", torch.device("cpu"))
    made.process_weights_after_loading()
    return made.requires_grad_(False)


class OneSequence:
    def __init__(self, length: int) -> None:
        self.pos = torch.arange(length)

    def attend(self, *args):
        layer, q, k, v, norm_rope = args
        return causal(layer, q[None], k[None], v[None], norm_rope)[0]


def test_hidden_states_and_logits_are_the_official_ones(language: Language):
    c = language.config
    text = torch.cat((E["prompt_text"], E["text"]))
    codes = E["prompt_speech"] + c.text_vocab
    rows = torch.cat(
        (torch.tensor([c.text_vocab + c.start]), text, torch.tensor([c.text_vocab + c.task]), codes)
    )
    h = language.hidden(language.embed(rows), OneSequence(len(rows)))
    assert (h - E["lm_hidden"]).abs().max() < 1e-5 * E["lm_hidden"].abs().max()
    assert (language.logits(h)[-1] - E["lm_logits"]).abs().max() < 1e-5 * E["lm_logits"].abs().max()


def test_the_special_codes_follow_the_codes(language: Language):
    c = language.config
    assert (c.start, c.end, c.task, c.fill) == (c.codes, c.codes + 1, c.codes + 2, c.codes + 3)


def draw(
    probabilities: list[float], u: tuple[float, float], past: list[int] = (), **options: float
) -> int:
    logits = torch.tensor([probabilities]).log()
    o = {"temperature": 1.0, "top_p": 0.8, "top_k": 25, **options}
    recent = torch.tensor([[*past, 0]]), torch.tensor([[True] * len(past) + [False]])
    found = sample_ras(
        logits,
        torch.tensor([u]),
        *(torch.tensor([o[n]]) for n in ("temperature", "top_p", "top_k")),
        recent,
        1.0,
    )
    return int(found)


P = [0.1, 0.5, 0.2, 0.15, 0.05]


@pytest.mark.parametrize(
    ("u", "expected"), [(0.0, 1), (0.58, 1), (0.6, 2), (0.81, 2), (0.83, 3), (0.9999, 3)]
)
def test_ids_are_drawn_while_likelier_ones_have_less_than_top_p(u: float, expected: int):
    """0.5, 0.2 and 0.15 have less than 0.8 before them; 0.1 has 0.85."""
    assert draw(P, (u, 0.5)) == expected


def test_an_id_of_the_last_frames_is_drawn_again_from_all_others():
    assert draw(P, (0.3, 0.05), past=[1]) == 0
    assert draw(P, (0.3, 0.99), past=[1]) == 4  # which the first draw cannot take
    assert draw(P, (0.3, 0.05), past=[2]) == 1


def test_top_k_bounds_the_first_draw():
    assert draw(P, (0.99, 0.5), top_k=1) == 1
    assert draw([0.2] * 5, (0.99, 0.5), top_p=1.0, top_k=0) == 4


def test_temperature_0_takes_the_likeliest_whatever_was_drawn_before():
    assert draw(P, (0.99, 0.99), past=[1], temperature=0.0) == 1


def test_masked_ids_are_never_drawn():
    assert draw([0.0, 0.5, 0.5, 0.0, 0.0], (0.99, 1 - 2**-24), past=[2], top_p=1.0) == 1


def test_rows_that_are_not_finite_give_no_id():
    logits = torch.tensor([[0.0, float("nan")], [float("-inf")] * 2, [0.0, 1.0]])
    one = torch.ones(3)
    none: tuple[Tensor, Tensor] = (
        torch.zeros(3, 1, dtype=torch.int64),
        torch.zeros(3, 1, dtype=torch.bool),
    )
    found = sample_ras(logits, torch.full((3, 2), 0.5), one, one, one.long(), none, 1.0)
    assert found.tolist() == [NO_ID, NO_ID, 1]

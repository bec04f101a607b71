"""How far a draw is from another code: rounding explains a near tie, and nothing else."""

from __future__ import annotations

import torch

from stentor import TTS
from stentor.models.fish_s2 import language_model as sampling
from tests.helpers.draws import Draw, Led, apart, drawing
from tests.helpers.tiny import Bench, checkpoint

EDGE = 1e-5


def draw_from(logits: list[float], u: float, temperature: float = 1.0, top_p: float = 1.0) -> Draw:
    """A draw by rank without top-k."""
    found: list[Draw] = []
    x = torch.tensor([logits])
    one = torch.ones(1)
    with drawing(lambda draw: found.append(draw) or draw.answer()):
        none = torch.zeros(1, dtype=torch.int64)
        sampling.sample_ranked(sampling.rank(x), one * u, one * temperature, none, one * top_p)
    return found[0]


def test_a_tie_in_rank_is_within_rounding_whatever_u_is():
    near, far = draw_from([1.0, 2.0, 2.0 - 4e-7, 0.0], 0.2), draw_from([1.0, 2.0, 1.99, 0.0], 0.2)
    assert near.reached(EDGE) == {1, 2}
    assert far.reached(EDGE) == {1}


def test_a_boundary_a_nucleus_and_an_argmax_are_within_rounding_only_where_they_are():
    masses = torch.tensor([0.0, -0.5, -1.0]).softmax(-1).cumsum(-1).tolist()
    assert draw_from([0.0, -0.5, -1.0], masses[0]).reached(EDGE) == {0, 1}
    assert draw_from([0.0, -0.5, -1.0], masses[0] - 1e-3).reached(EDGE) == {0}
    assert draw_from([0.0, -0.5, -1.0], 0.9, top_p=masses[1]).reached(EDGE) == {
        0,
        1,
    }  # whether the second token stays
    assert draw_from([0.0, -0.5, -1.0], 0.9, top_p=masses[1] + 1e-3).reached(EDGE) == {1}
    assert draw_from([2.0, 2.0 + 4e-7], 0.3, temperature=0.0).reached(EDGE) == {0, 1}
    assert draw_from([2.0, 2.001], 0.3, temperature=0.0).reached(EDGE) == {1}


def spoken(family: str, path, **options):
    with TTS(
        path, device="cpu", dtype="float32", max_num_seqs=1, memory_gb=0.02, page_size=4
    ) as tts:
        return tts.generate("One two three.", retries=1, **options).frames


def test_led_along_what_was_spoken_samplers_draw_the_same(tmp_path):
    for family, options in (("fish_s2", {}), ("qwen3_tts", {"voice": "serena"})):
        path = checkpoint(family, tmp_path)
        own = {"seed": 4, "max_frames": 4, "ignore_eos": True}
        frames = spoken(family, path, **own, **options)
        led = Led(Bench(path, "cpu", torch.float32, slots=1), family, "One two three.", own, frames)
        for at in range(len(frames)):
            drawn = [int(d.answer()) for d in led.frame(at)]
            assert drawn[1 + led.extra :] == frames[at, 1:].tolist()
            assert frames[at, 0] in drawn[: 1 + led.extra]
            led = Led(
                Bench(path, "cpu", torch.float32, slots=1), family, "One two three.", own, frames
            )


def test_codes_of_another_request_are_infinitely_far(tmp_path):
    for family, options in (("fish_s2", {}), ("qwen3_tts", {"voice": "serena"})):
        path = checkpoint(family, tmp_path)
        own = {"seed": 4, "max_frames": 4, "ignore_eos": True}
        want = spoken(family, path, **own, **options)
        got = want.copy()
        got[2:] = spoken(family, path, **{**own, "seed": 5}, **options)[2:]
        by, same, where = apart(path, family, "One two three.", {**own, **options}, want, got)
        assert by > 1e-4, (by, where)
        assert same == 2
        assert apart(path, family, "One two three.", {**own, **options}, want, want)[0] == float(
            "inf"
        )


def test_a_near_tie_that_an_h200_decided_otherwise_is_within_rounding():
    """Frame 1, code 2 of this request: 4.2e-7 between two neighbours in rank."""
    path = checkpoint("fish_s2", None)
    text = "four eleven two twelve six seven five ten three eight seven one four"
    own = {
        "seed": 18,
        "max_frames": 2,
        "temperature": 1.2,
        "top_k": 0,
        "top_p": 1.0,
        "ignore_eos": True,
    }
    with TTS(
        path, device="cpu", dtype="float32", max_num_seqs=1, memory_gb=0.02, page_size=4
    ) as tts:
        want = tts.generate(text, retries=1, **own).frames
    led = Led(Bench(path, "cpu", torch.float32, slots=1), "fish_s2", text, own, want)
    draw = led.frame(1)[2 + led.extra]
    other = draw.reached(EDGE) - {int(want[1, 2])}
    assert len(other) == 1
    got = want.copy()
    got[1, 2] = other.pop()
    assert apart(path, "fish_s2", text, own, want, got)[0] <= EDGE

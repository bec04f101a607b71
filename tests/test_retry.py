"""When an utterance is generated again, and with which seed."""

import numpy as np

from stentor.engine.retry import Tries, runaway_frames
from stentor.models.base import Prompt

NONE = np.zeros(0)


def prompt(most: int | None) -> Prompt:
    return Prompt({"text": NONE}, NONE, NONE, {}, 1, 0, NONE, runaway_frames=most)


def test_a_run_on_takes_the_next_seed_until_no_try_is_left():
    tries = Tries(seed=7, left=3)
    assert [tries.again(ran_on=True), tries.seed] == [True, 8]
    assert [tries.again(ran_on=True), tries.seed] == [True, 9]
    assert [tries.again(ran_on=True), tries.seed] == [False, 9]


def test_an_utterance_that_ended_is_kept():
    tries = Tries(seed=7, left=3)
    assert [tries.again(ran_on=False), tries.seed] == [False, 7]


def test_a_request_of_several_prompts_is_no_run_on_by_the_length_of_the_first():
    one, several = prompt(20), prompt(20)
    several.continuation = lambda frames: one
    assert runaway_frames(one) == 20
    assert runaway_frames(several) is None
    assert runaway_frames(prompt(None)) is None

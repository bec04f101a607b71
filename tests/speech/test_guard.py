"""When an utterance is a run-on, where it is cut, and with which seed it is generated again."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from stentor.audio import Recording
from stentor.engine.stream import Chunk
from stentor.models.base import Prompt
from stentor.models.info import ReferenceAudio, SpeechRequest
from stentor.models.toy.spec import make_spec
from stentor.speech.guard import NOTES_ONLY, Guard, GuardRule, runaway_frames
from stentor.speech.speaking import SpokenSegment
from stentor.text.sentences import Segment

NONE = np.zeros(0)
SPEC = make_spec(torch.float32)
HOP = SPEC.hop
SILENT_SECONDS = 0.05
CUTS = GuardRule(cuts=True, silent_seconds=SILENT_SECONDS)


def prompt(limit: int | None) -> Prompt:
    return Prompt({"text": NONE}, NONE, NONE, {}, 1, 0, NONE, runaway_frames=limit)


def chunks(sizes: list[tuple[int, int]], finish: str, level: float = 0.5) -> list[Chunk]:
    """Chunks of so many samples and frames each."""
    frames = [np.zeros((count, 1)) for _, count in sizes]
    samples = [np.full(size, level, np.float32) for size, _ in sizes]
    ends = [None] * (len(sizes) - 1) + [finish]
    return [Chunk(*parts) for parts in zip(samples, frames, ends, strict=True)]


def delivered(guard: Guard, stream: list[Chunk], runaway: int | None) -> tuple[int, int, str]:
    """Samples and frames up to the end of a try, and how it ended."""
    samples = frames = 0
    for chunk in stream:
        checked = guard.check(chunk, runaway)
        samples += len(checked.samples)
        frames += len(checked.frames)
        if checked.finish is not None:
            return samples, frames, checked.finish
    raise AssertionError("the try has no end")


def segment_of_three_tries() -> SpokenSegment:
    return SpokenSegment(0, Segment("x", 0, 1), SpeechRequest("x", seed=7), (), 3)


def test_a_run_on_takes_the_next_seed_until_no_try_is_left() -> None:
    segment = segment_of_three_tries()
    for again, seed in ((True, 8), (True, 9), (False, 9)):
        segment.ran_on = True
        assert segment.retry() is again
        assert segment.voiced(SPEC).seed == seed


def test_an_utterance_that_ended_is_kept() -> None:
    segment = segment_of_three_tries()
    assert not segment.retry()
    assert segment.voiced(SPEC).seed == 7


def test_a_request_of_several_prompts_is_no_run_on_by_the_length_of_the_first():
    one, several = prompt(20), prompt(20)
    several.continuation = lambda frames: one
    assert runaway_frames(one) == 20
    assert runaway_frames(several) is None
    assert runaway_frames(prompt(None)) is None


LATE = HOP // 2  # samples that a codec delivers with the next chunk
SHORT = 2  # samples that the first frame lacks
CUT_UP = {
    "whole": [(9 * HOP, 9)],
    "by frames": [(HOP, 1)] * 9,
    "in unequal chunks": [(2 * HOP, 2), (5 * HOP, 5), (2 * HOP, 2)],
    "the last chunk brings what the first owed": [(2 * HOP - LATE, 2), (7 * HOP + LATE, 7)],
    "each chunk owes": [(HOP - LATE, 1), *[(HOP, 1)] * 7, (HOP + LATE, 1)],
    "the first frame is short": [(HOP - SHORT, 1), (8 * HOP, 8)],
    "an empty chunk ends it": [(9 * HOP, 9), (0, 0)],
}


@pytest.mark.parametrize("sizes", CUT_UP.values(), ids=CUT_UP)
def test_a_run_on_is_cut_at_the_same_sample_however_a_codec_cuts_its_chunks(
    sizes: list[tuple[int, int]],
) -> None:
    guard = Guard(SPEC.info, (), CUTS)
    assert delivered(guard, chunks(sizes, "length"), 4) == (4 * HOP, 4, "guard_length")
    assert guard.ran_on


@pytest.mark.parametrize("sizes", CUT_UP.values(), ids=CUT_UP)
def test_what_is_no_run_on_is_delivered_as_it_comes(sizes: list[tuple[int, int]]) -> None:
    for limit, finish in ((10, "length"), (10, "stop"), (9, "stop"), (None, "length")):
        guard = Guard(SPEC.info, (), CUTS)
        total = sum(size for size, _ in sizes)
        assert delivered(guard, chunks(sizes, finish), limit) == (total, 9, finish)
        assert not guard.ran_on


def test_an_utterance_that_its_limit_of_frames_ended_is_a_run_on() -> None:
    """Some families stop an utterance at the number of frames from which it counts as one."""
    guard = Guard(SPEC.info, (), CUTS)
    assert delivered(guard, chunks([(9 * HOP, 9)], "length"), 9) == (9 * HOP, 9, "length")
    assert guard.ran_on


def test_a_guard_that_only_notes_cuts_nothing_and_has_the_same_rule() -> None:
    for limit, finish, ran_on in (
        (4, "length", True),
        (4, "stop", True),
        (9, "length", True),
        (9, "stop", False),
        (10, "length", False),
        (None, "length", False),
    ):
        guard = Guard(SPEC.info, (), NOTES_ONLY)
        stream = chunks([(2 * HOP, 2), (7 * HOP, 7)], finish, level=0.0)
        assert delivered(guard, stream, limit) == (9 * HOP, 9, finish)
        assert guard.ran_on is ran_on


@pytest.mark.parametrize("sizes", CUT_UP.values(), ids=CUT_UP)
def test_silence_ends_an_utterance_at_the_same_sample(sizes: list[tuple[int, int]]) -> None:
    rule = GuardRule(cuts=True, silent_seconds=3 * HOP / SPEC.sample_rate)
    guard = Guard(SPEC.info, (), rule)
    stream = chunks(sizes, "stop", level=0.0)
    assert delivered(guard, stream, None) == (4 * HOP, 4, "guard_silence")
    assert not guard.ran_on


@pytest.mark.parametrize(("peak", "ends"), [(0.5, True), (0.05, False), (2e-4, False)])
def test_the_guard_takes_no_quiet_voice_for_silence(peak: float, ends: bool) -> None:
    """Frames at a tenth of the voice's peak are speech. At -50 dBFS they are silence beside a loud voice."""
    tone = np.sin(np.arange(8_000) / 9).astype(np.float32)
    recording = ReferenceAudio(Recording(peak * tone, 8_000), None)
    guard = Guard(SPEC.info, [recording], CUTS)
    frames = int(2 * SILENT_SECONDS * SPEC.sample_rate) // HOP
    stream = chunks([(frames * HOP, frames)], "stop", level=min(0.1 * peak, 0.0029))
    assert (delivered(guard, stream, None)[2] == "guard_silence") is ends

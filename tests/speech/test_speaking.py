"""Speaking without an engine: whatever order chunks come in, the same segments, seeds, places and audio."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from stentor.engine.scheduling.sequence import Place
from stentor.engine.stream import Chunk
from stentor.models.info import SpeechRequest
from stentor.models.toy.spec import make_spec
from stentor.speech.speaking import SIDE_BY_SIDE, JoinedAudio, Speaking, SpokenSegment
from stentor.text.sentences import Segment

SPEC = make_spec(torch.float32)
SEED = 5
REQUEST = SpeechRequest("a.", seed=SEED, voice="low", options={})


@dataclass(frozen=True)
class Script:
    """A model's answer to a text: hops of audio of each segment, those of which a first try runs on (by how many
    tries), and those that cannot be spoken."""

    hops: list[int]
    run_ons: list[int]
    silent: list[bool]
    carried: bool
    tries: int

    def speaking(self, streaming: bool, growing: bool = False) -> Speaking:
        request = SpeechRequest(
            "Hello.", seed=SEED, voice=None if self.carried else "low", options={}
        )
        given = [] if growing else self.segments
        return Speaking(SPEC, {None: request}, given, streaming, self.tries, growing=growing)

    @property
    def segments(self) -> list[Segment]:
        ends = [(".", 0, None), ("...", 2, 0.3), (",", 0, None)]
        kinds = [ends[i % 3] for i in range(len(self.hops))]
        return [
            Segment(f"a{end}", 9 * i, 9 * i + 2, gap, after=after)
            for i, (end, gap, after) in enumerate(kinds)
        ]

    def audio(self, index: int, seed: int) -> np.ndarray:
        """float32 [n] of a try of a segment."""
        of_try = np.random.default_rng((index, seed))
        return of_try.uniform(-0.5, 0.5, SPEC.hop * self.hops[index]).astype(np.float32)

    def last_seed(self, index: int, streaming: bool) -> int:
        return (
            SEED
            if streaming or self.silent[index]
            else SEED + min(self.run_ons[index], self.tries - 1)
        )

    def joined(self, streaming: bool) -> tuple[np.ndarray, JoinedAudio]:
        """The audio of all segments, joined one after another."""
        joined, parts = JoinedAudio(SPEC.sample_rate), []
        for i, segment in enumerate(self.segments):
            samples = self.audio(i, self.last_seed(i, streaming))
            parts += [joined.begin(segment), joined.feed(samples)]
            joined.note_end(segment, len(samples), "length" if i == 1 else "stop")
            parts.append(joined.close(segment, i + 1 == len(self.hops)))
        return np.concatenate(parts), joined


@dataclass
class Drive:
    """A driver that lets chance decide which segment gets its next chunk, and how long that is."""

    script: Script
    speaking: Speaking
    chance: random.Random
    out: list[np.ndarray] = field(default_factory=lambda: [np.zeros(0, np.float32)])
    given: list[tuple[int, int]] = field(default_factory=list)  # index and seed of each try
    places: list[Place] = field(default_factory=list)
    ended: list[int] = field(
        default_factory=list
    )  # tries with a place that had ended when each was taken
    most: int = 0  # segments that ran together

    def __post_init__(self) -> None:
        self._left: dict[SpokenSegment, np.ndarray] = {}  # of running segments
        self._freed = 0

    def start(self) -> None:
        """Submit what may run."""
        while (current := self.speaking.next()) is not None:
            current.unspoken = self.script.silent[current.index]
            if not current.unspoken:
                self.places.append(self.speaking.place(current))
                self.ended.append(self._freed)
                self.speaking.admit()
            self.given.append((current.index, current.request.seed))
            self._left[current] = self.script.audio(*self.given[-1])
            self.most = max(self.most, len(self._left))

    def step(self) -> bool:
        """One chunk of one segment. False: nothing runs."""
        if not self._left:
            return False
        current = self.chance.choice(list(self._left))
        left = self._left[current]
        size = self.chance.randint(1, len(left))
        finish = ("length" if current.index == 1 else "stop") if size == len(left) else None
        chunk = Chunk(left[:size], np.zeros((1, 2), np.float32), finish)
        self._left[current] = left[size:]
        self.out.append(self.speaking.feed(current, chunk))
        if finish is not None:
            self._end(current)
        return True

    def _end(self, current: SpokenSegment) -> None:
        del self._left[current]
        self._freed += not current.unspoken
        ran_on = (
            not current.unspoken
            and current.request.seed < SEED + self.script.run_ons[current.index]
        )
        current.ran_on = ran_on
        if not self.speaking.again(current):
            self.out.append(self.speaking.ended(current))

    def run(self) -> np.ndarray:
        self.start()
        while self.step():
            self.start()
        return np.concatenate(self.out)


@st.composite
def scripts(draw: st.DrawFn) -> Script:
    count = draw(st.integers(1, SIDE_BY_SIDE + 4))

    def each(what: st.SearchStrategy[int]) -> list[int]:
        return draw(st.lists(what, min_size=count, max_size=count))

    silent = [bool(s) for s in each(st.sampled_from([0, 0, 0, 1]))]
    hops, run_ons = each(st.integers(1, 12)), each(st.sampled_from([0, 0, 1, 2, 9]))
    return Script(hops, run_ons, silent, draw(st.booleans()), draw(st.integers(1, 3)))


chances = st.integers(0, 2**32).map(random.Random)
any_script = given(script=scripts(), streaming=st.booleans(), chance=chances)


@any_script
def test_the_audio_and_its_times_do_not_depend_on_how_it_came(
    script: Script, streaming: bool, chance: random.Random
):
    speaking = script.speaking(streaming)
    samples = Drive(script, speaking, chance).run()
    expected, joined = script.joined(streaming)
    np.testing.assert_array_equal(samples, expected)
    assert speaking.joined.timings == joined.timings
    assert speaking.finish == joined.ending
    assert speaking.unspoken == {i for i, silent in enumerate(script.silent) if silent}


@any_script
def test_each_segment_is_given_once_for_each_try_and_none_before_its_turn(
    script: Script, streaming: bool, chance: random.Random
):
    speaking = script.speaking(streaming)
    drive = Drive(script, speaking, chance)
    drive.run()
    assert drive.most <= speaking.at_once
    assert [i for i, seed in drive.given if seed == SEED] == list(range(len(script.hops)))
    for i in range(len(script.hops)):
        seeds = list(range(SEED, script.last_seed(i, streaming) + 1))
        assert [seed for index, seed in drive.given if index == i] == seeds
    assert speaking.seed == (script.last_seed(0, streaming) if len(script.hops) == 1 else SEED)


@any_script
def test_a_try_takes_the_place_of_one_that_has_ended_and_only_the_first_can_be_refused(
    script: Script, streaming: bool, chance: random.Random
):
    drive = Drive(script, script.speaking(streaming), chance)
    drive.run()
    assert [p is Place.NEW for p in drive.places] == [i == 0 for i in range(len(drive.places))]
    taken = 0
    for place, ended in zip(drive.places, drive.ended, strict=True):
        assert (place is Place.NEXT) == (taken < ended)
        taken += place is Place.NEXT


@any_script
def test_nothing_is_given_after_it_was_closed(
    script: Script, streaming: bool, chance: random.Random
):
    speaking = script.speaking(streaming)
    drive = Drive(script, speaking, chance)
    drive.start()
    for _ in range(chance.randrange(9)):
        drive.step()
        drive.start()
    given = len(drive.given)
    speaking.close()
    drive.run()
    assert len(drive.given) == given


@given(script=scripts(), chance=chances)
def test_a_text_that_grows_sounds_as_one_that_was_there(script: Script, chance: random.Random):
    speaking = script.speaking(streaming=True, growing=True)
    drive = Drive(script, speaking, chance)
    for segment in script.segments:
        assert speaking.finish is None
        speaking.add(segment)
        drive.run()
    speaking.end()
    expected, joined = script.joined(streaming=True)
    fade = round(0.005 * SPEC.sample_rate)
    last = len(expected) - round(
        (script.segments[-1].after or 0.0) * SPEC.sample_rate
    )  # nobody knew that it is last
    np.testing.assert_array_equal(np.concatenate(drive.out)[: last - fade], expected[: last - fade])
    assert speaking.joined.timings == joined.timings
    assert speaking.finish == joined.ending


def test_a_segment_takes_the_voice_of_the_last_one_that_was_spoken():
    script = Script([300] * 4, [0] * 4, [False, True, False, False], carried=True, tries=1)
    speaking, found = script.speaking(streaming=False), []
    while (current := speaking.next()) is not None:
        assert speaking.next() is None
        request = current.voiced(SPEC)
        found.append(None if request.reference is None else request.reference.recording.samples)
        current.unspoken = script.silent[current.index]
        speaking.feed(current, Chunk(script.audio(current.index, SEED), np.zeros((1, 2)), "stop"))
        assert not speaking.again(current)
        speaking.ended(current)
    sources = [None, 0, 0, 2]
    for samples, source in zip(found, sources, strict=True):
        expected = None if source is None else script.audio(source, SEED)
        np.testing.assert_array_equal(samples, expected)


@pytest.mark.parametrize(("growing", "apart"), [(False, False), (True, False), (True, True)])
def test_silence_before_the_audio_may_go_out_early(growing: bool, apart: bool):
    segments = [Segment("a.", 0, 2, before=0.5), Segment("b.", 3, 5, before=0.25, after=0.0)]
    speaking = Speaking(SPEC, {None: REQUEST}, () if growing else segments, True)
    speaking.growing = growing
    silences = []
    for segment in segments:
        if growing:
            speaking.add(segment, apart=apart)
        current = speaking.next()
        assert current is not None
        silences.append(len(speaking.silence()) / SPEC.sample_rate)
        assert len(speaking.silence()) == 0
        speaking.feed(current, Chunk(np.zeros(60, np.float32), np.zeros((1, 2)), "stop"))
        speaking.again(current)
        speaking.ended(current)
    end = 0.005 if growing and not apart else 0.0  # of the first, which knows now what follows
    assert silences == [0.5, 0.25 + end]


def test_audio_that_the_guard_cut_is_faded():
    for finish, expected in (("stop", 1.0), ("guard_length", 0.0)):
        speaking = Speaking(SPEC, {None: REQUEST}, [Segment("a.", 0, 2)], True)
        current = speaking.next()
        assert current is not None
        speaking.feed(current, Chunk(np.ones(60, np.float32), np.zeros((1, 2)), finish))
        speaking.again(current)
        assert speaking.ended(current)[-1] == expected
        assert speaking.finish == finish

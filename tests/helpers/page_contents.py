"""A fake device that keeps what every page holds, token by token, and checks all that is read and written."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from stentor.engine.scheduling.prefill import StepPlan, by_prefill
from stentor.engine.scheduling.scheduler import Scheduler
from stentor.engine.scheduling.sequence import RUNNING, Place, Sequence
from stentor.engine.sequence_maker import prefix_keys
from stentor.models.base import Prompt
from stentor.models.info import Adapter
from tests.helpers.fake_device import FakeDevice

Token = tuple[object, ...]


@dataclass
class Talk:
    """A request: the tokens of its present prompt, those that follow turn by turn, and its adapter. 0: none."""

    tokens: list[Token]
    turns: list[int] = field(default_factory=list)  # tokens of each later turn
    adapter: int = 0


class PageContents(FakeDevice):
    """Every launch writes its tokens, then reads all before them. What it reads must be its own."""

    def __init__(self, scheduler: Scheduler, overlap_steps: int) -> None:
        super().__init__(scheduler, overlap_steps)
        self.held: dict[tuple[int, int], Token] = {}
        self.talks: dict[int, Talk] = {}
        self.fail_next = False  # the next launch of a prefill fails
        self.repeated = 0  # tokens that turns found in their pages
        self._ids = iter(range(10**6))
        self._numbers: dict[Token, int] = {}  # of tokens, as a prompt has them

    def join(self, talk: Talk, limit: int, stop: int) -> Sequence:
        """Queue a request."""
        seq = self._sequence(talk, limit, stop)
        self.scheduler.add(seq, self.now)
        return seq

    def _sequence(
        self, talk: Talk, limit: int, stop: int, last: Sequence | None = None
    ) -> Sequence:
        """The present prompt of a request. last: what it continues, which has its pages still."""
        place = Place.NEXT if last else Place.NEW
        seq = Sequence(next(self._ids), len(talk.tokens), limit, 0, 0, 0.08, True, place)
        seq.keeps_pages, self.talks[seq.id], self.stops[seq.id] = bool(talk.turns), talk, stop
        seq.prefix = self._keys(talk)
        if last is not None:
            seq.continues = True
            self.scheduler.tables.hand_on(last, seq)
        return seq

    def _keys(self, talk: Talk) -> tuple[bytes, ...]:
        """The keys of the prompt's pages. An adapter's slot may change between two requests, its weights do not."""
        tokens, none = self._as_numbers(talk.tokens), np.zeros((0, 1))
        lora = Adapter("a", next(self._ids), bytes([talk.adapter]), "a") if talk.adapter else None
        prompt = Prompt({"token": tokens}, none, np.zeros(0, np.int64), {}, 1, 0, none, lora=lora)
        return prefix_keys(prompt, self.scheduler.pages.page_size)

    def _as_numbers(self, tokens: Iterable[Token]) -> np.ndarray:
        return np.array([self._numbers.setdefault(token, len(self._numbers)) for token in tokens])

    def step(self) -> StepPlan:
        self.now += 0.01
        plan = self.scheduler.plan(self.now)
        for group in by_prefill(plan.prefill):
            if self.fail_next:
                self.fail_next = False
                for seq in group:
                    self.scheduler.undo(seq)
                continue
            self._launch([(seq, seq.piece) for seq in group])
            self.in_flight.append([(seq, *self._step(seq, seq.emits)) for seq in group])
            for seq in group:
                self.repeated += seq.num_cached * (
                    seq.continues and seq.piece.start == seq.num_cached
                )
        if plan.decode:
            self._launch([(seq, self._decoded(seq)) for seq in plan.decode])
            self.in_flight.append([(seq, *self._step(seq, True)) for seq in plan.decode])
        while self.in_flight and (len(self.in_flight) > self.overlap_steps or plan.empty):
            for seq, made, status in self.in_flight.popleft():
                self.scheduler.observe(seq, made, status)
        for job in plan.audio:
            self.scheduler.audio.on_audio(job, self.now)
        following = [self._following(seq) for seq in self.scheduler.complete()]
        self.release()
        for seq in filter(None, following):
            self.scheduler.add(seq, self.now)
        return plan

    def _decoded(self, seq: Sequence) -> range:
        """The position that a decode step writes. One behind a row that has stopped holds no token of it."""
        made, status = self.rows[seq.id]
        at = seq.length + made - (status == RUNNING)
        return range(at, at + 1)

    def _token(self, seq: Sequence, at: int) -> Token:
        """Content at a position of `seq`, as its adapter computes it."""
        talk = self.talks[seq.id]
        return talk.adapter, *(
            talk.tokens[at] if at < seq.length else ("frame", seq.id, at - seq.length)
        )

    def _launch(self, group: list[tuple[Sequence, range]]) -> None:
        size = self.scheduler.pages.page_size
        for seq, positions in group:
            for at in positions:
                if at < len(seq.pages) * size:  # beyond is padding
                    self._write(
                        (seq.pages[at // size], at % size),
                        self._token(seq, at),
                        [s for s, _ in group],
                    )
        for seq, positions in group:
            if self.rows.get(seq.id, (0, RUNNING))[1] != RUNNING:
                continue  # what a row reads that has stopped does not matter
            for at in range(min(positions.stop, len(seq.pages) * size)):
                held = self.held.get((seq.pages[at // size], at % size))
                assert held == self._token(seq, at), f"request {seq.id} reads {held} at {at}"

    def _write(self, place: tuple[int, int], token: Token, group: list[Sequence]) -> None:
        """Rows of one launch read what it has written."""
        readers = [s for s in self.scheduler.live if s not in group and place[0] in s.pages]
        assert not readers or self.held.get(place) == token or not self._shared(place[0]), (
            "written while it is shared"
        )
        self.held[place] = token

    def _shared(self, page: int) -> bool:
        """Whether a page can be found, or is held twice, and so must not change."""
        pages = self.scheduler.pages
        return pages._holders.get(page, 0) > 1 and page in pages._key_of

    def _following(self, seq: Sequence) -> Sequence | None:
        """The next turn of a request that is complete, before its pages are free."""
        talk = self.talks[seq.id]
        if seq.cancelled or not talk.turns:
            return None
        frames = [self._token(seq, seq.length + i)[1:] for i in range(seq.num_generated)]
        tokens = [*talk.tokens, *frames, *[("turn", seq.id, i) for i in range(talk.turns[0])]]
        return self._sequence(
            Talk(tokens, talk.turns[1:], talk.adapter), seq.max_frames, self.stops[seq.id], seq
        )

"""Planner of chunked prefills: pieces of prompts up to a budget of tokens between decode steps. No torch."""

from __future__ import annotations

from collections import deque

from stentor.config import Policy
from stentor.engine.scheduling.page_tables import PageTables, Shared
from stentor.engine.scheduling.sequence import Phase, Sequence
from stentor.engine.scheduling.step_plan import StepPlan


class PrefillPlanner:
    """Starts prefills and cuts those that are longer than the budget into pieces. The budget of a step is
    `Policy.max_prefill_tokens`.

    A request gets all its pages before its first piece. The prompt and the frames that a resumed request had are never
    in one piece. Rows that could be decoded wait for one budget at most between two of their frames.
    """

    def __init__(self, tables: PageTables, policy: Policy) -> None:
        self.tables, self.policy = tables, policy
        self._spent = 0  # tokens of the present plan, and those below
        self._waited = 0  # tokens computed since the rows that can be decoded had their last frame
        self._kept_waiting = False  # whether there are such rows
        self._budget = policy.max_prefill_tokens
        self._last = deque((0.0,), maxlen=2)  # seconds of the last prefills

    def took(self, seconds: float) -> None:
        """A prefill has kept the device busy for so long."""
        self._last.append(seconds)

    @property
    def seconds(self) -> float:
        """The longer of the last two prefills. A long one raises the margin of streams for one more, not for ten."""
        return max(self._last)

    def begin_plan(self, running: bool) -> None:
        """A step is planned. running: whether there are rows that could be decoded."""
        self.tables.begin_plan()
        self._kept_waiting = running
        self._spent = self._waited if self._kept_waiting else 0

    def end_plan(self, decoded: bool) -> None:
        """decoded: the step has a frame for every row that can be decoded."""
        self._waited = self._spent if self._kept_waiting and not decoded else 0

    def fits(self, seq: Sequence, shared: Shared) -> bool:
        """Whether the step has budget left for a piece of `seq` that begins behind its `shared` pages."""
        return self._count(seq, max(seq.given, len(shared.pages) * self.tables.pages.page_size)) > 0

    def start(self, seq: Sequence, shared: Shared, plan: StepPlan) -> bool:
        """Give `seq` pages and its first piece, which fits. False: there are too few pages."""
        if not self.tables.start(seq, shared):
            return False
        if self.tables.depends(shared):
            plan.dependent.append(seq)
        seq.move(Phase.PREFILLING)
        self.go_on(seq, plan)
        return True

    def go_on(self, seq: Sequence, plan: StepPlan) -> None:
        """Plan the next piece of a prefill that has begun, if it fits into this step."""
        start = seq.piece.stop
        count = self._count(seq, start)
        if not count:
            return
        seq.piece = range(start, start + count)
        seq.in_flight += 1
        self._spent += count
        self.tables.publish(seq)
        plan.prefill.append(seq)
        if seq.piece.stop == seq.prefill_length:
            seq.move(Phase.RUNNING)
            seq.num_scheduled += seq.emits

    def _count(self, seq: Sequence, start: int) -> int:
        """Tokens of the piece of `seq` that begins at `start`. 0: it has to wait for another step.

        Only what is longer than a whole budget is cut.
        """
        left = max(0, self._budget - self._spent)
        rest = (seq.length if start < seq.length else seq.prefill_length) - start
        return rest if rest <= left else left if rest > self._budget else 0

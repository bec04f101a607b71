"""Prefills: the launches of a step, when a queued request waits, and which pieces of prompts go
together. No torch.

A prefill is long, however few requests it has. It holds up the streams that run, and those that
come during it wait for the next one.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from stentor.config import Policy
from stentor.engine.scheduling.audio_scheduler import AudioJob, AudioScheduler
from stentor.engine.scheduling.pages import PageTables, Shared
from stentor.engine.scheduling.sequence import Phase, Sequence

MIN_LEAD_S = 0.04
"""Seconds of audio that a stream must still have buffered after 1.5 prefills."""

UNDERRUN = "a stream would underrun"
BATCHING = "many rows run, and another request may come"


def by_num_evals(sequences: list[Sequence]) -> list[list[Sequence]]:
    """Rows whose `emit` loops equally often together, in their order, so that no row pays for
    another's choice."""
    return [
        [s for s in sequences if s.num_evals == n]
        for n in dict.fromkeys([s.num_evals for s in sequences])
    ]


def by_prefill(sequences: list[Sequence]) -> list[list[Sequence]]:
    """Rows that are prefilled by one launch: pieces of prompts, as above, and last those that
    replay frames."""
    replays = [seq for seq in sequences if seq.replays]
    return by_num_evals([seq for seq in sequences if not seq.replays]) + (
        [replays] if replays else []
    )


@dataclass
class StepPlan:
    """One step. `admitted` and `resumed` begin a prefill. `regrown` have new pages for their table
    row."""

    admitted: list[Sequence] = field(default_factory=list)
    resumed: list[Sequence] = field(default_factory=list)
    # those and others go on with a piece of their prefill
    prefill: list[Sequence] = field(default_factory=list)
    decode: list[Sequence] = field(default_factory=list)
    regrown: list[Sequence] = field(default_factory=list)
    audio: list[AudioJob] = field(default_factory=list)
    parked: list[Sequence] = field(default_factory=list)
    unparked: list[Sequence] = field(default_factory=list)
    # share pages that others of this plan are to write
    dependent: list[Sequence] = field(default_factory=list)

    @property
    def launches(self) -> bool:
        """Whether the language model runs."""
        return bool(self.prefill or self.decode)

    @property
    def empty(self) -> bool:
        return not (self.launches or self.audio or self.parked)


class PrefillPlanner:
    """Starts prefills and cuts those that are longer than the budget into pieces. The budget of a
    step is `Policy.max_prefill_tokens`.

    A request gets all its pages before its first piece. The prompt and the frames that a resumed
    request had are never in one piece. Rows that could be decoded wait for one budget at most
    between two of their frames.
    """

    def __init__(self, tables: PageTables, policy: Policy) -> None:
        self.tables = tables
        self.policy = policy
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
        """The longer of the last two prefills. A long one raises the margin of streams for one
        more, not for ten."""
        return max(self._last)

    def delay_reason(
        self,
        first: Sequence,
        running: list[Sequence],
        live: list[Sequence],
        now: float,
        audio: AudioScheduler,
        slots: int,
    ) -> str | None:
        """Return why the prefill of the request `first` has to wait, or None if it need not.

        While it waits, `running` rows are decoded. live: all that have a slot. slots: how many
        there are.
        """
        waited = now - first.arrival
        if not running or waited >= self.policy.max_prefill_delay:
            return None
        in_flight = any(
            s.phase is Phase.RUNNING and s.in_flight and not s.num_generated for s in live
        )
        for seq in [s for s in running if audio.plays(s)]:
            # Seconds of audio that the client has left if no further frame is made.
            lead = audio.seconds(seq, seq.num_scheduled - seq.num_hidden) - seq.played(now)
            if in_flight and seq.num_generated:
                prefills = 2.5
            else:
                prefills = 1.5
            if lead < MIN_LEAD_S + prefills * self.seconds:
                return UNDERRUN
        if (
            first.phase is not Phase.PREFILLING
            and 2 * len(running) >= slots
            and waited < self.policy.batching_window
        ):
            return BATCHING
        return None

    def begin_plan(self, running: bool) -> None:
        """A step is planned. running: whether there are rows that could be decoded."""
        self.tables.begin_plan()
        self._kept_waiting = running
        if self._kept_waiting:
            self._spent = self._waited
        else:
            self._spent = 0

    def end_plan(self, decoded: bool) -> None:
        """decoded: the step has a frame for every row that can be decoded."""
        if self._kept_waiting and not decoded:
            self._waited = self._spent
        else:
            self._waited = 0

    def fits(self, seq: Sequence, shared: Shared) -> bool:
        """Whether the step has budget left for a piece of `seq` that begins behind its `shared`
        pages."""
        num_shared = len(shared.pages) * self.tables.pages.page_size
        return self._count(seq, max(seq.num_given, num_shared)) > 0

    def start(self, seq: Sequence, shared: Shared, plan: StepPlan) -> bool:
        """Allocate pages to `seq` and plan its first piece, which fits. Returns False if there are
        too few pages."""
        if not self.tables.start(seq, shared):
            return False
        if self.tables.depends(shared):
            plan.dependent.append(seq)
        seq.piece = range(seq.first_computed, seq.first_computed)
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
        seq.launch(frames=seq.emits)
        self._spent += count
        self.tables.publish(seq)
        plan.prefill.append(seq)
        if seq.piece.stop == seq.prefill_length:
            seq.move(Phase.RUNNING)

    def _count(self, seq: Sequence, start: int) -> int:
        """Tokens of the piece of `seq` that begins at `start`. 0: it has to wait for another step.

        Only what is longer than a whole budget is cut.
        """
        budget = max(0, self._budget - self._spent)
        rest = (seq.length if start < seq.length else seq.prefill_length) - start
        if rest <= budget:
            return rest
        if rest > self._budget:
            return budget
        return 0

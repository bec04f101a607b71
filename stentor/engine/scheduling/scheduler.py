"""Scheduler of requests: admission, prefill, decode, preemption. Pure policy on plain data. It
imports no torch.

One step goes on with prefills, resumes preempted requests and admits queued ones (all under a token
budget), generates one frame for every running request and launches the audio chunks that are due.
While requests are queued or prefilled, a step runs prefill or decode, not both. prefill.py decides
when a prefill waits.
"""

from __future__ import annotations

import sys
from collections import deque

from stentor.config import Policy
from stentor.engine.scheduling.audio_scheduler import SLOW_STEP_S, AudioJob, AudioScheduler
from stentor.engine.scheduling.pages import PageAllocator, PageTables
from stentor.engine.scheduling.prefill import PrefillPlanner, StepPlan
from stentor.engine.scheduling.sequence import BROKEN, RUNNING, Phase, Place, Sequence
from stentor.models.codec_timing import CAUSAL, CodecTiming


class Scheduler:
    """Owns queue, slots and pages. Every method is called from the engine's thread."""

    def __init__(
        self,
        slots: int,
        pages: PageAllocator,
        policy: Policy,
        max_parked: int,
        timing: CodecTiming = CAUSAL,
        frame_pages: PageAllocator | None = None,
    ) -> None:
        """max_parked: requests whose rows the host may hold. timing: how the codec takes a stream.
        frame_pages: those of page sets by frame."""
        self.slots = slots
        self.pages = pages
        self.policy = policy
        self.max_parked = max_parked
        self.tables = PageTables(pages, policy, frame_pages)
        self.prefills = PrefillPlanner(self.tables, policy)
        self.audio = AudioScheduler(policy, timing)
        self.queue: deque[Sequence] = deque()
        self.parked: list[Sequence] = []  # in the order in which they were parked
        self.live: list[Sequence] = []  # those that have a slot, oldest first
        self.draining: list[Sequence] = []  # of those
        self.free_slots = list(range(slots - 1, -1, -1))
        self.preemptions = 0
        self._planned_at = 0.0  # when the last plan was made
        self._stepping = 0  # requests that have their next frame soon

    # -- commands --

    def add(self, seq: Sequence, now: float) -> None:
        seq.arrival = now
        first = seq.place is Place.NEXT
        self.queue.insert(
            sum(s.place is Place.NEXT for s in self.queue) if first else len(self.queue), seq
        )

    def cancel(self, seq: Sequence) -> bool:
        """Stop a request wherever it is. True when it holds nothing any more."""
        seq.cancelled = True
        if seq.phase in (Phase.QUEUED, Phase.PARKED):
            (self.queue if seq.phase is Phase.QUEUED else self.parked).remove(seq)
            seq.move(Phase.DONE)
        elif seq.has_row:
            self._drain(seq)
        return seq.phase is Phase.DONE

    def add_text(self, seq: Sequence, frames: int, last: bool) -> None:
        """Note live text for `frames` more frames. `last`: none follows, and the model itself
        stops."""
        if last:
            seq.max_schedulable = sys.maxsize
        else:
            seq.max_schedulable = seq.max_schedulable + frames

    def fail(self, seq: Sequence, codec_frames: int = 0) -> None:
        """A launch that named `seq`, with `codec_frames` for the codec, has failed. The request is
        to be cancelled."""
        seq.landed()
        self.audio.in_codec -= codec_frames
        self.tables.forget(seq)

    # -- one step --

    def plan(self, now: float) -> StepPlan:
        """Plan the next step."""
        plan = StepPlan()
        going = Phase.RUNNING
        running = self.can_step(now)
        # a request that has ended keeps its slot while its last chunk waits for others
        self._stepping = 0
        if now - self._planned_at <= SLOW_STEP_S and (self.free_slots or not self.queue):
            self._stepping = len(running)
        self._planned_at = now
        behind = [s for s in self.live if s.phase is not going]
        self.prefills.begin_plan(bool(running))
        first = self._first_to_prefill(behind)
        if first is None or not self.prefills.delay_reason(
            first, running, self.live, now, self.audio, self.slots
        ):
            self._plan_prefill(plan, behind)
        decode = first is None or not plan.prefill
        if decode:
            self._plan_decode(plan, running, now)
        self.prefills.end_plan(decode)
        plan.audio = self.plan_audio(now)
        return plan

    def plan_audio(self, now: float) -> list[AudioJob]:
        """Audio chunks that are due."""
        return self.audio.plan(now, self._stepping)

    def can_step(self, now: float) -> list[Sequence]:
        """The running requests that are to generate their next frame now."""
        going = Phase.RUNNING
        latest = now + self.policy.max_ahead
        return [
            s
            for s in self.live
            if s.phase is going
            and s.max_frames > s.num_scheduled < s.max_schedulable
            and s.plays_until <= latest
        ]

    def _first_to_prefill(self, behind: list[Sequence]) -> Sequence | None:
        """The request whose prefill has begun, or the first of the queue if it can have a slot.
        Streams take turns with its prefill. None where they need not: there is none, it is short,
        or older requests resume.

        behind: those that have a slot and are not running.
        """
        if any(s.phase is Phase.PREEMPTED and s.may_go_on for s in behind):
            return None
        first = next((s for s in behind if s.phase is Phase.PREFILLING), None)
        if first is None and self.queue and (self.free_slots or any(s.idle for s in self.live)):
            first = self.queue[0]
        if first is None or first.continues:
            return None
        return first

    def _plan_prefill(self, plan: StepPlan, behind: list[Sequence]) -> None:
        for seq in [s for s in behind if s.phase is Phase.PREFILLING]:
            self.prefills.go_on(seq, plan)
        while self.queue and self.queue[0].continues and self._enter(self.queue[0], plan):
            plan.admitted.append(self.queue.popleft())
        for seq in [
            s for s in behind if s.phase is Phase.PREEMPTED and s.may_go_on and not s.in_flight
        ]:
            seq.rewind()
            if not self._start(seq, plan):
                # older work first: nothing is admitted while a preempted request waits for pages
                return
            plan.resumed.append(seq)
        for seq in [s for s in self.parked if s.may_go_on]:
            seq.rewind()
            at = self.parked.index(seq)
            del self.parked[at]  # so that another may take its place
            if not self._enter(seq, plan):
                self.parked.insert(at, seq)
                return  # and before what has not begun
            plan.unparked.append(seq)
            plan.resumed.append(seq)
        while self.queue and self._enter(self.queue[0], plan):
            plan.admitted.append(self.queue.popleft())

    def _enter(self, seq: Sequence, plan: StepPlan) -> bool:
        """Assign a slot to a request and start its prefill, if both are available."""
        if not self._start(seq, plan):
            return False
        seq.slot = self.free_slots.pop()
        self.live.append(seq)
        return True

    def _start(self, seq: Sequence, plan: StepPlan) -> bool:
        """Start a prefill if this step has budget and pages for it. Idle requests make room, also
        in the slot table."""
        shared = self.tables.shared(seq)
        if not self.prefills.fits(seq, shared):
            return False
        takes_slot = seq.phase is not Phase.PREEMPTED and not self.free_slots
        if takes_slot and len(self.parked) < self.max_parked:
            idle = _longest_idle(self.live)
        else:
            idle = None
        if takes_slot and idle is None:
            return False
        while not self.tables.has_room(seq, shared):
            holder = _longest_idle([s for s in self.live if s.pages])
            if holder is None:
                return False
            self._preempt(holder)
        if idle is not None:
            self._park(idle, plan)
        return self.prefills.start(seq, shared, plan)

    def _park(self, seq: Sequence, plan: StepPlan) -> None:
        """Take slot and pages of an idle request, whose row goes to the host."""
        self.tables.free(seq)
        seq.move(Phase.PARKED)
        self.live.remove(seq)
        self.free_slots.append(seq.slot)
        self.parked.append(seq)
        plan.parked.append(seq)

    def _plan_decode(self, plan: StepPlan, running: list[Sequence], now: float) -> None:
        for seq in [s for s in running if s.num_scheduled > s.room]:
            if seq.phase is Phase.RUNNING:  # not preempted so that another could grow
                self._grow(seq, plan, now)
        going = Phase.RUNNING
        plan.decode = [s for s in running if s.phase is going]  # growing may have preempted some
        plan.regrown = [s for s in plan.regrown if s.phase is Phase.RUNNING]
        for seq in plan.decode:
            seq.launch(frames=1)

    def _grow(self, seq: Sequence, plan: StepPlan, now: float) -> None:
        """Allocate pages for the next frame, preempting others or at last `seq` itself if
        needed."""
        while not self.tables.grow(seq):
            if ended := next((s for s in self.draining if s.pages), None):
                self.tables.free(ended)
                continue
            victim = _victim(self.live, plan, now)
            self._preempt(victim)
            if victim is seq:
                return
        plan.regrown.append(seq)

    def _preempt(self, seq: Sequence) -> None:
        self.preemptions += 1
        self.tables.free(seq)
        seq.move(Phase.PREEMPTED)
        self.audio.look_at(seq)  # no report has it looked at before it is resumed

    # -- results --

    def observe(self, seq: Sequence, generated: int, status: int, hidden: int = 0) -> None:
        """A step of `seq` has ended: `generated` frames exist, `hidden` of them without audio, and
        the row's stop value is `status`."""
        seq.landed()
        if seq.cancelled:
            return
        if seq.emitted_is_free:
            seq.max_schedulable += generated - hidden - seq.num_emitted
        seq.num_generated = generated
        seq.num_hidden = hidden
        seq.status = status
        if generated >= seq.audio_due and not self.audio.looks_at(seq):
            self.audio.look_at(seq)
        if status != RUNNING:
            self.audio.look_at(seq)
            if status == BROKEN:
                self.tables.forget(seq)
            if seq.has_row:
                self._drain(seq)

    def undo(self, seq: Sequence) -> None:
        """Put back a request whose prefill cannot be launched. It is prefilled again from the
        beginning."""
        seq.landed(lost=seq.emits)
        self.tables.forget(seq)
        self.tables.free(seq)
        seq.move(Phase.PREEMPTED)
        self.audio.look_at(seq)

    def _drain(self, seq: Sequence) -> None:
        # Freed pages may be allocated again at once, although a launched step may still write them:
        # all steps run on one stream, and the next owner writes later on it.
        if not seq.keeps_pages or seq.cancelled:
            self.tables.free(seq)
        seq.move(Phase.DRAINING)
        self.draining.append(seq)

    def complete(self) -> list[Sequence]:
        """Requests whose frames and audio have all come. `release` takes what they still hold."""
        return [s for s in self.draining if not s.in_flight and (s.cancelled or s.decoded)]

    def release(self, complete: list[Sequence]) -> None:
        """Release what complete requests hold. Their slots are free again."""
        for seq in complete:
            self.tables.free(seq)
            seq.move(Phase.DONE)
            self.free_slots.append(seq.slot)
        # last: a thread that reads how many run must find the slots of the others free
        if complete:
            self.draining = [s for s in self.draining if s.phase is not Phase.DONE]
            self.live = [s for s in self.live if s.phase is not Phase.DONE]

    @property
    def idle(self) -> bool:
        return not self.live and not self.queue and not self.parked

    @property
    def inert(self) -> bool:
        """Whether nothing can be done before a message arrives: every request, if any, waits for
        text."""
        return not self.queue and not any(s.may_go_on for s in (*self.live, *self.parked))


def _victim(live: list[Sequence], plan: StepPlan, now: float) -> Sequence:
    """The request to preempt: one that waits for text, else the one with the most
    audio buffered.

    Of equal ones it is the youngest. It is never the oldest request that could go on, so that
    something always finishes, nor one that this very plan prefills. live: oldest first.
    """
    prefilling = {id(s) for s in plan.prefill}
    holders = [
        s for s in live if s.phase in (Phase.RUNNING, Phase.PREFILLING) and id(s) not in prefilling
    ]
    if len(holders) == 1:
        return holders[0]
    if waiting := [s for s in holders if s.num_scheduled >= s.max_schedulable]:
        return waiting[-1]
    return max(holders[1:], key=lambda s: (s.lead(now), s.arrival, s.id))


def _longest_idle(live: list[Sequence]) -> Sequence | None:
    """The request that has waited for text for longest. None if every one has work."""
    return min((s for s in live if s.idle), key=lambda s: (s.last_audio, s.id), default=None)

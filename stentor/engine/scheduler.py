"""Who runs next: admission, prefill, decode, audio, preemption. Pure policy on plain data; imports no torch.

Order of work in one turn: resume what was preempted, admit what waits (both are prefills, under a token budget),
one frame for every running request, and audio chunks that have become due. While requests wait, a turn either lets in
or makes frames (`Turn`).
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from enum import Enum

from stentor.config import Policy
from stentor.engine.page_allocator import PagePool
from stentor.engine.sequence import RUNNING, Phase, Sequence

RAMP = (1, 2, 4, 8, 16, 25)
GENTLE_RAMP = (1, 1, 1, 2, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 25)
"""For a device that takes more than half as long as it speaks: up to a real-time factor of 0.75, no chunk takes longer
than what the listener still has."""
SOON = 1.0  # seconds: chunks of listeners who have more than this gather while the codec works, and go together
NEAR = 0.04  # seconds that a listener shall have left after a prefill and half another
UNHEARD = 5.0  # seconds: a whole utterance's audio waits behind listeners who have less than this


class Turn(Enum):
    """What is launched in a turn, besides audio."""

    BOTH = "both"
    PREFILL = "prefill"
    DECODE = "decode"
    WAIT = "wait"


@dataclass(frozen=True)
class AudioJob:
    """Decode `count` frames of `seq` from frame `start`; `last` when nothing follows."""

    seq: Sequence
    start: int
    count: int
    last: bool


@dataclass
class Plan:
    """One turn. `admitted` and `resumed` are prefilled together; `regrown` have new pages for their table row."""

    admitted: list[Sequence] = field(default_factory=list)
    resumed: list[Sequence] = field(default_factory=list)
    decode: list[Sequence] = field(default_factory=list)
    regrown: list[Sequence] = field(default_factory=list)
    audio: list[AudioJob] = field(default_factory=list)

    @property
    def launches(self) -> bool:
        """Whether the language model runs."""
        return bool(self.admitted or self.resumed or self.decode)

    @property
    def empty(self) -> bool:
        return not (self.launches or self.audio)


class Scheduler:
    """Owns queues, slots and pages. Every method is called from the engine's thread."""

    def __init__(self, slots: int, pages: PagePool, policy: Policy) -> None:
        self.slots, self.pages, self.policy = slots, pages, policy
        self.ramp = policy.ramp or RAMP
        self.queue: deque[Sequence] = deque()
        self.live: list[Sequence] = []  # RUNNING, PREEMPTED and DRAINING, oldest first
        self.free_slots = list(range(slots - 1, -1, -1))
        self.preemptions = 0
        self.prefill_seconds = 0.0  # that the longest of late has taken
        self.in_codec = 0  # frames given to the codec whose audio has not come

    # -- commands --

    def add(self, seq: Sequence, now: float) -> None:
        seq.arrival = now
        self.queue.append(seq)

    def cancel(self, seq: Sequence) -> bool:
        """Stop a request wherever it is. True when it is already gone (it held nothing)."""
        seq.cancelled = True
        if seq.phase is Phase.QUEUED:
            self.queue.remove(seq)
            seq.move(Phase.DONE)
        elif seq.phase in (Phase.RUNNING, Phase.PREEMPTED):
            self._drain(seq)
        return seq.phase is Phase.DONE

    def fail(self, seq: Sequence, error: BaseException, frames: int = 0) -> None:
        """A launch that named `seq` went wrong, on the codec of so many frames: it ends, as if cancelled."""
        seq.in_flight -= 1
        self.in_codec -= frames
        seq.error = error
        self.cancel(seq)

    # -- one turn --

    def plan(self, now: float) -> Plan:
        plan = Plan()
        running = [s for s in self.live if s.phase is Phase.RUNNING and self._goes_on(s, now)]
        turn = self._turn(running, now)
        if turn in (Turn.BOTH, Turn.PREFILL):
            self._prefills(plan)
        if turn in (Turn.BOTH, Turn.DECODE) or (turn is Turn.PREFILL and not plan.launches):
            self._decodes(plan, running, now)
        plan.audio = self.audio(now)
        return plan

    def _goes_on(self, seq: Sequence, now: float) -> bool:
        """Whether a running request is to make its next frame now."""
        if seq.launched >= min(seq.max_frames, seq.fed):
            return False
        return not (seq.streaming and seq.first_audio is not None and seq.lead(now) > self.policy.max_ahead)

    def _turn(self, running: list[Sequence], now: float) -> Turn:
        """What this turn's device time goes to, where there are requests that wait and `running` ones.

        Prefills are long, and each makes its first frames in a pass of its own, however few they are.
        """
        if not self.queue or not self.free_slots or any(s.phase is Phase.PREEMPTED for s in self.live):
            return Turn.BOTH
        waited = now - self.queue[0].arrival
        prefilling = any(s.phase is Phase.RUNNING and s.in_flight and not s.made for s in self.live)
        if running and waited < self.policy.max_prefill_delay:
            if self._pressed(running, prefilling, now):
                return Turn.DECODE
            if 2 * len(running) >= self.slots and waited < self.policy.batching_window:
                return Turn.DECODE
        if prefilling and sum(s.length for s in self.queue) < self.policy.max_prefill_tokens:
            return Turn.WAIT  # more may come until that has ended
        return Turn.PREFILL

    def _pressed(self, running: list[Sequence], prefilling: bool, now: float) -> bool:
        """Whether a listener may have heard all that was launched before another prefill and the step after it end."""
        for seq in running:
            under_way = prefilling and seq.made > 0  # what it does not itself wait for
            margin = NEAR + (2.5 if under_way else 1.5) * self.prefill_seconds
            if seq.streaming and seq.launched * seq.hop_seconds - seq.played(now) < margin:
                return True
        return False

    def _prefills(self, plan: Plan) -> None:
        spent = 0
        for seq in [s for s in self.live if s.phase is Phase.PREEMPTED and not s.in_flight and s.made < s.fed]:
            seq.launched = seq.made
            if not self._start(seq, spent):
                return  # older work first: nothing is admitted while a preempted request waits for pages
            plan.resumed.append(seq)
            spent += self._cost(seq)
        while self.queue and self.free_slots and self._start(self.queue[0], spent):
            seq = self.queue.popleft()
            seq.slot = self.free_slots.pop()
            self.live.append(seq)
            plan.admitted.append(seq)
            spent += self._cost(seq)

    def _cost(self, seq: Sequence) -> int:
        """Prefill budget that a started request takes; one that must be alone takes all."""
        return self.policy.max_prefill_tokens if seq.retry_alone else seq.length + seq.launched - 1

    def _start(self, seq: Sequence, spent: int) -> bool:
        """Give `seq` pages for its prompt and past frames, if it fits this turn."""
        tokens = seq.length + seq.launched
        if spent and (seq.retry_alone or spent + tokens > self.policy.max_prefill_tokens):
            return False
        taken = self._take(seq, tokens)
        if taken is None:
            return False
        seq.pages = taken
        seq.move(Phase.RUNNING)
        seq.launched += 1
        seq.in_flight += 1
        return True

    def _take(self, seq: Sequence, tokens: int) -> list[int] | None:
        """Pages so that `seq` can hold `tokens` tokens: some more for growth if there are, else just enough."""
        roomy = min(tokens + self.policy.reserve_tokens, seq.length + seq.max_frames)
        held = len(seq.pages)
        for total in (max(roomy, tokens), tokens):
            taken = self.pages.take(self.pages.pages_for(total) - held)
            if taken is not None:
                return taken
        return None

    def _decodes(self, plan: Plan, running: list[Sequence], now: float) -> None:
        for seq in running:
            if seq.phase is not Phase.RUNNING:  # preempted for another's growth
                continue
            if len(seq.pages) * self.pages.size < seq.length + seq.launched and not self._grow(seq, plan, now):
                continue
            plan.decode.append(seq)
        plan.decode = [s for s in plan.decode if s.phase is Phase.RUNNING]  # growth may have preempted some
        plan.regrown = [s for s in plan.regrown if s.phase is Phase.RUNNING]
        for seq in plan.decode:
            seq.launched += 1
            seq.in_flight += 1

    def _grow(self, seq: Sequence, plan: Plan, now: float) -> bool:
        """More pages for the next frame; others are preempted for them. False: `seq` itself was preempted."""
        while (taken := self._take(seq, seq.length + seq.launched)) is None:
            victim = self._victim(plan, now)
            self._preempt(victim)
            if victim is seq:
                return False
        seq.pages += taken
        plan.regrown.append(seq)
        return True

    def _victim(self, plan: Plan, now: float) -> Sequence:
        """The request that can best wait: one that waits for text anyway, then furthest ahead of its listener, then
        youngest. Never the oldest that could go on, so that something always finishes; nor one whose prefill is in this
        very plan."""
        started = {id(s) for s in (*plan.admitted, *plan.resumed)}
        holders = [s for s in self.live if s.phase is Phase.RUNNING and id(s) not in started]
        if len(holders) == 1:
            return holders[0]
        if waiting := [s for s in holders if s.launched >= s.fed]:
            return waiting[-1]
        return max(holders[1:], key=lambda s: (s.lead(now), s.arrival, s.id))

    def _preempt(self, seq: Sequence) -> None:
        self.preemptions += 1
        self.pages.give(seq.pages)
        seq.pages = []
        seq.move(Phase.PREEMPTED)

    def audio(self, now: float) -> list[AudioJob]:
        """Chunks that are due, the most urgent first, as far as the codec has room: what waits here can be overtaken
        by a first chunk, what the codec has been given cannot."""
        due = [s for s in self.live if not s.cancelled and self._due(s)[0]]
        jobs: list[AudioJob] = []
        busy = self.codec_busy
        while due:
            due.sort(key=lambda s: self._urgency(s, now))
            for seq in due:
                count, last = self._due(seq)
                if self.in_codec and self.in_codec + count > self.policy.max_frames_in_codec:
                    return jobs
                if busy and self._urgency(seq, now)[0] >= SOON:
                    return jobs
                jobs.append(AudioJob(seq, seq.audio_planned, count, last))
                self.in_codec += count
                seq.audio_planned += count
                seq.audio_chunks += 1
                seq.in_flight += 1
            due = [s for s in due if self._due(s)[0]]
        return jobs

    @property
    def codec_busy(self) -> bool:
        """Whether the codec has enough to do."""
        return self.in_codec > self.policy.max_frames_in_codec // 8

    def _due(self, seq: Sequence) -> tuple[int, bool]:
        """Frames of the next chunk (0: not yet), and whether it is the last."""
        ready, size, ended = seq.made - seq.audio_planned, self._chunk(seq), seq.status != RUNNING
        if ready < size and not ended:
            if ready <= 0 or seq.made < seq.fed:
                return 0, False
            size = self._rung(ready)  # what there is can be heard while more text is awaited
        elif seq.audio_chunks and seq.streaming:
            size = max(size, self._rung(ready))  # the codec is behind: longer chunks cost it less
        count = min(ready, size)
        return count, ended and count == ready

    def _rung(self, ready: int) -> int:
        """The longest chunk of the ramp that `ready` frames fill."""
        return max((n for n in self.ramp if n <= min(ready, self.policy.chunk)), default=min(ready, self.policy.chunk))

    @staticmethod
    def _urgency(seq: Sequence, now: float) -> tuple[float, float]:
        """First chunks in the order of their requests, then by what each listener still has; nobody waits for the
        parts of a whole utterance."""
        if not seq.streaming:
            return UNHEARD, seq.arrival
        if not seq.audio_chunks:
            return float("-inf"), seq.arrival
        played = 0.0 if seq.first_audio is None else now - seq.first_audio
        return seq.audio_planned * seq.hop_seconds - played, seq.arrival

    def _chunk(self, seq: Sequence) -> int:
        if not seq.streaming:
            return self.policy.chunk
        lead = 0 if seq.audio_chunks else seq.skip
        return min(self.ramp[min(seq.audio_chunks, len(self.ramp) - 1)] + lead, self.policy.chunk)

    # -- what came back --

    def prefilled(self, seconds: float) -> None:
        """A prefill has kept the device for so long."""
        self.prefill_seconds = max(seconds, 0.9 * self.prefill_seconds)

    def observe(self, seq: Sequence, made: int, status: int) -> None:
        """A step's ticket for `seq` has retired: `made` frames exist and the row's stop value is `status`."""
        seq.in_flight -= 1
        if seq.cancelled:
            return
        seq.made, seq.status = made, status
        if status != RUNNING and seq.phase in (Phase.RUNNING, Phase.PREEMPTED):
            self._drain(seq)

    def heard(self, seq: Sequence, count: int, now: float) -> None:
        """The audio of `count` frames has arrived on the host."""
        seq.in_flight -= 1
        self.in_codec -= count
        if seq.first_audio is None or seq.lead(now) < 0:  # who has run dry goes on now
            seq.first_audio = now - seq.audio_done * seq.hop_seconds
        seq.audio_done += count

    def undo(self, seq: Sequence) -> None:
        """A prefill batch failed: `seq` goes back and will be tried by itself."""
        seq.in_flight -= 1
        seq.launched -= 1
        seq.retry_alone = True
        self.pages.give(seq.pages)
        seq.pages = []
        seq.move(Phase.PREEMPTED)

    def _drain(self, seq: Sequence) -> None:
        # Pages may be reused at once although a launched step may still write them: all LM work is ordered on one
        # stream, and whoever gets the pages writes after it.
        self.pages.give(seq.pages)
        seq.pages = []
        seq.move(Phase.DRAINING)

    def finished(self) -> list[Sequence]:
        """Requests that are complete and hold nothing any more; their slots are free again."""
        done = [s for s in self.live if s.phase is Phase.DRAINING and not s.in_flight and self._complete(s)]
        if done:
            self.live = [s for s in self.live if s not in done]
            for seq in done:
                seq.move(Phase.DONE)
                self.free_slots.append(seq.slot)
        return done

    @staticmethod
    def _complete(seq: Sequence) -> bool:
        return seq.cancelled or seq.audio_done == seq.made

    @property
    def idle(self) -> bool:
        return not self.live and not self.queue

    @property
    def inert(self) -> bool:
        """Whether nothing can be done before a command comes: no request, or none whose text goes on."""
        return not self.queue and all(s.made >= s.fed for s in self.live)

    def check(self) -> None:
        """Invariants: every page and slot is either free or held once."""
        held = [p for s in self.live for p in s.pages]
        assert len(held) == len(set(held)), "a page is held twice"
        assert len(held) + self.pages.available == self.pages.count, "a page was lost"
        slots = [s.slot for s in self.live]
        assert sorted(slots + self.free_slots) == list(range(len(slots) + len(self.free_slots))), "a slot was lost"
        for s in self.live:
            assert s.in_flight >= 0
            assert (s.phase is Phase.RUNNING) == bool(s.pages), s
            if s.phase is Phase.RUNNING:
                assert s.length + s.launched - 1 <= len(s.pages) * self.pages.size

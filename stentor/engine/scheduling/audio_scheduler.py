"""Choice of the audio chunks that the codec decodes next. Pure policy on plain data. It imports no torch.

First chunks go first, then the chunks of streams whose clients have the least audio buffered. Launched
chunks cannot be overtaken, so the codec holds few frames (`Policy.max_frames_in_codec`).
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import dataclass
from heapq import heappop, heappush
from operator import itemgetter

from stentor.config import Policy
from stentor.engine.scheduling.sequence import RUNNING, Phase, Sequence
from stentor.models.codec_timing import CAUSAL, CodecTiming

RAMP = (1, 2, 4, 8, 16, 25)
GENTLE_RAMP = (1, 1, 1, 2, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 25)
"""For a device that needs more than half of real time. Up to a real-time factor of 0.75 no chunk takes longer to
generate than the client has buffered."""
FRAMES_IN_CODEC = 256
CELLS_IN_CODEC = 128
"""Default limit of what the codec holds. A codec with a grid holds two calls of 64 rows."""
BATCH_LEAD_S = 1.0
"""Seconds. While the codec is busy, chunks of streams with more audio buffered wait and are batched."""
SOON_FRAMES = 8
SOON_LEAD_S = 0.5
"""A codec with a grid waits for streams that lack so few frames for their first chunk, or a grid of them for a later
one: while each client has `BATCH_LEAD_S` of audio buffered, or has had none or so many seconds, for the time of so many
frames. Streams whose chunks went together once do so from then on."""
NON_STREAMING_LEAD_S = 5.0
"""Seconds. Chunks of an utterance that is not streamed wait behind streams with less audio buffered."""


@dataclass(frozen=True)
class AudioJob:
    """Decode `count` frames of `seq` from frame `start`. `last`: nothing follows.

    Frames before 0 are the last of the prompt's codec prefix.
    """

    seq: Sequence
    start: int
    count: int
    last: bool
    whole: bool = False  # the utterance, with its codec prefix, in one call


Entry = tuple[float, float, int, Sequence, bool]
"""A request by its urgency and then its id, and whether its client plays."""


class ByUrgency:
    """Requests whose next chunk may be due, the most urgent first.

    All buffers that play shrink equally fast, so time does not change their order: it is that of the times at which
    they run dry. Requests that nobody plays have an urgency that stays. An entry is replaced when its request changes,
    and skipped when it comes up.
    """

    def __init__(self) -> None:
        self._entries: dict[int, Entry] = {}  # by id: the one that counts
        self._playing: list[Entry] = []
        self._still: list[Entry] = []

    def __contains__(self, id: int) -> bool:
        return id in self._entries

    def add(self, seq: Sequence, urgency: tuple[float, float]) -> None:
        """Add a request, or move it to another place. urgency: as at time 0."""
        plays = (
            seq.streaming and seq.audio_chunks > 0 and seq.first_audio is not None
        )  # time makes it more urgent
        entry = (*urgency, seq.id, seq, plays)
        if self._entries.get(seq.id) != entry:
            self._entries[seq.id] = entry
            heappush(self._playing if entry[-1] else self._still, entry)

    def remove(self, seq: Sequence) -> None:
        del self._entries[seq.id]

    def first(self, now: float) -> tuple[float, Sequence] | None:
        """Return the most urgent request and the seconds that its client will have buffered. None if there is none."""
        playing = self._head(self._playing)
        still = self._head(self._still)
        if playing is None and still is None:
            return None
        if still is None or (playing is not None and (playing[0] - now, *playing[1:3]) < still[:3]):
            assert playing is not None
            return playing[0] - now, playing[3]
        return still[0], still[3]

    def _head(self, heap: list[Entry]) -> Entry | None:
        while heap:
            if self._entries.get(heap[0][2]) is heap[0]:
                return heap[0]
            heappop(heap)
        return None


class AudioScheduler:
    """Counts the frames that the codec holds. Every method is called from the engine's thread.

    `look_at` is called for each change that may make a chunk due, so that a plan looks at no other request. While the
    codec is busy it looks at no request whose client has `BATCH_LEAD_S` buffered either.
    """

    def __init__(self, policy: Policy, timing: CodecTiming = CAUSAL) -> None:
        self.policy = policy
        self.timing = timing
        self.chunk, self.ramp = chunk_sizes(policy, timing)
        self._longest = [self._longest_chunk(ready) for ready in range(self.chunk + 1)]
        self.in_codec = 0  # frames given to the codec whose audio has not come
        self.most_in_codec = most_in_codec(policy, timing)
        self._waiting = ByUrgency()  # all whose next chunk may be due
        self._changed: dict[
            int, Sequence
        ] = {}  # the same for a codec with a grid, by id: a plan looks at each of them
        self._now = 0.0  # of the last plan

    @property
    def starts_at_once(self) -> bool:
        """Whether frame 0 is a stream's first chunk."""
        return self.ramp[0] == 1 and not self.timing.lookahead and not self.timing.late

    @property
    def busy(self) -> bool:
        """Whether the codec has enough to do."""
        return self.in_codec > self.most_in_codec // 8

    def look_at(self, seq: Sequence) -> None:
        """The next chunk of `seq` may be due: it has enough frames, or no more follow, or none for now."""
        if self.timing.grid > 1:
            self._changed[seq.id] = seq
        else:
            self._waiting.add(seq, self._urgency(seq, 0.0))

    def release(self, seq: Sequence) -> None:
        """The reader of `seq` has left too much: no frames follow for now, and those that it has go to the codec."""
        seq.audio_due = 0
        self.look_at(seq)

    def looks_at(self, seq: Sequence) -> bool:
        """Whether the next plans look at `seq`."""
        return seq.id in self._waiting or seq.id in self._changed

    def has_frames(self, seq: Sequence) -> None:
        """`seq` has further frames: its next chunk may be due."""
        due = seq.num_generated >= seq.audio_due or (self.timing.window and self._runs_low(seq))
        if due and seq.id not in self._waiting:
            self.look_at(seq)

    def plan(self, now: float, live: Iterable[Sequence] = ()) -> list[AudioJob]:
        """Chunks to launch now, the most urgent first. Chunks that do not fit wait, and a first chunk can
        overtake them. live: requests that may have a chunk soon.
        """
        self._now = now
        if self.timing.grid > 1:
            return self._plan_call(now, live)
        jobs: list[AudioJob] = []
        again: list[Sequence] = []  # each request has a chunk before any has its second
        busy = self.busy
        waiting = self._waiting
        while True:
            if (found := waiting.first(now)) is None and again:
                for seq in again:
                    self.look_at(seq)
                again = []
                continue
            if found is None:
                break
            lead, seq = found
            if busy and lead >= BATCH_LEAD_S:
                break
            count, last = self._next_chunk(seq, lead)
            if not count or seq.cancelled:
                waiting.remove(seq)
                seq.audio_due = self._due_at(seq, lead)
                continue
            if self.in_codec and self.in_codec + count > self.most_in_codec:
                break
            waiting.remove(seq)
            jobs.append(AudioJob(seq, seq.audio_scheduled, count, last))
            if self._schedule(jobs[-1], now):
                again.append(seq)
        for seq in again:
            self.look_at(seq)
        return jobs

    def _plan_call(self, now: float, live: Iterable[Sequence]) -> list[AudioJob]:
        """Calls for a codec with a grid: it holds two of them, or one utterance if that is longer.

        One call of many rows takes far less time than a call for each, so what is due while the codec works goes
        together. Only a full call of streams goes behind another: the device need not wait for the host then.
        """
        jobs: list[AudioJob] = []
        behind = self.in_codec > 0
        full = self.most_in_codec // 2
        given = 0
        if self.in_codec > full or (behind and len(self._changed) * self.chunk < full):
            return jobs
        while due := [
            (lead, job) for (lead, _), job in self._due(now) if not (behind and job.whole)
        ]:
            few = sum(job.count for _, job in due) < full
            if few and (behind or (not jobs and _worth_waiting(due, live, self.timing.grid))):
                return jobs
            for _, job in due:
                if given + job.count > full and (given or behind):
                    return jobs
                if not self._schedule(job, now):
                    del self._changed[job.seq.id]
                jobs.append(job)
                given += job.count
        return jobs

    def _due(self, now: float) -> list[tuple[tuple[float, float], AudioJob]]:
        """The next chunk of each request that has one, and its urgency. The most urgent first."""
        found = []
        for seq in list(self._changed.values()):
            urgency = self._urgency(seq, now)
            count, last = self._next_chunk(seq, urgency[0])
            if count and not seq.cancelled:
                job = AudioJob(seq, seq.audio_scheduled, count, last, self._is_whole(seq))
                found.append((urgency, job))
            else:
                seq.audio_due = self._due_at(seq, urgency[0])
                if not self._waits_for_pages(seq):
                    del self._changed[seq.id]
        return sorted(found, key=itemgetter(0))

    def _schedule(self, job: AudioJob, now: float) -> bool:
        """Give the codec a chunk. Returns whether the next one of its request may be due already."""
        seq = job.seq
        self.in_codec += job.count
        seq.audio_scheduled += job.count
        seq.audio_chunks += 1
        seq.launch()
        seq.audio_due = self._due_at(seq, self._urgency(seq, now)[0])
        return (
            seq.num_generated >= seq.audio_due
            or seq.status != RUNNING
            or self._waits_for_pages(seq)
        )

    def _waits_for_pages(self, seq: Sequence) -> bool:
        """Whether its next chunk waits for a further page. Each plan looks at it, as its client plays meanwhile."""
        if not self.timing.window or seq.status != RUNNING or seq.cancelled:
            return False
        return seq.num_heard - seq.audio_scheduled - self.timing.lookahead >= self.timing.grid

    def _runs_low(self, seq: Sequence) -> bool:
        """Whether a stream waits for a further page while its client has little buffered: then it waits no more."""
        return (
            seq.audio_chunks > 0
            and self._waits_for_pages(seq)
            and self._urgency(seq, self._now)[0] < SOON_LEAD_S
        )

    def _is_held_up(self, seq: Sequence) -> bool:
        """Whether it is a stream without pages for its next frame. It gives what it has, since its client plays on."""
        return seq.phase is Phase.PREEMPTED and seq.streaming and not self.timing.window

    def _due_at(self, seq: Sequence, lead: float) -> int:
        """Frames without which no chunk is due of a request that goes on. From then on each report has it looked at."""
        if seq.unread or self._is_held_up(seq):
            return 0
        if self._is_whole(seq):
            return sys.maxsize
        audible = seq.audio_scheduled + self._wanted(seq, lead) + self.timing.lookahead
        return min(seq.num_unheard + audible, seq.max_schedulable)

    def on_audio(self, job: AudioJob, now: float) -> range:
        """The audio of a chunk has arrived on the host. The frames whose audio it is."""
        seq = job.seq
        audio = self.timing.audio(job.start, job.count, job.last)
        seq.landed()
        self.in_codec -= job.count
        if audio:
            seq.last_audio = now
            if (
                seq.first_audio is None or seq.lead(now) < 0
            ):  # a client that ran dry plays on from now
                if seq.first_audio is None:
                    late = seq.late_seconds
                else:
                    late = 0.0
                seq.first_audio = now - seq.audio_delivered * seq.hop_seconds - late
                if seq.id in self._waiting:
                    self.look_at(seq)  # at another place
            seq.audio_delivered += len(audio)
            if seq.streaming:
                seq.plays_until = seq.first_audio + seq.audio_delivered * seq.hop_seconds
        return audio

    def seconds(self, seq: Sequence, frames: int) -> float:
        """Seconds of audio that so many frames of a stream that goes on give."""
        offset = min(0, seq.audio_scheduled)
        decoded = self.timing.chunks_of(frames - offset) + offset
        return max(0, decoded - self.timing.delay) * seq.hop_seconds

    def plays(self, seq: Sequence) -> bool:
        """Whether a client may be playing, or is about to.

        A first chunk with a look-ahead takes a whole grid of frames. Until a third of them is made, other requests
        join, so that their chunks share calls.
        """
        joins = (
            self.timing.lookahead
            and seq.first_audio is None
            and seq.num_generated <= self.timing.grid // 3
        )
        return seq.streaming and not joins

    def _next_chunk(self, seq: Sequence, lead: float) -> tuple[int, bool]:
        """Frames of the next chunk (0: it is not due), and whether it is the last. lead: seconds that the client has
        buffered."""
        ended = seq.status != RUNNING
        if seq.decoded:
            ready = 0
        else:
            ready = seq.num_heard - seq.audio_scheduled - (0 if ended else self.timing.lookahead)
        if self._is_whole(seq):
            if ended:
                return (ready, True)
            return (0, False)
        size = self._wanted(seq, lead)
        if self.timing.window:
            max_size = size
        else:
            max_size = self.chunk
        if ready < size and not ended:
            if ready <= 0 or (seq.may_go_on and not self._is_held_up(seq)):
                return 0, False
            size = self._longest[
                min(ready, max_size)
            ]  # nothing follows for now: these can be played meanwhile
        elif seq.audio_chunks and seq.streaming:
            longest = self._longest[min(ready, max_size)]
            size = max(
                size, longest
            )  # more frames wait than were due: longer chunks cost the codec less
        count = min(ready, size)
        return count, ended and count == ready

    def _is_whole(self, seq: Sequence) -> bool:
        return self.timing.whole and not seq.streaming

    def _longest_chunk(self, ready: int) -> int:
        """The longest chunk, of the ramp or the longest of all, that `ready` frames fill."""
        limit = ready // self.timing.grid * self.timing.grid
        return max((n for n in (*self.ramp, self.chunk) if n <= limit), default=limit)

    def _wanted(self, seq: Sequence, lead: float) -> int:
        """Frames of the next chunk, unless the stream ends: by the ramp, or pages of the codec.

        Where a chunk has several pages, those before it are read once for all of them. A stream whose client has little
        buffered takes one page, since it would wait for the others, unless that brings no audio: all of it is of the
        codec prefix.
        """
        if self.timing.window:
            at = seq.audio_scheduled
            grid = self.timing.grid
            several = lead >= SOON_LEAD_S or not self.timing.audio(at, grid, last=False)
            if several and at + self.chunk <= seq.window_end:
                return self.chunk
            return grid
        if not seq.streaming:
            return self.chunk
        if seq.audio_chunks:
            extra = 0
        else:
            extra = seq.trim_frames
        size = self.ramp[min(seq.audio_chunks, len(self.ramp) - 1)] + extra
        return min(self.timing.on_grid(size), self.chunk)

    def _urgency(self, seq: Sequence, now: float) -> tuple[float, float]:
        """Sort key. First chunks come in the order of their requests, then chunks by the seconds of audio that each
        client will have buffered. No client waits for the parts of an utterance that is not streamed."""
        if not seq.streaming:
            return NON_STREAMING_LEAD_S, seq.arrival
        if not seq.audio_chunks:
            return float("-inf"), seq.arrival
        return max(0, seq.audio_scheduled - self.timing.delay) * seq.hop_seconds - seq.played(
            now
        ), seq.arrival


def _is_due_soon(seq: Sequence, grid: int) -> bool:
    """Whether few steps make the next chunk due. `audio_due` is never beyond what text and reader allow."""
    if seq.audio_chunks:
        soon = grid
    else:
        soon = SOON_FRAMES
    return seq.phase is Phase.RUNNING and 0 < seq.audio_due - seq.num_generated <= soon


def _worth_waiting(due: list[tuple[float, AudioJob]], live: Iterable[Sequence], grid: int) -> bool:
    """Whether these chunks, each with the seconds that its client has buffered, can wait for others that come soon."""
    patient = all(lead >= BATCH_LEAD_S or _has_just_become_due(job, lead) for lead, job in due)
    return patient and any(_is_due_soon(seq, grid) for seq in live)


def _has_just_become_due(job: AudioJob, lead: float) -> bool:
    """And of a stream whose client plays nothing yet or has a lead of some seconds."""
    seq = job.seq
    late = seq.num_generated - seq.audio_due
    return late < SOON_FRAMES and not job.last and (seq.first_audio is None or lead >= SOON_LEAD_S)


def most_in_codec(policy: Policy, timing: CodecTiming) -> int:
    """Frames that the codec holds: few, or enough cells of a codec with a grid that it need not wait for the next."""
    if policy.max_frames_in_codec is not None:
        return policy.max_frames_in_codec
    if timing.grid == 1:
        return FRAMES_IN_CODEC
    return max(FRAMES_IN_CODEC, CELLS_IN_CODEC * timing.grid)


def chunk_sizes(policy: Policy, timing: CodecTiming) -> tuple[int, tuple[int, ...]]:
    """The longest chunk and the ramp, on the codec's grid."""
    if policy.chunk is None:
        max_chunk = timing.chunk
    else:
        max_chunk = policy.chunk
    if timing.window:
        several = timing.chunk_pages
    else:
        several = max(1, max_chunk // timing.grid)
    chunk = several * timing.grid
    return chunk, tuple(min(timing.on_grid(n), chunk) for n in policy.ramp or RAMP)

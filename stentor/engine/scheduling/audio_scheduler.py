"""Choice of the audio chunks that the codec decodes next. Pure policy on plain data. It imports no
torch.

First chunks go first, then the chunks of streams whose clients have the least audio buffered.
Launched chunks cannot be overtaken, so the codec holds few frames (`Policy.max_frames_in_codec`).
"""

from __future__ import annotations

from dataclasses import dataclass
from heapq import heappop, heappush

from stentor.config import Policy
from stentor.engine.scheduling.chunks import chunks_for
from stentor.engine.scheduling.sequence import RUNNING, Sequence
from stentor.models.codec_timing import CAUSAL, CodecTiming, PieceTiming, UtteranceTiming

FRAMES_OF_CALL = 256
UTTERANCE_FRAMES_OF_CALL = 1600
"""Frames in one of a codec's large calls (`CodecTiming.calls`). A codec that decodes each chunk
from its utterance reads more."""
BATCH_LEAD_S = 1.0
"""Seconds. Chunks of streams with more audio buffered are batched: they wait while the codec is
busy, and for the chunks of others."""
BATCH_SHARE = 2
BATCH_WAIT_S = 0.01
"""Such a chunk waits until one in BATCH_SHARE of the streams that step has one, and so many seconds
at most: a codec call of few rows takes the host as long as one of many, and the device nearly so.
Streams that share a call share their next ones too."""
SLOW_STEP_S = 0.005
"""Seconds. Where steps take longer, no chunk waits for others."""
LONG_AGO = float("-inf")
NON_STREAMING_LEAD_S = 5.0
"""Seconds. Chunks of an utterance that is not streamed wait behind streams with less audio
buffered."""


@dataclass(frozen=True)
class AudioJob:
    """Decode `count` frames of `seq` from frame `start`. `last`: nothing follows.

    reads: frames that the codec reads for it. More than `count` where it decodes a chunk from the
    utterance so far, and 1 for a whole piece of a family without steps.
    """

    seq: Sequence
    start: int
    count: int
    last: bool
    reads: int


Entry = tuple[float, float, int, Sequence, bool]
"""A request by its urgency and then its id, and whether its client plays."""


class ByUrgency:
    """Requests whose next chunk may be due, the most urgent first.

    All buffers that play shrink equally fast, so time does not change their order: it is that of
    the times at which they run dry. Requests that nobody plays have an urgency that stays. An entry
    is replaced when its request changes, and skipped when it comes up.
    """

    def __init__(self) -> None:
        self._entries: dict[int, Entry] = {}  # by id: the one that counts
        self._playing: list[Entry] = []
        self._still: list[Entry] = []

    def __contains__(self, id: int) -> bool:
        return id in self._entries

    def __len__(self) -> int:
        return len(self._entries)

    def add(self, seq: Sequence, urgency: tuple[float, float]) -> None:
        """Add a request, or move it to another place. urgency: as at time 0."""
        # time makes it more urgent
        plays = seq.streaming and seq.audio_chunks > 0 and seq.first_audio is not None
        entry = (*urgency, seq.id, seq, plays)
        if self._entries.get(seq.id) != entry:
            self._entries[seq.id] = entry
            heappush(self._playing if entry[-1] else self._still, entry)

    def remove(self, seq: Sequence) -> None:
        del self._entries[seq.id]

    def first(self, now: float) -> tuple[float, Sequence] | None:
        """Return the most urgent request and the seconds that its client will have buffered. None
        if there is none."""
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
    """Counts the frames that the codec reads. Every method is called from the engine's thread.

    `look_at` is called for each change that may make a chunk due, so that a plan looks at no other
    request. While the codec is busy it looks at no request whose client has `BATCH_LEAD_S` buffered
    either.
    """

    def __init__(self, policy: Policy, timing: CodecTiming = CAUSAL) -> None:
        self.policy = policy
        self.chunks = chunks_for(policy, timing)
        self.in_codec = 0  # frames that the codec reads and whose audio has not come
        self.max_in_codec = max_in_codec(policy, timing)
        self._busy_above = self.max_in_codec // timing.calls // 8
        self._enough = enough_in_codec(policy, timing)
        self._waiting = ByUrgency()  # all whose next chunk may be due
        self._waiting_since: float | None = None  # when a chunk began to wait

    @property
    def busy(self) -> bool:
        """Whether the codec reads more than an eighth of a large call."""
        return self.in_codec > self._busy_above

    def look_at(self, seq: Sequence) -> None:
        """The next chunk of `seq` may be due: it has enough frames, or no more follow, or none for
        now."""
        self._waiting.add(seq, self._urgency(seq, 0.0))

    def looks_at(self, seq: Sequence) -> bool:
        """Whether the next plans look at `seq`."""
        return seq.id in self._waiting

    def plan(self, now: float, stepping: int) -> list[AudioJob]:
        """Chunks to launch now, the most urgent first. Chunks that do not fit wait, and a first
        chunk can overtake them.

        stepping: requests that have their next frame soon.
        """
        jobs: list[AudioJob] = []
        again: list[Sequence] = []  # each request has a chunk before any has its second
        can_wait = self.in_codec > self._enough or not self._batch_is_due(now, stepping)
        some_wait = False
        waiting = self._waiting
        while True:
            urgent = waiting.first(now)
            if urgent is None and again:
                for seq in again:
                    self.look_at(seq)
                again = []
                continue
            if urgent is None:
                break
            lead, seq = urgent
            if can_wait and lead >= BATCH_LEAD_S:
                some_wait = True
                break
            count, last = self.chunks.next_chunk(seq)
            if not count or seq.cancelled:
                waiting.remove(seq)
                self._note_waiting(seq)
                continue
            reads = self.chunks.reads(seq, count, last)
            if self.in_codec and self.in_codec + reads > self.max_in_codec:
                some_wait = True
                self._waiting_since = LONG_AGO  # the rest of a batch follows as soon as it fits
                break
            waiting.remove(seq)
            jobs.append(AudioJob(seq, seq.audio_scheduled, count, last, reads))
            if self._schedule(jobs[-1]):
                again.append(seq)
        for seq in again:
            self.look_at(seq)
        if not some_wait:
            self._waiting_since = None
        elif self._waiting_since is None:
            self._waiting_since = now
        return jobs

    def _batch_is_due(self, now: float, stepping: int) -> bool:
        """Whether chunks that can wait need not wait for those of others."""
        waiting = len(self._waiting)
        if waiting * BATCH_SHARE >= stepping:
            return True
        return self._waiting_since is not None and now - self._waiting_since >= BATCH_WAIT_S

    def _schedule(self, job: AudioJob) -> bool:
        """Schedule a chunk for the codec. Returns whether the next one of its request may be due
        already."""
        seq = job.seq
        self.in_codec += job.reads
        seq.audio_scheduled += job.count
        seq.audio_chunks += 1
        seq.launch()
        self._note_waiting(seq)
        return seq.num_generated >= seq.audio_due or seq.status != RUNNING

    def _note_waiting(self, seq: Sequence) -> None:
        """Note when the next chunk is due, and how many frames may wait for it."""
        seq.audio_due = self.chunks.due_at(seq)
        seq.audio_waiting = self.chunks.waiting(seq)

    def on_audio(self, job: AudioJob, now: float) -> None:
        """The audio of a chunk has arrived on the host."""
        seq = job.seq
        seq.landed()
        self.in_codec -= job.reads
        seq.last_audio = now
        if seq.first_audio is None or seq.lead(now) < 0:  # a client that ran dry plays on from now
            late = seq.late_seconds if seq.first_audio is None else 0.0
            seq.first_audio = now - seq.audio_delivered * seq.hop_seconds - late
            if seq.id in self._waiting:
                self.look_at(seq)  # at another place
        seq.audio_delivered += job.count
        if seq.streaming:
            seq.plays_until = seq.first_audio + seq.audio_delivered * seq.hop_seconds

    def seconds(self, seq: Sequence, frames: int) -> float:
        """Seconds of audio in this number of frames of an unfinished stream."""
        return self.chunks.decodable(seq, frames) * seq.hop_seconds

    def plays(self, seq: Sequence) -> bool:
        """Whether a client may be playing, or is about to."""
        return seq.streaming

    def _urgency(self, seq: Sequence, now: float) -> tuple[float, float]:
        """Sort key. First chunks come in the order of their requests, then chunks by the seconds of
        audio that each client will have buffered. No client waits for the parts of an utterance
        that is not streamed."""
        if not seq.streaming:
            return NON_STREAMING_LEAD_S, seq.arrival
        if not seq.audio_chunks:
            return float("-inf"), seq.arrival
        return seq.audio_scheduled * seq.hop_seconds - seq.played(now), seq.arrival


def max_in_codec(policy: Policy, timing: CodecTiming) -> int:
    """Frames that the codec reads at once. Pieces, where those are what it counts."""
    if isinstance(timing, PieceTiming):
        return timing.pieces
    if policy.max_frames_in_codec is not None:
        return policy.max_frames_in_codec
    if isinstance(timing, UtteranceTiming):
        return UTTERANCE_FRAMES_OF_CALL * timing.calls
    return FRAMES_OF_CALL * timing.calls


def enough_in_codec(policy: Policy, timing: CodecTiming) -> int:
    """Frames in the codec above which chunks that can wait do: those of all large calls but the
    last, and an eighth of the last."""
    limit = max_in_codec(policy, timing)
    if isinstance(timing, PieceTiming):
        return limit // 8
    call = limit // timing.calls
    return limit - call + call // 8

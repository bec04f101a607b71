"""From a plan to launches. A launch that fails ends only the requests that it names."""

from __future__ import annotations

import logging
from collections.abc import Callable

import torch

from stentor.engine.audio_scheduler import AudioJob
from stentor.engine.codec_runner import CodecRunner
from stentor.engine.inflight import InFlightAudio, InFlightStep
from stentor.engine.model_runner import ModelRunner
from stentor.engine.request_state import OpenRequests, Request
from stentor.engine.scheduler import Scheduler, StepPlan
from stentor.engine.sequence import Phase, Sequence

log = logging.getLogger("stentor.engine")


class Launcher:
    """Used from the engine's thread only."""

    def __init__(self, runner: ModelRunner, codec: CodecRunner, scheduler: Scheduler, requests: OpenRequests) -> None:
        self.runner, self.codec, self.scheduler, self.requests = runner, codec, scheduler, requests

    def step(self, plan: StepPlan) -> list[InFlightStep]:
        """Launch what `plan` has for the language model."""
        steps: list[InFlightStep] = []
        stats = self.requests.stats
        group = self._admit(plan) + [self.requests.of(s) for s in plan.resumed]
        paged = [r.seq for r in group] + plan.regrown
        if paged:
            self.runner.set_pages(paged)
        if group:
            stats.prefills += 1
            seqs = [r.seq for r in group]
            steps += self._try(seqs, lambda: self.runner.prefill([(r.seq, r.prompt) for r in group]), True)
            if steps:
                self._decode_first_frames(plan.admitted)
        if plan.decode:
            stats.steps += 1
            steps += self._try(plan.decode, lambda: self.runner.decode(plan.decode), False)
        return steps

    def audio(self, jobs: list[AudioJob]) -> list[InFlightAudio]:
        """Launch codec calls for these chunks."""
        if not jobs:
            return []
        try:
            return self.codec.decode(jobs)
        except Exception as e:
            self.survive(e)
            for job in jobs:
                self._fail(job.seq, e, job.count)
            return []

    def _admit(self, plan: StepPlan) -> list[Request]:
        """Write the rows of new requests, all at once. If that fails, one by one, so that only the culprit ends."""
        requests = [self.requests.of(seq) for seq in plan.admitted]
        if not requests:
            return []
        self.requests.leave_queue(len(requests))
        try:
            self._write_rows(requests)
            return requests
        except Exception as e:
            self.survive(e)
        admitted = []
        for r in requests:
            try:
                self._write_rows([r])
                admitted.append(r)
            except Exception as e:
                self._fail(r.seq, e)
        return admitted

    def _write_rows(self, requests: list[Request]) -> None:
        self.runner.admit([(r.seq, r.prompt, r.seed) for r in requests])
        self.codec.admit([(r.seq, r.prompt) for r in requests])

    def _decode_first_frames(self, admitted: list[Sequence]) -> None:
        """Send first frames to the codec before the host has read that they exist, if most running requests are new.

        Otherwise the codec's next chunks for older requests would wait for this prefill.
        """
        audio, live = self.scheduler.audio, self.scheduler.live
        first = [s for s in admitted if s.phase is Phase.RUNNING and s.streaming and not s.trim_frames]
        if first and audio.ramp[0] == 1 and 2 * len(first) >= len(live) and not audio.busy:
            try:
                self.codec.decode_first_frames(first)
            except Exception as e:
                self.survive(e)  # the chunks are tried again when they are due

    def _try(self, sequences: list[Sequence], launch: Callable[[], InFlightStep], prefill: bool) -> list[InFlightStep]:
        """Launch a step. A prefill of several that fails is repeated one by one, so that only the culprit ends."""
        try:
            return [launch()]
        except Exception as e:
            self.survive(e)
            for seq in sequences:
                if prefill and len(sequences) > 1:
                    self.scheduler.undo(seq)
                else:
                    self._fail(seq, e)
            return []

    def survive(self, error: Exception) -> None:
        """Log a failed launch. A CUDA error that has broken the device is raised again and ends the engine."""
        if self.runner.device.cuda and isinstance(error, torch.AcceleratorError):
            raise error
        log.error("a launch failed: %s", error, exc_info=error)

    def _fail(self, seq: Sequence, error: Exception, codec_frames: int = 0) -> None:
        self.scheduler.fail(seq, error, codec_frames)
        self.requests.end(self.requests.of(seq))

"""Requests that take several prompts, such as speaker turns: each next one is made from the frames of the last."""

from __future__ import annotations

import time

import numpy as np

from stentor.engine.request_state import OpenRequests, Request
from stentor.engine.scheduling.scheduler import Scheduler
from stentor.engine.scheduling.sequence import Sequence
from stentor.engine.sequence_maker import SequenceMaker
from stentor.retry import next_seed


class Turns:
    """Used from the engine's thread only."""

    def __init__(self, requests: OpenRequests, scheduler: Scheduler, sequences: SequenceMaker) -> None:
        self.requests, self.scheduler, self.sequences = requests, scheduler, sequences

    def prepare(self, seq: Sequence) -> None:
        """Make the next prompt of the request whose present one ends as `seq`, which still has its pages.

        What the next prompt repeats can be found in those pages from now on.
        """
        request = self.requests.of(seq)
        if request.closed or request.prompt.continuation is None:
            return
        frames = np.concatenate(request.delivered_frames) if request.delivered_frames else self.requests.no_frames()
        try:
            prompt = request.prompt.continuation(frames)
            if prompt is None:
                return
            self.sequences.fit(prompt)
            prompt.lora = request.prompt.lora
            if prompt.voice == request.prompt.voice:
                prompt.codec_state = request.prompt.codec_state
            following = self.sequences.following(prompt, seq)
        except Exception as e:
            seq.error = e
            return
        if following.continues:
            self.scheduler.tables.hand_on(seq, following)
        request.following = following, prompt

    def close(self, request: Request) -> None:
        """The present prompt holds nothing any more. That it has ended may be known only after its last audio."""
        if request.closed:
            return
        if request.seq.error is not None:
            self.requests.end(request)
        elif request.following is None:
            self.requests.finish(request)
        else:
            request.seq, request.prompt = request.following
            request.following = None
            request.seed, request.frames, request.delivered_frames = next_seed(request.seed), 0, []
            self.requests.enter_queue()
            self.queue(request)

    def queue(self, request: Request) -> None:
        """A request, or its next prompt, waits for a slot."""
        self.requests.add(request)
        self.scheduler.add(request.seq, time.monotonic())

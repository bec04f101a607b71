"""The client of a soak that has its engine in its own process: threads that use `stentor.TTS` in every way.

Run by soak_clients.py: python benchmarks/server/soak_in_process.py MODEL THREADS PAUSE SEED
It prints "ready", and then a line of JSON for each line of its input, `state` or `settle`. It ends with its input.
"""

from __future__ import annotations

import ctypes
import gc
import json
import random
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
from soak_honest import SEEDS, TEXTS

import stentor
from stentor import TTS, InvalidRequest, Reference

RATE = 16_000
ROUNDING = 2e-3  # answers alone and in company differ by so much, with the built-in voice
SETTLE_SECONDS = 120.0
LONG = {"min_frames": 800, "max_frames": 800}


class Caller:
    """Uses a model from many threads."""

    def __init__(self, tts: TTS, pause: float, seed: int) -> None:
        self.tts, self.pause, self.random = tts, pause, random.Random(seed)
        self.counts: Counter[str] = Counter()
        self.problems: list[str] = []
        self.stopped = threading.Event()
        alone = [(text, seed) for text in TEXTS for seed in SEEDS]
        self.truth = {(text, seed): self.say(text, seed) for text, seed in alone}
        self.kinds: list[Callable[[], None]] = [
            self.whole,
            self.several,
            self.stream,
            self.leave,
            self.refused,
        ]
        if tts.spec.takes_reference:
            self.kinds.append(self.clone)

    def say(self, text: str, seed: int) -> np.ndarray:
        return self.tts.generate(text, seed=seed, split_granularity="none", retries=1).samples

    def check(self, kind: str, what: tuple[str, int], samples: np.ndarray) -> None:
        truth = self.truth[what]
        if len(truth) != len(samples) or np.abs(truth - samples).max() > ROUNDING:
            self.problems.append(f"{kind}: wrong audio for {what}")
        self.counts[f"{kind}: compared"] += 1

    def whole(self) -> None:
        what = self.random.choice(list(self.truth))
        self.check("whole", what, self.say(*what))

    def several(self) -> None:
        texts = [self.random.choice(TEXTS) for _ in range(4)]
        found = self.tts.generate(texts, seed=1, split_granularity="none", retries=1)
        self.counts["several"] += len(found)

    def stream(self) -> None:
        what = self.random.choice(list(self.truth))
        parts = self.tts.stream(what[0], seed=what[1], split_granularity="none")
        self.check("stream", what, np.concatenate([part.samples for part in parts]))

    def leave(self) -> None:
        """Take a part of the audio, or none, and go."""
        stream = self.tts.submit(self.tts.request("Somebody leaves in the middle of this.", **LONG))
        for _ in range(self.random.randrange(3)):
            next(iter(stream), None)
        stream.cancel()
        self.counts["leave"] += 1

    def clone(self) -> None:
        """With a voice that nobody else has, so that caches fill and are emptied."""
        tone = 0.3 * np.sin(np.arange(2 * RATE) * self.random.uniform(0.05, 0.5))
        text = "la la la" if self.random.random() < 0.5 else None
        reference = Reference((tone.astype(np.float32), RATE), text)
        self.counts["clone"] += (
            len(self.tts.generate(TEXTS[0], reference=reference, max_frames=20).samples) > 0
        )

    def refused(self) -> None:
        wrong: dict[str, Any] = self.random.choice(
            (
                {"seed": "x"},
                {"voice": "nobody"},
                {"temperature": 1e9},
                {"lora": "none"},
                {"max_frames": -1},
            )
        )
        try:
            self.tts.generate(TEXTS[0], **wrong)
            self.problems.append(f"refused: {wrong} was taken")
        except InvalidRequest:
            self.counts["refused"] += 1

    def run(self) -> None:
        """One call after another, until it is stopped."""
        while not self.stopped.wait(self.random.expovariate(1 / self.pause)):
            kind = self.random.choice(self.kinds)
            try:
                kind()
            except Exception as e:  # anything that escapes is a finding
                self.problems.append(f"{kind.__name__}: {type(e).__name__}: {e}")

    def state(self) -> dict[str, Any]:
        health = self.tts.engine.health()
        names = ("running", "queued", "free_slots", "free_pages", "pages")
        return {**{n: getattr(health, n) for n in names}, "calls": sum(self.counts.values())}

    def settle(self) -> dict[str, Any]:
        """Stop, and tell what is left when nothing runs."""
        self.stopped.set()
        end = time.monotonic() + SETTLE_SECONDS
        while time.monotonic() < end:
            state = self.state()
            if (
                not state["running"]
                and not state["queued"]
                and state["free_pages"] == state["pages"]
            ):
                break
            time.sleep(0.1)
        gc.collect()
        ctypes.CDLL(None).malloc_trim(0)
        return {
            **self.state(),
            "counts": dict(sorted(self.counts.items())),
            "problems": self.problems[:20],
        }


def main() -> None:
    model, threads, pause, seed = (
        sys.argv[1],
        int(sys.argv[2]),
        float(sys.argv[3]),
        int(sys.argv[4]),
    )
    with stentor.TTS(
        None if model == "voice" else model, threads=1, memory_gb=0.05, max_num_seqs=8
    ) as tts:
        caller = Caller(tts, pause, seed)
        started = [threading.Thread(target=caller.run) for _ in range(threads)]
        for thread in started:
            thread.start()
        print(json.dumps("ready"), flush=True)
        for line in sys.stdin:
            print(
                json.dumps(caller.settle() if line.strip() == "settle" else caller.state()),
                flush=True,
            )
        caller.stopped.set()
        for thread in started:
            thread.join()


if __name__ == "__main__":
    main()

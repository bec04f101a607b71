"""Whether a request's audio is the same, byte for byte, alone and among others.

Run: python benchmarks/engine/company.py MODEL [--requests 40] [--at-once 1,4,16,64] [--memory-gb 0.1] [--deterministic]
         [--rates 1,64] [--out FILE]
     python benchmarks/engine/company.py dummy:toy --device cpu --requests 8 --at-once 1,4      a dry run
Needs: nothing but stentor, and a GPU for `dummy:` models at full size.

Every request is first generated alone. Then all of them are asked again, so many at once, in a random order and at
random moments, so that they join and leave each other's batches. With little memory for pages, some are
preempted. `--rates` then measures seconds of audio per second with so many at once, without pauses. With and without
`--deterministic` they give its price.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # this tree, also where none is installed
import stentor

WORDS = (
    "the",
    "herald",
    "spoke",
    "aloud",
    "across",
    "a",
    "quiet",
    "field",
    "and",
    "fifty",
    "men",
    "heard",
    "every",
    "word",
    "of",
    "it",
    "before",
    "evening",
    "came",
)
PAUSE = 0.05  # seconds between two requests of one client, at most


def texts(count: int, dice: random.Random) -> list[str]:
    return [" ".join(dice.choices(WORDS, k=dice.randint(2, 30))) + "." for _ in range(count)]


class Company:
    def __init__(self, tts: stentor.TTS, count: int, frames: int) -> None:
        self.tts, self.dice, self.frames = tts, random.Random(3), frames
        self.texts = texts(count, self.dice)
        self.alone = [self.speak(i) for i in range(count)]

    def rate(self, at_once: int) -> dict[str, float]:
        """Seconds of audio per second, so many requests at once, each of the most frames."""
        given = {"max_frames": self.frames} | ({"ignore_eos": True} if "ignore_eos" in self.tts.spec.options else {})

        def one(i: int) -> float:
            speech = self.tts.generate(self.texts[i % len(self.texts)], seed=i, **given)
            return len(speech.samples) / speech.sample_rate

        with ThreadPoolExecutor(at_once) as pool:
            began = time.monotonic()
            seconds = sum(pool.map(one, range(max(8, 4 * at_once))))
            return {"at_once": at_once, "audio_s_per_s": round(seconds / (time.monotonic() - began), 1)}

    def speak(self, i: int) -> tuple[bytes, bytes]:
        """(frames, samples) of a request."""
        speech = self.tts.generate(self.texts[i], seed=i, max_frames=self.frames)
        return np.asarray(speech.frames).tobytes(), speech.samples.tobytes()

    def together(self, at_once: int) -> dict[str, Any]:
        """How many requests were equal, so many at once."""
        order = list(range(len(self.texts)))
        self.dice.shuffle(order)
        pauses = [self.dice.random() * PAUSE for _ in order]

        def one(i: int) -> tuple[bool, bool]:
            time.sleep(pauses[i])
            frames, samples = self.speak(i)
            return frames == self.alone[i][0], samples == self.alone[i][1]

        before = self.tts.engine.health().preemptions
        with ThreadPoolExecutor(at_once) as pool:
            equal = list(pool.map(one, order))
        return {
            "at_once": at_once,
            "requests": len(order),
            "equal_frames": sum(frames for frames, _ in equal),
            "equal_samples": sum(samples for _, samples in equal),
            "preemptions": self.tts.engine.health().preemptions - before,
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--requests", type=int, default=40)
    parser.add_argument("--at-once", default="1,4,16,64")
    parser.add_argument("--frames", type=int, default=60, help="of a request at most")
    parser.add_argument("--slots", type=int, default=64)
    parser.add_argument("--memory-gb", type=float, help="for key-value pages")
    parser.add_argument("--deterministic", action="store_true")
    parser.add_argument("--rates", default="", help="so many at once")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    sizes = {"max_num_seqs": args.slots, "memory_gb": args.memory_gb, "capture_all": True}
    tts = stentor.TTS(args.model, device=args.device, deterministic=args.deterministic, **sizes)
    company = Company(tts, args.requests, args.frames)
    asked = {"model": args.model, "frames": args.frames, "deterministic": args.deterministic}
    found: list[dict[str, Any]] = []
    for run, counts in ((company.together, args.at_once), (company.rate, args.rates)):
        for count in filter(None, counts.split(",")):
            found.append(run(int(count)))
            print(f"{args.model}{' deterministic' * args.deterministic}: {found[-1]}", flush=True)
            if args.out:
                args.out.write_text(json.dumps({**asked, "found": found}, indent=1))


if __name__ == "__main__":
    main()

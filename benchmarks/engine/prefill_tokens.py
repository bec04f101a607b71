r"""Count the prompt tokens that are computed of a long text with a cloned voice, piece by piece, and of a dialogue.

Run: python benchmarks/engine/prefill_tokens.py MODEL ... [--device cpu] [--characters 20000] [--frames 5] [--json FILE]
     python benchmarks/engine/prefill_tokens.py tests/fixtures/fish_s2/checkpoint tests/fixtures/voxcpm2 --device cpu \
         --seconds 1 --split sentence --memory-gb 0.3 --min-cached 16
Needs: nothing but stentor. A model of full size wants a GPU.

`own` are the tokens of a prompt that no prompt before it in its text begins with, and that it does not repeat of the
turn before it. At most a page more than those is computed, where what is known has at least `--min-cached` tokens. The
first prompt owns all of its tokens. The sums are those of the counters of /metrics (engine_prompt_tokens_total,
engine_cached_prompt_tokens_total).
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterable
from dataclasses import replace
from itertools import takewhile
from operator import eq
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # this tree, also where none is installed
from stentor import TTS, Reference
from stentor.config import Policy
from stentor.engine.prefix import prefix_keys
from stentor.engine.sequence import Sequence
from stentor.engine.sequence_maker import SequenceMaker
from stentor.models.base import Prompt
from stentor.text.marks import NO_MARKS

SENTENCE = "The quick brown fox number {} jumps over the lazy dog, and then it sleeps in the warm light. "
WORDS = "These are the words of the recording, which nobody checks. "
TURNS = 12


class Prompts:
    """The prompts of a text, in the order in which they were made."""

    def __init__(self) -> None:
        self.made: list[tuple[Sequence, Prompt]] = []
        self._new = SequenceMaker.new

    def new(self, maker: SequenceMaker, prompt: Prompt, *args: Any) -> Sequence:
        seq = self._new(maker, prompt, *args)
        self.made.append((seq, prompt))
        return seq

    def rows(self) -> list[dict[str, int]]:
        """Tokens of each prompt, its own, and those that were computed."""
        seen: list[tuple[bytes, ...]] = []
        found = []
        for seq, prompt in self.made:
            keys = prefix_keys(prompt, 1)
            known = max((sum(1 for _ in takewhile(bool, map(eq, keys, other))) for other in seen), default=0)
            own = prompt.length - max(known, prompt.repeats)
            found.append({"tokens": prompt.length, "own": own, "computed": prompt.length - seq.num_cached})
            seen.append(keys)
        return found


def voice(tts: TTS, seconds: float) -> Reference:
    rate = max(16000, tts.spec.reference_rate)
    t = np.arange(int(seconds * rate)) / rate
    sound = 0.3 * np.sin(2 * np.pi * 220 * t) * np.sin(9 * t)
    # VoxCPM2 puts a reference with its text behind the text that it speaks, and one without before it.
    text = None if tts.spec.family == "voxcpm2" else WORDS * max(1, round(seconds / 4))
    return Reference((sound.astype(np.float32), rate), text)


def count(tts: TTS, chunks: Callable[[], Iterable[object]]) -> dict[str, Any]:
    """The tokens of every prompt of what is spoken meanwhile."""
    prompts, stats, preemptions = Prompts(), tts.engine.stats, tts.engine.health().preemptions
    before = replace(stats)

    def new(maker: SequenceMaker, *args: Any) -> Sequence:
        return prompts.new(maker, *args)

    with mock.patch.object(SequenceMaker, "new", new):
        for _ in chunks():
            pass
    rows = prompts.rows()
    tokens = stats.prompt_tokens - before.prompt_tokens
    computed = tokens - (stats.cached_tokens - before.cached_tokens)
    assert tts.engine.health().preemptions == preemptions, "preempted requests compute again what others evicted"
    assert computed == sum(r["computed"] for r in rows)
    return {
        "prompts": len(rows),
        "tokens": tokens,
        "own": sum(r["own"] for r in rows),
        "computed": computed,
        "most beyond their own": max(r["computed"] - r["own"] for r in rows),
        "page": tts.engine.sizes.page_size,
        "eager calls": tts.engine.eager_calls,
        "each": rows,
    }


def measure(name: str, args: argparse.Namespace) -> dict[str, Any]:
    sizes: dict[str, Any] = {"memory_gb": args.memory_gb, "capture_all": True}
    with TTS(name, device=args.device, policy=Policy(min_cached_tokens=args.min_cached), **sizes) as tts:
        options: dict[str, Any] = {"max_frames": args.frames, "split_granularity": args.split}
        text = "".join(map(SENTENCE.format, range(args.characters // len(SENTENCE) + 1)))[: args.characters]
        options["reference"] = voice(tts, args.seconds)
        found = {"cloned voice": count(tts, lambda: tts.stream(text, seed=3, **options))}
        if tts.spec.marks.speaker != NO_MARKS.speaker:
            dialogue = "\n".join(f"<|speaker:{i % 2}|>{SENTENCE.format(i)}" for i in range(TURNS))
            one = tts.request(dialogue, seed=3, max_frames=TURNS * 20 * args.frames)
            found["dialogue"] = count(tts, lambda: tts.submit(one))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+", metavar="MODEL")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--memory-gb", type=float, help="for key-value pages")
    parser.add_argument("--min-cached", type=int, default=128, help="Policy.min_cached_tokens")
    parser.add_argument("--characters", type=int, default=20000)
    parser.add_argument("--seconds", type=float, default=8.0, help="of the reference")
    parser.add_argument("--frames", type=int, default=5, help="of a piece at most")
    parser.add_argument(
        "--split", default="auto", help="split_granularity: a tiny checkpoint takes a sentence at a time"
    )
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    results = {name: measure(name, args) for name in args.models}
    names = ("prompts", "tokens", "own", "computed", "most beyond their own", "page", "eager calls")
    print(f"{'':50}", *(f"{n:>10}" for n in names))
    for model, parts in results.items():
        for part, found in parts.items():
            print(f"{Path(model).name[:34] + ', ' + part:50}", *(f"{found[n]:>{max(10, len(n))}}" for n in names))
    if args.json is not None:
        args.json.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()

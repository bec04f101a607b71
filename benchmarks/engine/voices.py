"""Time the first audio of requests with and without reference audio, in process. A short table comes last.

Run: python benchmarks/engine/voices.py [--out FILE] [--no-prefix-cache] [MODEL ...]
     python benchmarks/engine/voices.py dummy:toy --device cpu --seconds 0.2            a dry run without a GPU
Needs: a GPU and nothing but stentor.

Milliseconds from the call to the first chunk, medians: plain text, a voice that was used before (its samples again),
the same one loaded before, a voice that is new, and 16 that start at once. No two requests have the same text.
`computed` are the prompt tokens of a request that no page held. Then 16 streams run: alone, beside two encodings
without a request, two requests in a voice that is known, and two in new voices. The largest gap between chunks of a
stream is that of three runs, from the fifth chunk on, whose size later ones have. The slower first audio of the two is
the worst of three. A dialogue has 12 speaker turns, where the model takes any: the tokens of its prompts, and those
that were computed.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch

sys.path.insert(
    0, str(Path(__file__).resolve().parents[2])
)  # this tree, also where none is installed
from benchmarks.cloned_voices import TEXT, numbered_text, parser, recording, run, words_of
from benchmarks.timing import machine_speed
from stentor import TTS, Reference
from stentor.config import Policy
from stentor.models.base import VoiceSource
from stentor.models.info import ReferenceAudio
from stentor.text.marks import NO_MARKS

DIALOGUE = "\n".join(
    f"<|speaker:{i % 2}|>This is turn number {i}. {TEXT} {TEXT}" for i in range(12)
)
REPEATS = 15
TOGETHER, FRAMES, CHUNKS = 16, 200, 5


def voice(tts: TTS, seconds: float, seed: int) -> Reference:
    rate = max(1000, tts.spec.reference_rate)
    return Reference((recording(seconds, rate, seed), rate), words_of(tts.spec.family, seconds))


def first_audio(tts: TTS, seed: int, **options: Any) -> float:
    """Milliseconds to the first chunk. The rest is cancelled."""
    started = time.perf_counter()
    stream = tts.stream(numbered_text(), seed=seed, max_frames=40, **options)
    next(stream)
    ms = (time.perf_counter() - started) * 1e3
    stream.close()
    return ms


def idle(tts: TTS) -> None:
    """Wait until nothing of an earlier request runs."""
    while tts.engine.health().running:
        time.sleep(0.001)


def at_once(tts: TTS, seed: int, **options: Any) -> list[float]:
    idle(tts)
    with ThreadPoolExecutor(TOGETHER) as pool:
        times = list(
            pool.map(lambda i: first_audio(tts, 100 * seed + i, **options), range(TOGETHER))
        )
    return sorted(times)


def beside(tts: TTS, plain: dict[str, Any], work: list[Callable[[], float]]) -> dict[str, float]:
    """Streams that run, and work beside them once their chunks are large: the largest milliseconds that the work says,
    and the largest gap between two chunks of any stream from then on."""
    idle(tts)
    arrived: list[list[float]] = [[] for _ in range(TOGETHER)]
    long = (
        {"min_frames": FRAMES, "max_frames": FRAMES}
        if "min_frames" in tts.spec.options
        else {"max_frames": FRAMES}
    )

    def listen(i: int) -> None:
        for _ in tts.stream(f"Listener {i}. {TEXT}", seed=i, **long, **plain):
            arrived[i].append(time.perf_counter())

    with ThreadPoolExecutor(TOGETHER + max(1, len(work))) as pool:
        listeners = [pool.submit(listen, i) for i in range(TOGETHER)]
        while not all(len(times) >= CHUNKS for times in arrived):
            time.sleep(0.001)
        begun = time.perf_counter()
        firsts = list(pool.map(lambda one: one(), work))
        for listener in listeners:
            listener.result()
    gaps = [b - a for times in arrived for a, b in pairwise(times) if b > begun]
    return {
        "largest gap": round(1e3 * max(gaps), 2),
        "slowest first audio": round(max(firsts, default=0.0), 2),
    }


def two(
    label: str, tts: TTS, known: ReferenceAudio, seconds: float, seed: int
) -> list[Callable[[], float]]:
    """Load that runs beside the streams."""
    if label == "nothing":
        return []
    if label == "2 known voices":
        return [lambda: first_audio(tts, 7, reference=known)] * 2
    loaded = [tts.load_reference(voice(tts, seconds, seed + n)) for n in range(2)]
    if label == "2 new voices":
        return [partial(first_audio, tts, 7, reference=one) for one in loaded]
    return [partial(encoding, tts, one) for one in loaded]


def encoding(tts: TTS, audio: ReferenceAudio) -> float:
    """Milliseconds of encoding a recording that no request has."""
    started = time.perf_counter()
    tts.engine.encoder.claim(VoiceSource(audio.recording, "reference")).result()
    return (time.perf_counter() - started) * 1e3


def measure(name: str, args: argparse.Namespace) -> dict[str, Any]:
    policy = Policy(prefix_cache=not args.no_prefix_cache, min_cached_tokens=args.min_cached_tokens)
    with TTS(name, device=args.device, policy=policy) as tts:
        known = voice(tts, args.seconds, 0)
        very_first = first_audio(tts, 0, reference=known)
        stats, found = tts.engine.stats, {"very first voice": round(very_first, 2)}

        def alone(label: str, options: Any) -> None:
            tokens, cached = stats.prompt_tokens, stats.cached_tokens
            times = []
            for i in range(1, REPEATS + 1):
                idle(tts)
                times.append(first_audio(tts, i, **options(i)))
            computed = (stats.prompt_tokens - tokens - stats.cached_tokens + cached) / REPEATS
            found[label] = round(statistics.median(times), 2)
            found[f"{label}, computed"] = round(computed)

        plain: dict[str, Any] = (
            {} if not name.endswith("base") else {"reference": voice(tts, 1.0, 1)}
        )
        alone("plain", lambda i: plain)
        alone("same voice", lambda i: {"reference": known})
        loaded = tts.load_reference(known)
        alone("same voice, loaded", lambda i: {"reference": loaded})
        alone("new voice", lambda i: {"reference": voice(tts, args.seconds, i)})
        together: dict[str, Any] = {
            "same voice": {"reference": known},
            "same voice, loaded": {"reference": loaded},
        }
        for label, options in ({"plain": plain} | together).items():
            runs = [at_once(tts, i, **options) for i in range(1, 5)][1:]
            found[f"{TOGETHER} at once, {label}, median"] = round(
                statistics.median(r[TOGETHER // 2] for r in runs), 2
            )
            found[f"{TOGETHER} at once, {label}, last"] = round(
                statistics.median(r[-1] for r in runs), 2
            )
        for label in (
            () if args.no_streams else ("nothing", "2 encodings", "2 known voices", "2 new voices")
        ):
            runs = [
                beside(tts, plain, two(label, tts, loaded, args.seconds, 1000 * i))
                for i in (1, 2, 3)
            ]
            for what in runs[0]:
                found[f"beside {TOGETHER} streams, {label}, {what}"] = max(r[what] for r in runs)
        if tts.spec.marks.speaker != NO_MARKS.speaker and not args.no_streams:
            tokens, cached = stats.prompt_tokens, stats.cached_tokens
            list(tts.submit(tts.request(DIALOGUE, seed=1, max_frames=12 * 40)))
            found["dialogue, tokens of its prompts"] = stats.prompt_tokens - tokens
            found["dialogue, computed"] = (
                stats.prompt_tokens - tokens - stats.cached_tokens + cached
            )
        health = tts.engine.health()
        found["references, codec states"] = [str(health.references), str(health.codec_states)]
        found["eager calls"] = tts.engine.side.eager_calls
    return found


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--no-prefix-cache", action="store_true")
    options.add_argument("--min-cached-tokens", type=int, default=Policy.min_cached_tokens)
    options.add_argument(
        "--no-streams",
        action="store_true",
        help="leave out new voices beside streams, and dialogue",
    )
    options.add_argument(
        "--switch-seconds", type=float, default=sys.getswitchinterval(), help="a server has 0.0001"
    )
    args = options.parse_args()
    sys.setswitchinterval(args.switch_seconds)
    machine = {
        "machine": machine_speed(torch.device(args.device)),
        "prefix_cache": not args.no_prefix_cache,
    }
    run(args, lambda name: measure(name, args), machine)


if __name__ == "__main__":
    main()

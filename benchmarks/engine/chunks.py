"""What the length of codec chunks costs streams that start together: audio per second, a line for each policy.

Run: python benchmarks/engine/chunks.py [--model dummy:voxcpm2] [--streams 16 64] [--out FILE]
     python benchmarks/engine/chunks.py --device cpu --model dummy:toy --streams 2 --seconds 1 --policies 25/256
Needs: a GPU and nothing but stentor.

A policy is `chunk`/`max_frames_in_codec`: frames of one chunk at most, and frames that the codec holds. When the last
step of a wave has run, what is left of its chunks is decoded while nothing else runs: short chunks leave little, and
are more calls beside the steps.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # this tree, also where none is installed
from benchmarks.streams import measure
from stentor import TTS
from stentor.config import Policy

POLICIES = ("25/256", "16/256", "12/256", "8/256", "25/512", "12/512")


def measured(policy: Policy, args: argparse.Namespace) -> dict[int, Any]:
    """The figures of each number of streams. The model is gone when this returns."""
    slots = max(args.streams)
    with TTS(args.model, device=args.device, max_num_seqs=slots, capture_all=True, policy=policy) as tts:
        return {n: measure(tts, n, args.seconds, args.rounds) for n in args.streams}


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--model", default="dummy:voxcpm2")
    p.add_argument("--device", default="cuda")
    p.add_argument("--streams", type=int, nargs="+", default=[16, 64])
    p.add_argument("--seconds", type=float, default=12.0, help="of audio per stream")
    p.add_argument("--rounds", type=int, default=5)
    p.add_argument("--policies", nargs="+", default=list(POLICIES))
    p.add_argument("--out", type=Path)
    args = p.parse_args()
    found: dict[str, Any] = {}
    for name in args.policies:
        chunk, held = map(int, name.split("/"))
        found[name] = measured(Policy(chunk=chunk, max_frames_in_codec=held), args)
        figures = (
            f"{n}: {f['audio_s_per_s']:7.1f} audio-s/s, ttfa {f['ttfa_ms'][1]} ms" for n, f in found[name].items()
        )
        print(f"{args.model} {name:8}", "  ".join(figures), flush=True)
        if args.out:
            args.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()

"""Time the backbone of prefills on a GPU, eagerly, without the codec and without frame 0. A short table comes last.

Run: python benchmarks/engine/prefill.py [--out FILE] [MODEL ...]
     python benchmarks/engine/prefill.py dummy:toy --device cpu --tokens 40 2x30        a dry run without a GPU
Needs: a GPU and nothing but stentor.

A case is a number of packed prompts of equal length, such as 16x1400. With --piece 2048 it is computed as the engine
does, in pieces of so many packed tokens. FLOPs are those of the GEMMs, as torch counts
them, and 4 * heads * dim for each pair of a token and a key that it sees.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # this tree, also where none is installed
from benchmarks.timing import machine_speed, milliseconds
from stentor import registry
from stentor.engine.kv_cache import PagedKV
from stentor.models.base import KVView, PromptRows, SpeechModel

MODELS = ("dummy:fish-s2-pro", "dummy:qwen3-tts-1.7b-base", "dummy:voxcpm2")
CASES = ("1x8000", "1x1400", "16x1400", "16x100", "1x100")
PAGE = 16


class Counted:
    """A KVView that counts the FLOPs of attention over complete histories of `tokens` tokens."""

    def __init__(self, view: KVView, rows: int, tokens: int) -> None:
        self.pos, self._view, self._pairs = view.pos, view, rows * tokens * (tokens + 1) / 2
        self.flops = 0.0

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor, norm_rope: Any) -> Tensor:
        self.flops += 4 * q.shape[1] * q.shape[2] * self._pairs
        return self._view.attend(layer, q, k, v, norm_rope)


def prefill(model: SpeechModel, kv: PagedKV, rows: int, tokens: int) -> tuple[Any, Any]:
    """(inputs of the backbone, its view) for `rows` prompts of `tokens` tokens each."""
    where = kv.pool.device
    made = torch.arange(rows, device=where).repeat_interleave(tokens)
    pos = torch.arange(tokens, device=where).repeat(rows)
    spec = model.spec
    arrays = {
        n: torch.full((rows * tokens, *c.shape), c.fill, dtype=c.dtype, device=where)
        for n, c in spec.prompt_rows.items()
    }
    frames = torch.zeros(0, *spec.frame.shape, dtype=spec.frame.dtype, device=where)
    x = model.embed_prompt(PromptRows(arrays, frames, torch.zeros(0, dtype=torch.int64, device=where)))
    each = -(-tokens // PAGE)
    kv.table[:rows, :each] = torch.randperm(rows * each, device=where).view(rows, each)
    return x, kv.prefill_view(torch.arange(rows, device=where), made, made, pos, each, tokens)


def in_pieces(model: SpeechModel, kv: PagedKV, x: Any, rows: int, tokens: int, piece: int) -> Callable[[], None]:
    """The backbone over a prompt of `tokens` tokens, or several, piece by piece."""
    where, total = kv.pool.device, rows * tokens
    made, pos = (
        torch.arange(rows, device=where).repeat_interleave(tokens),
        torch.arange(tokens, device=where).repeat(rows),
    )
    parts = []
    for start in range(0, total, piece):
        part = slice(start, min(total, start + piece))
        slots, row = made[part].unique(return_inverse=True)
        view = kv.prefill_view(slots, row, made[part], pos[part], -(-tokens // PAGE), int(row.bincount().max()))
        parts.append((tuple(t[part] for t in x), view))

    def run() -> None:
        for part, view in parts:
            model.backbone(part, view)

    return run


def measure(name: str, cases: list[tuple[int, int]], device: torch.device, piece: int) -> dict[str, Any]:
    with torch.inference_mode():
        model = registry.load(name, device, None, {})
        found = {}
        for rows, tokens in cases:
            each = -(-tokens // PAGE)
            kv = PagedKV(model.spec.kv, rows, rows * each, PAGE, each, device)
            x, view = prefill(model, kv, rows, tokens)
            counted, gemms = Counted(view, rows, tokens), FlopCounterMode(display=False)
            with gemms:
                model.backbone(x, counted)
            ms = milliseconds(in_pieces(model, kv, x, rows, tokens, piece or rows * tokens))
            flops = gemms.get_total_flops() + counted.flops
            found[f"{rows}x{tokens}"] = {
                "ms": round(ms, 3),
                "tflop_per_s": round(flops / ms / 1e9, 1),
                "tokens_per_s": round(rows * tokens / ms * 1e3),
                "attention_share_of_flops": round(counted.flops / flops, 3),
            }
            print(name, f"{rows}x{tokens}", found[f"{rows}x{tokens}"], flush=True)
            del kv, x, view, counted
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", default=list(MODELS))
    parser.add_argument("--tokens", nargs="+", default=list(CASES), help="prompts x tokens of each, or tokens")
    parser.add_argument("--piece", type=int, default=0, help="packed tokens of one launch, 0 for all")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    cases = [tuple(int(n) for n in ("1x" * ("x" not in c) + c).split("x")) for c in args.tokens]
    device = torch.device(args.device)
    result: dict[str, Any] = {"machine": machine_speed(device), "torch": torch.__version__, "models": {}}
    result["piece"] = args.piece
    for name in args.models:
        result["models"][name] = measure(name, cases, device, args.piece)
        if args.out:
            args.out.write_text(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()

"""Time the attention of prefills with every launch configuration, at the head shapes of the three models.

Run: python benchmarks/kernels/prefill_attention.py [--out FILE] [--before FILE]
Needs: a GPU, Triton and nothing but stentor.

`--before` names an earlier stentor/kernels/paged_attention.py, whose `paged_prefill_attention` is timed beside. Each
result is compared with float32 scaled dot product attention, and with the result for the prompt's second half alone.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # this tree, also where none is installed
from benchmarks.timing import machine_speed, milliseconds
from stentor.kernels.configs import PrefillConfig, prefill_config
from stentor.kernels.prefill_attention import prefill_attention

HEADS = {"fish": (32, 8, 128), "qwen": (16, 8, 128), "vox": (16, 2, 128)}
CASES = ((1, 8000), (1, 1400), (16, 1400), (16, 100), (1, 100))
CONFIGS = [
    PrefillConfig(m, n, w, s)
    for m, n, w, s in (
        (16, 64, 4, 3), (32, 64, 4, 3), (64, 32, 4, 3), (64, 64, 4, 2), (64, 64, 4, 3), (64, 128, 4, 2),
        (128, 32, 8, 3), (128, 64, 4, 3), (128, 64, 8, 2), (128, 64, 8, 3), (128, 128, 8, 2),
    )
]  # fmt: skip
PAGE = 16


class Case:
    """Random queries, pages and positions of `rows` prompts of `tokens` tokens."""

    def __init__(self, model: str, rows: int, tokens: int, device: str, dtype: torch.dtype) -> None:
        torch.manual_seed(0)
        self.heads, self.kv_heads, dim = HEADS[model]
        self.rows, self.tokens = rows, tokens
        each = -(-tokens // PAGE)
        self.pool = torch.randn(2, rows * each, PAGE, self.kv_heads, dim, device=device, dtype=dtype)
        self.table = torch.randperm(rows * each, device=device).view(rows, each)
        self.slot = torch.arange(rows, device=device).repeat_interleave(tokens)
        self.pos = torch.arange(tokens, device=device).repeat(rows)
        self.q = torch.randn(rows * tokens, self.heads, dim, device=device, dtype=dtype)
        self.flops = 4 * self.heads * dim * rows * tokens * (tokens + 1) / 2

    def reference(self) -> torch.Tensor:
        """The last row's output [tokens, Hq, D]."""
        keys, values = (part[self.table[-1]].flatten(0, 1)[: self.tokens].float() for part in self.pool)
        q = self.q[-self.tokens :].float().transpose(0, 1)
        out = torch.nn.functional.scaled_dot_product_attention(
            q[None], keys.transpose(0, 1)[None], values.transpose(0, 1)[None], is_causal=True, enable_gqa=True
        )
        return out[0].transpose(0, 1)

    def run(self, config: PrefillConfig | None, part: slice = slice(None)) -> torch.Tensor:
        return prefill_attention(self.pool, self.table, self.slot[part], self.pos[part], self.q[part], config)

    def measure(self, config: PrefillConfig, want: torch.Tensor) -> float | str:
        """Milliseconds, or what is wrong."""
        try:
            out = self.run(config)
            error = float((out[-self.tokens :].float() - want).norm() / want.norm())
            half = slice(-(self.tokens // 2), None)
            if not error < 0.01:
                return f"wrong: {error:.3g}"
            if not torch.equal(out[half], self.run(config, half)):
                return "depends on the tokens beside it"
            return round(milliseconds(lambda: self.run(config)), 4)
        except Exception as e:  # a config that does not fit is an answer
            return f"failed: {e}"[:160]


def before(file: Path) -> Any:
    spec = importlib.util.spec_from_file_location("before_paged_attention", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--before", type=Path)
    args = parser.parse_args()
    device, dtype = "cuda", torch.bfloat16
    old = before(args.before) if args.before else None
    result: dict[str, Any] = {"machine": machine_speed(torch.device(device)), "torch": torch.__version__, "cases": {}}
    with torch.inference_mode():
        for model in HEADS:
            for rows, tokens in CASES:
                case = Case(model, rows, tokens, device, dtype)
                want = case.reference()
                found = {"x".join(map(str, c)): case.measure(c, want) for c in CONFIGS}
                own = prefill_config(case.heads // case.kv_heads, case.pool.element_size())
                row: dict[str, Any] = {"own": case.measure(own, want), "own_config": own, "configs": found}
                if old is not None:
                    given = (case.pool, case.table, case.slot, case.pos, case.q)
                    row["before"] = round(milliseconds(lambda g=given: old.paged_prefill_attention(*g)), 4)
                if isinstance(row["own"], float):
                    row["tflop_per_s"] = round(case.flops / row["own"] / 1e9, 1)
                result["cases"][f"{model} {rows}x{tokens}"] = row
                best = sorted((v, k) for k, v in found.items() if isinstance(v, float))[:3]
                bad = {k: v for k, v in found.items() if isinstance(v, str)}
                print(
                    model, f"{rows}x{tokens}", {k: v for k, v in row.items() if k != "configs"}, best, bad, flush=True
                )
                if args.out:
                    args.out.write_text(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()

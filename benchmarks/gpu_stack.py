"""One token through a whole stack in one launch (`layers/resident.py`) against a launch per product: checks and times.

Run: python benchmarks/gpu_stack.py [--seconds 60] [--out DIR] [STACK ...]

Every stack runs in a process of its own with a limit, because programs that wait for each other can wait for ever.
Microseconds of captured launches at CONTEXT tokens; `error` is that of the result against the other way's.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from stentor.layers import kernels, resident
from stentor.layers.attention import DepthKV, Turning
from stentor.layers.rope import Rope, angles
from stentor.layers.transformer import Stack, StackConfig

QWEN = {"heads": 16, "kv_heads": 8, "head_dim": 128, "eps": 1e-6, "qk_norm": True}
FISH = {"hidden": 2560, "ffn": 9728, "heads": 32, "kv_heads": 8, "head_dim": 128, "eps": 1e-6}
VOX = {"hidden": 2048, "ffn": 6144, "heads": 16, "kv_heads": 2, "head_dim": 128, "eps": 1e-5}
STACKS: dict[str, tuple[dict[str, Any], int]] = {  # configuration, rows of the head; with a head it is a depth loop's
    "qwen predictor": ({**QWEN, "hidden": 1024, "ffn": 3072, "layers": 5}, 2048),
    "qwen 0.6b": ({**QWEN, "hidden": 1024, "ffn": 3072, "layers": 28}, 0),
    "qwen 1.7b": ({**QWEN, "hidden": 2048, "ffn": 6144, "layers": 28}, 0),
    "voxcpm2": ({**VOX, "layers": 28}, 0),
    "voxcpm2 residual": ({**VOX, "layers": 8}, 0),
    "fish fast": ({**FISH, "layers": 4}, 4096),
    "fish slow": ({**FISH, "layers": 36, "qk_norm": True}, 0),
}
VARIANTS = [
    resident.Tiles(elements, ahead << 10, warps)
    for warps, elements, ahead in (
        (16, 1 << 15, 96), (16, 1 << 14, 96), (8, 1 << 15, 96), (8, 1 << 14, 96), (8, 1 << 14, 192), (8, 1 << 14, 32),
        (16, 1 << 15, 192),
    )
]  # fmt: skip
QUIET: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
CONTEXT = 200
PAGE = 16


class Paged(Turning):
    """A request's pages in a pool of their own."""

    def __init__(self, c: StackConfig, device: str) -> None:
        pages = 64
        shape = (c.layers, 2, pages, PAGE, c.kv_heads, c.head_dim)
        self.pool = torch.randn(shape, dtype=torch.bfloat16, device=device)
        self.table = torch.randperm(pages, device=device)[None]
        self.slot = torch.zeros(1, dtype=torch.int64, device=device)
        self.pos = torch.full((1,), CONTEXT, dtype=torch.int64, device=device)

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return self.turned(layer, q, k, v, None)

    def turns(self, x: Tensor) -> bool:
        return True

    def turned(self, layer: int, q: Tensor, k: Tensor, v: Tensor, turn: kernels.Turn | None) -> Tensor:
        return kernels.paged_attention(self.pool[layer], self.table, self.slot, self.pos, (q, k, v), turn)

    def pages(self) -> kernels.Pages:
        return kernels.Pages(self.pool, self.table, self.slot)


class Case:
    """A stack with weights as random as they must be to keep values in range."""

    def __init__(self, name: str, device: str, tiny: bool) -> None:
        config, self.vocab = STACKS[name]
        if tiny:
            config = {**config, "hidden": 64, "ffn": 96, "layers": 2, "heads": 4, "kv_heads": 2, "head_dim": 16}
            self.vocab = min(self.vocab, 48)
        self.c = c = StackConfig(**config)
        with torch.device("meta"):
            self.stack = Stack(c).to(torch.bfloat16)
        self.stack.to_empty(device=device)
        for p in self.stack.parameters():
            p.data = torch.randn(p.shape, dtype=torch.bfloat16, device=device)
            p.data = p.data * p.shape[-1] ** -0.5 if p.dim() > 1 else 1 + 0.1 * p.data
        self.rope = Rope(angles(c.head_dim, 1024, 10000.0), torch.bfloat16, False, False).to(device)
        self.head = torch.randn(self.vocab, c.hidden, dtype=torch.bfloat16, device=device) * c.hidden**-0.5
        self.x = torch.randn(1, c.hidden, dtype=torch.bfloat16, device=device)
        self.device = device
        self.paged = Paged(c, device)
        self.depth = DepthKV(c.layers, 1, 16, c.kv_heads, c.head_dim, self.x)
        self.depth.cache.normal_()
        self.depth.length = 9
        self.pos = torch.full((1,), self.depth.length if self.vocab else CONTEXT, dtype=torch.int64, device=device)

    def __call__(self) -> Tensor:
        if self.vocab:
            return self.stack.head(self.x[None], self.depth, self.rope, self.pos, self.head)
        return self.stack.narrow(self.x, self.paged, self.rope, self.pos)

    def floor(self) -> float:
        """Microseconds that reading the weights takes at 4.3 TB/s."""
        count = sum(p.numel() for p in self.stack.parameters()) + self.head.numel()
        return 2 * count / 4.3e6


def timed(case: Case) -> float:
    """Microseconds of one call, captured, the middle of several."""
    if case.device == "cpu":
        return 0.0
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(4):
            case()
    times = []
    for _ in range(7):
        a, b = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        a.record()
        for _ in range(4):
            graph.replay()
        b.record()
        b.synchronize()
        times.append(a.elapsed_time(b) / 16 * 1e3)
    return sorted(times)[3]


def compile_all(names: list[str], limit: float) -> None:
    """Bring every variant into Triton's cache, stacks side by side."""
    children = [subprocess.Popen([sys.executable, __file__, "--one", name, "--compile"], **QUIET) for name in names]
    end = time.monotonic() + limit
    for child in children:
        try:
            child.wait(max(0.1, end - time.monotonic()))
        except subprocess.TimeoutExpired:
            child.kill()


def one(name: str, device: str, tiny: bool, only_compile: bool = False) -> dict[str, Any]:
    """All variants of one stack, printed as they come."""
    torch.manual_seed(1)
    case = Case(name, device, tiny)
    found: dict[str, Any] = {"stack": name, "floor_us": round(case.floor(), 1)}
    with torch.inference_mode():
        case.stack._unsuited = True
        want = [case().float() for _ in range(2)][1]
        found["launches_us"] = round(timed(case), 1)
        print(json.dumps(found), flush=True)
        case.stack._unsuited = False
        for t in VARIANTS if not tiny else VARIANTS[:1]:
            case.stack._resident = kernels.resident(case.c, [b.weights for b in case.stack.layers])  # type: ignore[union-attr]
            assert case.stack._resident is not None, "does not suit"
            case.stack._resident.retile(t)
            if only_compile:
                case()
                continue
            got = [case().float() for _ in range(3)]
            error = float((got[2] - want).norm() / want.norm())
            same = bool((got[1] == got[2]).all())
            key = f"warps {t.warps}, elements {t.elements}, ahead {t.ahead >> 10} KB"
            found[key] = {"us": round(timed(case), 1), "error": round(error, 5), "repeats": same}
            print(json.dumps({key: found[key]}), flush=True)
    return found


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("stacks", nargs="*", default=list(STACKS))
    p.add_argument("--one")
    p.add_argument("--out", type=Path, default=Path("."))
    p.add_argument("--seconds", type=float, default=60.0)
    p.add_argument("--device", default="cuda")
    p.add_argument("--tiny", action="store_true")
    p.add_argument("--compile", action="store_true", help="with --one: only compile")
    a = p.parse_args()
    if a.one:
        one(a.one, a.device, a.tiny, a.compile)
        return
    a.out.mkdir(parents=True, exist_ok=True)
    end, rows = time.monotonic() + a.seconds, []
    if a.device == "cuda":
        compile_all(a.stacks, min(45.0, a.seconds / 2))
    for name in a.stacks:
        command = [sys.executable, __file__, "--one", name, "--device", a.device, *(["--tiny"] if a.tiny else [])]
        limit = max(1.0, min(25.0, end - time.monotonic()))
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=limit, check=False)
            text, said = done.stdout, done.stderr[-1500:]
        except subprocess.TimeoutExpired as e:
            text, said = (e.stdout or b"").decode() if isinstance(e.stdout, bytes) else str(e.stdout or ""), "out of time"
        found: dict[str, Any] = {"stack": name}
        for line in text.splitlines():
            found |= json.loads(line)
        rows.append(found | ({"said": said} if said else {}))
        (a.out / "gpu_stack.json").write_text(json.dumps(rows, indent=1))
        print(f"== {name}: floor {found.get('floor_us')} us, a launch per product {found.get('launches_us')} us")
        for key, value in found.items():
            if isinstance(value, dict):
                print(f"   {key:<44} {value['us']:>8} us  error {value['error']}  repeats {value['repeats']}")
        print(f"   {said}" if said else "", flush=True)


if __name__ == "__main__":
    main()

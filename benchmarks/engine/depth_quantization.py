"""What 8 bits cost a depth loop: cosines of its hidden states and logits, teacher-forced, on a CPU. Prints a table.

Run: python benchmarks/engine/depth_quantization.py [--out FILE] [--sequences 32]
Needs: nothing but stentor, and 5 GB of memory.

The stacks have released sizes and random weights: normal ones, as those of trained models that are here nearly are, and
ones with heavier tails (Student's t with 8 and 4 degrees of freedom). All see the same inputs. The weights of their
linear layers are as they are (float32), rounded to bfloat16, and in int8 and float8 with one scale for each output. A
cosine is to those in float32: of all positions together, and of the worst one.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # this tree, also where none is installed
from stentor.layers.attention import causal
from stentor.layers.quantized import dequantize, quantize
from stentor.layers.rope import Rope, angles
from stentor.layers.transformer import Stack, StackConfig

LOOPS = {  # stack, codes of a head, positions
    "Qwen3-TTS": (StackConfig(1024, 3072, 5, 16, 8, 128, 1e-6, True), 2048, 16),
    "Fish S2 Pro": (StackConfig(2560, 9728, 4, 32, 8, 128, 1e-6, True), 4096, 10),
}
TAILS: dict[str, Callable[[Tensor], Tensor]] = {
    "normal": torch.randn_like,
    "t, 8 degrees": lambda shaped: torch.distributions.StudentT(8.0).sample(shaped.shape) / (8 / 6) ** 0.5,
    "t, 4 degrees": lambda shaped: torch.distributions.StudentT(4.0).sample(shaped.shape) / 2**0.5,
}
WEIGHTS: dict[str, Callable[[Tensor], Tensor]] = {
    "float32": lambda w: w,
    "bfloat16": lambda w: w.bfloat16().float(),
    "int8": lambda w: dequantize(*quantize(w, torch.int8), torch.float32),
    "float8": lambda w: dequantize(*quantize(w, torch.float8_e4m3fn), torch.float32),
}


def filled(config: StackConfig, made: Callable[[Tensor], Tensor]) -> Stack:
    """A stack whose linear layers keep the size of their inputs."""
    stack = Stack(config)
    for layer in stack.modules():
        if isinstance(layer, nn.Linear):
            layer.weight.data = made(layer.weight.data) / layer.in_features**0.5
    return stack


def cosines(got: Tensor, want: Tensor) -> dict[str, float]:
    """Of all positions together, and of the worst one."""
    got, want = got.double(), want.double()
    each = torch.nn.functional.cosine_similarity(got, want, -1)
    all_together = torch.nn.functional.cosine_similarity(got.flatten(), want.flatten(), 0)
    return {"all": round(float(all_together), 6), "worst": round(float(each.min()), 6)}


@torch.inference_mode()
def measure(config: StackConfig, codes: int, positions: int, tails: str, sequences: int) -> dict[str, Any]:
    torch.manual_seed(0)
    stack = filled(config, TAILS[tails])
    exact = [(layer, layer.weight.data) for layer in stack.modules() if isinstance(layer, nn.Linear)]
    rope = Rope(angles(config.head_dim, positions, 10000.0), torch.float32, interleaved=False, in_float32=True)
    x = torch.randn(sequences, positions, config.hidden)
    head = torch.randn(codes, config.hidden) / config.hidden**0.5
    found: dict[str, Any] = {}
    wanted = None
    for name, rounded in WEIGHTS.items():
        for layer, weight in exact:
            layer.weight.data = rounded(weight)
        hidden = stack(x, causal, rope)
        if wanted is None:
            wanted = hidden
            continue
        logits, wanted_logits = hidden @ head.T, wanted @ head.T
        same = (logits.argmax(-1) == wanted_logits.argmax(-1)).float().mean()
        found[name] = {
            "hidden": cosines(hidden, wanted),
            "logits": cosines(logits, wanted_logits),
            "equal codes": round(float(same), 3),
        }
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sequences", type=int, default=32, help="of each loop")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    rows = []
    for name, (config, codes, positions) in LOOPS.items():
        for tails in TAILS:
            found = measure(config, codes, positions, tails, args.sequences)
            rows.append({"loop": name, "weights": tails, **found})
            print(name, tails, json.dumps(found), flush=True)
    if args.out is not None:
        args.out.parent.mkdir(parents=True, exist_ok=True)
        args.out.write_text(json.dumps({"torch": torch.__version__, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()

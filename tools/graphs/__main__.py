"""Export the built-in voice's graphs, with the table of their weights, sums and versions.

    python -m tools.graphs [--checkpoint stentor/assets/voice]

Writes CHECKPOINT/graphs: `lm`, `times`, `flow` and `codec` in float32, `lm.int8`, `flow.int8` and
`codec.int8`, and graphs.json. The graphs hold no weights: a session gets those of the checkpoint. Needs `pip
install 'stentor[torch,graphs]'`.
"""

from __future__ import annotations

import argparse
import hashlib
import json
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import onnx
import torch
from torch import Tensor, nn

from stentor import registry
from stentor.graphs.exactness import PROBE
from stentor.graphs.tensors import TensorFile
from stentor.graphs.weights import Weight
from stentor.models.config_files import read_config
from stentor.models.voxcpm2.config import parse
from stentor.models.voxcpm2.model import VoxCPM2
from tools.graphs.forms import plain_forms, use_products
from tools.graphs.networks import Codec, ComputedRope, FlowStep, LanguageModels, TimeTokens
from tools.graphs.rewrite import fused, in_eight_bits, probe, strip, upsample_in_eight_bits
from tools.graphs.table import codec_weights, language_weights

ROOT = Path(__file__).parents[2]
OPSET = 23  # the first with attention and RoPE, each as one node
AUTO = torch.export.Dim.AUTO
MODEL = "model.safetensors"
FILES = {"lm": MODEL, "times": MODEL, "flow": MODEL, "codec": "audiovae.safetensors"}
EIGHT_BITS = ("lm", "flow", "codec")
"""Graphs that are made with products in 8 bits too, the codec's first two upsamplings among them. Its
other products in 8 bits lose 0.1 to 0.2 of DistillMOS."""
PACKAGES = ("torch", "onnx", "onnxscript", "onnxruntime")


def export(
    module: nn.Module, args: tuple[Any, ...], inputs: list[str], outputs: list[str], shapes: Any
) -> onnx.ModelProto:
    program = torch.onnx.export(
        module.eval(),
        args,
        dynamo=True,
        opset_version=OPSET,
        input_names=inputs,
        output_names=outputs,
        dynamic_shapes=shapes,
        external_data=False,
        verbose=False,
    )
    assert program is not None
    return program.model_proto


def language_models(model: VoxCPM2, theta: float) -> onnx.ModelProto:
    rope = ComputedRope(theta, model.net.rope)
    kv = model.spec.kv
    tokens, past_tokens, patches = 5, 7, 3
    past = [torch.randn(1, kv.heads, past_tokens, kv.dim) for _ in range(2 * kv.layers)]
    place = torch.zeros(tokens, dtype=torch.int64)
    place[1:3] = 1
    mask = torch.zeros(tokens, past_tokens + tokens)
    args = (
        torch.zeros(tokens, dtype=torch.int64),
        place,
        torch.randn(patches, model.patch, model.feat),
        torch.arange(tokens) + past_tokens,
        mask,
        mask.clone(),
        mask[0].clone(),
        *past,
    )
    names = [f"{part}{layer}" for layer in range(kv.layers) for part in "kv"]
    inputs = ["token", "place", "patches", "pos", "far", "near", "inside", *names]
    outputs = ["mu", "stop", "attended", *(f"new_{name}" for name in names)]
    by_token = {0: AUTO}
    masks = {0: AUTO, 1: AUTO}
    pasts = tuple({2: AUTO} for _ in past)
    shapes = (by_token, by_token, by_token, by_token, masks, masks, by_token, pasts)
    return export(LanguageModels(model.net, model.spec, rope), args, inputs, outputs, shapes)


def flow_step(model: VoxCPM2) -> onnx.ModelProto:
    hidden = model.net.feat_decoder.estimator.hidden
    patch: Tensor = torch.randn(model.patch, model.feat)
    time = torch.randn(1, hidden)
    one = torch.rand(1)
    args = (torch.randn(2, hidden), patch, patch.clone(), time, one, one.clone())
    return export(FlowStep(model.net), args, ["mu", "cond", "x", "time", "dt", "cfg"], ["y"], None)


def time_tokens(model: VoxCPM2) -> onnx.ModelProto:
    return export(TimeTokens(model.net), (torch.rand(3),), ["t"], ["tokens"], ({0: AUTO},))


def codec(model: VoxCPM2) -> tuple[onnx.ModelProto, list[tuple[int, int]]]:
    """The codec's graph, and the shapes of its histories."""
    module = Codec(model.vae.decoder)
    states = [(tail, channels) for _, tail, channels in module.states]
    past = [torch.zeros(state) for state in states]
    names = [f"s{i}" for i in range(len(past))]
    shapes = ({0: AUTO}, tuple({} for _ in past))
    outputs = ["y", *(f"new_{name}" for name in names)]
    args = (torch.randn(8, model.feat), *past)
    return export(module, args, ["x", *names], outputs, shapes), states


def write(folder: Path, name: str, model: onnx.ModelProto, weights: Mapping[str, Weight]) -> Any:
    """Write a graph without its weights. Returns its entry of the table."""
    slim = fused(model)
    kept = strip(slim, weights)
    data = slim.SerializeToString(deterministic=True)
    (folder / f"{name}.onnx").write_bytes(data)
    print(f"{name}: {len(slim.graph.node)} nodes, {len(kept)} weights, {len(data)} bytes")
    return hashlib.sha256(data).hexdigest(), kept


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--checkpoint", type=Path, default=ROOT / "stentor/assets/voice")
    checkpoint = parser.parse_args().checkpoint
    folder = checkpoint / "graphs"
    folder.mkdir(exist_ok=True)
    torch.manual_seed(0)
    with torch.no_grad(), plain_forms():
        loaded = registry.load(checkpoint, torch.device("cpu"), torch.float32, {})
        assert isinstance(loaded, VoxCPM2)
        use_products(loaded.net)
        config = parse(read_config(checkpoint))
        codec_model, states = codec(loaded)
        models = {
            "lm": language_models(loaded, config.rope_theta),
            "times": time_tokens(loaded),
            "flow": flow_step(loaded),
            "codec": codec_model,
        }

    files = {name: TensorFile(checkpoint / name) for name in set(FILES.values())}
    sums: dict[str, str] = {}
    tables: dict[str, dict[str, Any]] = {}
    for name, model in models.items():
        file = files[FILES[name]]
        if name == "codec":
            weights = codec_weights(model, file, loaded.vae.config.rate_bucket)
        else:
            weights = language_weights(model, file)
        sums[name], kept = write(folder, name, model, weights)
        if name in EIGHT_BITS:
            in_eight_bits(model, weights)
            upsample_in_eight_bits(model, weights)
            sums[f"{name}.int8"], narrow = write(folder, f"{name}.int8", model, weights)
            assert narrow.keys() == kept.keys()
        tables[name] = {key: weight.dump() for key, weight in sorted(kept.items())}

    PROBE.write_bytes(probe())
    parts = {name: hashlib.sha256((checkpoint / name).read_bytes()).hexdigest() for name in files}
    table = {
        "made_with": {package: version(package) for package in PACKAGES},
        "sha256": dict(
            sorted({**{f"graphs/{n}.onnx": s for n, s in sums.items()}, **parts}.items())
        ),
        "codec_states": states,
        "weights": {n: {"file": FILES[n], "tensors": tables[n]} for n in models},
    }
    (folder / "graphs.json").write_text(json.dumps(table, separators=(",", ":")) + "\n")


main()

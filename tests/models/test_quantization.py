"""Language models with weights in 8 bits: which layers have them, and checkpoints that come with them."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from stentor import kernels, registry
from stentor.api import TTS
from stentor.engine.sizes import GIB
from stentor.errors import CheckpointError, InvalidRequest
from stentor.layers.linear import QuantizedLinear
from stentor.layers.packed import PackedLinear, packs
from stentor.layers.quantized import dequantize
from stentor.layers.transformer import Stack
from stentor.models.dummy import random_init
from stentor.models.fish_s2.builder import QUANTIZED as FISH
from stentor.models.fish_s2.builder import QUANTIZED_DEPTH as FISH_DEPTH
from stentor.models.fish_s2.config import parse as parse_fish
from stentor.models.fish_s2.language_model import Language
from stentor.models.frame_talker import eight_bits
from stentor.models.quantization import DEPTH, quantize_layers
from stentor.models.qwen3_tts.builder import make_weights
from stentor.models.qwen3_tts.config import parse as parse_qwen
from stentor.models.voxcpm2.builder import QUANTIZED as VOXCPM2
from stentor.models.voxcpm2.config import parse as parse_vox
from stentor.models.voxcpm2.modules import VoxCPM2Net
from stentor.models.weights import meta_init
from tests.helpers import adapters
from tests.helpers.eight_bits import (
    compressed_config,
    packed,
    plain,
    torchao,
    torchao_config,
    write,
)
from tests.helpers.released import released
from tests.helpers.tiny import FAMILIES, FIXTURES, checkpoint

CPU = torch.device("cpu")
VOX, FISH_PATH = FIXTURES / "voxcpm2", FIXTURES / "fish_s2" / "checkpoint"
FP8 = torch.float8_e4m3fn


def load(path: Path, **options: Any) -> Any:
    return registry.load(path, CPU, torch.float32, options)


def quantized(module: nn.Module) -> dict[str, QuantizedLinear]:
    return {n: m for n, m in module.named_modules() if isinstance(m, QuantizedLinear)}


def quantized_in(model: Any) -> dict[str, QuantizedLinear]:
    """The quantised layers of all modules that a model holds."""
    modules = [(n, m) for n, m in vars(model).items() if isinstance(m, nn.Module)]
    return {f"{n}.{name}": layer for n, m in modules for name, layer in quantized(m).items()}


@pytest.mark.parametrize(
    ("family", "name", "dtype"),
    [*((f, "int8", torch.int8) for f in FAMILIES), ("fish_s2", "fp8", FP8)],
)
def test_only_the_layers_of_language_models_and_depth_loops_have_eight_bits(
    family: str, name: str, dtype: torch.dtype, tmp_path: Path
) -> None:
    path = checkpoint(family, tmp_path / "tiny")
    layers = quantized_in(load(path, quantization=name))
    assert {n.rpartition(".")[2] for n in layers} == {
        "qkv_proj",
        "o_proj",
        "gate_up_proj",
        "down_proj",
    }
    assert {m.weight.dtype for m in layers.values()} == {dtype}
    assert {m.weight_scale.dtype for m in layers.values()} == {torch.float32}
    inside = {
        "qwen3_tts": ("_stack.",),
        "voxcpm2": ("net.base_lm.", "net.residual_lm."),
        "fish_s2": ("language.slow.", "language.fast.") if name == "int8" else ("language.slow.",),
    }
    for n in layers:
        assert any(part in f".{n}" for part in inside[family]), n
    for part in inside[family]:
        assert any(part in f".{n}" for n in layers), part


def test_speech_of_a_quantised_model_is_near_that_of_the_model() -> None:
    spoken = []
    for name in ("auto", "int8"):
        with TTS(VOX, quantization=name, memory_gb=0.01, max_num_seqs=1, threads=1) as tts:
            spoken.append(
                torch.from_numpy(tts.generate("Hello.", seed=3, min_frames=4, max_frames=4).samples)
            )
    assert len(spoken[0]) == len(spoken[1])
    assert torch.nn.functional.cosine_similarity(*spoken, dim=0) > 0.9
    assert not torch.equal(*spoken)


def test_adapters_serve_a_quantised_model(tmp_path: Path) -> None:
    folders = {"a": adapters.make(tmp_path / "a", 1, rank=3)}
    with TTS(
        VOX, quantization="int8", loras=folders, memory_gb=0.01, max_num_seqs=1, threads=1
    ) as tts:
        plain_speech, adapted = (
            tts.generate("Hello.", seed=3, min_frames=2, max_frames=2, lora=n) for n in (None, "a")
        )
    assert not (plain_speech.samples == adapted.samples).all()


# -- checkpoints that come quantised --------------------------------------------------------------------------------


def every_layer(name: str) -> bool:
    """Quantize as these tools do by default: each linear layer, also of the flow and of the depth loop."""
    return name.endswith(("_proj", "wqkv", "wo", "w1", "w2", "w3")) and "layers" in name


WAYS: dict[
    str, tuple[dict[str, Any], Callable[[Tensor, Tensor], dict[str, Tensor]], torch.dtype, int]
] = {
    "torchao int8": (torchao_config(), torchao, torch.int8, 1),
    "torchao fp8": (torchao_config("Float8WeightOnlyConfig"), torchao, FP8, 1),
    "torchao int8 in groups": (torchao_config(group_size=16), torchao, torch.int8, 2),
    "compressed int8": (compressed_config(), packed, torch.int8, 1),
    "compressed int8 in groups": (
        compressed_config(strategy="group", group_size=16),
        packed,
        torch.int8,
        2,
    ),
    "compressed fp8": (
        {**compressed_config(type="float"), "format": "naive-quantized"},
        plain,
        FP8,
        1,
    ),
}


LAYERS = re.compile(r"(base_lm|residual_lm|slow)\.layers\.\d+\.(self_attn|mlp)\.")
DEPTH_LAYERS = re.compile(r"fast\.layers\.\d+\.(self_attn|mlp)\.")


@functools.cache
def floats(source: Path) -> dict[str, nn.Linear]:
    """The linear layers of a checkpoint as it is."""
    model = load(source)
    assert not quantized_in(model)
    return {n: m for n, m in _modules(model) if isinstance(m, nn.Linear)}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("source", [VOX, FISH_PATH])
def test_a_checkpoint_that_comes_quantised_keeps_its_bits(
    way: str, source: Path, tmp_path: Path
) -> None:
    config, form, dtype, groups = WAYS[way]
    model = load(write(source, tmp_path / "c", config, every_layer, form, dtype, groups))
    layers, exact = quantized_in(model), floats(source)
    loops = {n for n in exact if DEPTH_LAYERS.search(n)} if (dtype, groups) == DEPTH else set()
    assert layers.keys() == {n for n in exact if LAYERS.search(n)} | loops
    for name, layer in layers.items():
        assert (layer.weight.dtype, layer.weight_scale.shape[1]) == (dtype, groups)
        back = dequantize(layer.weight, layer.weight_scale, torch.float32)
        assert _error(back, exact[name].weight) < 0.04
    others = [
        (n, m)
        for n, m in _modules(model)
        if isinstance(m, nn.Linear) and n not in layers and n in exact
    ]
    assert others
    assert all(_error(m.weight, exact[n].weight) < 0.04 for n, m in others)
    widened = [n for n, m in others if not torch.equal(m.weight, exact[n].weight)]
    assert bool(widened) == (
        not loops
    )  # the layers of its flow or depth loop had 8 bits in the file


def _modules(model: Any) -> list[tuple[str, nn.Module]]:
    modules = [(n, m) for n, m in vars(model).items() if isinstance(m, nn.Module)]
    return [(f"{n}.{name}", module) for n, m in modules for name, module in m.named_modules()]


def _error(got: Tensor, want: Tensor) -> float:
    return float((got - want).norm() / want.norm())


def language_models(name: str) -> bool:
    return name.startswith(("base_lm.layers", "residual_lm.layers")) and name.endswith("_proj")


def test_layers_that_a_checkpoint_leaves_float_stay_so_or_are_quantised_on_demand(
    tmp_path: Path,
) -> None:
    path = write(
        VOX,
        tmp_path / "c",
        compressed_config(),
        lambda n: language_models(n) and "down" not in n,
        packed,
    )
    names = {n.rpartition(".")[2] for n in quantized_in(load(path))}
    assert names == {"qkv_proj", "o_proj", "gate_up_proj"}
    assert {n.rpartition(".")[2] for n in quantized_in(load(path, quantization="int8"))} == {
        *names,
        "down_proj",
    }
    with pytest.raises(InvalidRequest, match="quantization: this checkpoint comes in int8"):
        load(path, quantization="fp8")


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """A checkpoint that is small by 8 bits, which are widened."""
    path = write(VOX, tmp_path / "c", compressed_config(), every_layer, packed)
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps({**config, "stentor": {"widens": True}}))
    return path


def test_eight_bits_that_only_make_a_checkpoint_small_are_widened_unless_asked_for(
    small: Path,
) -> None:
    layer = load(small, quantization="int8").net.base_lm.layers[0].mlp.down_proj
    model = load(small)
    assert not quantized_in(model)
    wide = model.net.base_lm.layers[0].mlp.down_proj.weight
    assert torch.equal(wide, dequantize(layer.weight, layer.weight_scale, torch.float32))


def sixteen(path: Path, **options: Any) -> list[str]:
    """The layers of the network that are held in 16 bits."""
    net = registry.load(path, CPU, None, options).net
    return [n for n, m in net.named_modules() if isinstance(m, PackedLinear)]


@pytest.mark.skipif(not packs(CPU, torch.float32), reason="this CPU or torch has no such product")
def test_what_was_widened_on_a_cpu_is_held_in_sixteen_bits_unless_a_dtype_is_named(
    small: Path,
) -> None:
    parts = {"base_lm", "residual_lm", "feat_encoder.encoder", "feat_decoder.estimator.decoder"}
    assert {n.rpartition(".layers.")[0] for n in sixteen(small)} == parts
    assert {n.partition(".")[0] for n in sixteen(small, quantization="int8")} == {
        "feat_encoder",
        "feat_decoder",
    }
    assert not any(isinstance(m, PackedLinear) for _, m in _modules(load(small)))
    assert not sixteen(small, max_loras=1)


def test_speech_of_weights_in_sixteen_bits_is_that_of_float32(small: Path) -> None:
    spoken = []
    for dtype in ("auto", "float32"):
        with TTS(small, dtype=dtype, memory_gb=0.01, max_num_seqs=1, threads=1) as tts:
            spoken.append(
                torch.from_numpy(tts.generate("Hello.", seed=3, min_frames=4, max_frames=4).samples)
            )
    assert _error(*spoken) < 0.01


def test_what_is_one_layer_here_must_be_quantised_alike(tmp_path: Path) -> None:
    path = write(
        VOX,
        tmp_path / "c",
        compressed_config(),
        lambda n: language_models(n) and "k_proj" not in n,
        packed,
    )
    with pytest.raises(
        CheckpointError, match=r"k_proj.weight_scale is missing: .* are one layer here"
    ):
        load(path)


def test_weights_to_merge_into_quantised_ones_are_refused(tmp_path: Path) -> None:
    path = write(VOX, tmp_path / "c", compressed_config(), language_models, packed)
    with pytest.raises(
        CheckpointError, match="is quantised: name the adapter in loras, not in lora"
    ):
        load(path, lora=str(adapters.make(tmp_path / "a", 1, rank=2)))


ACTIVATIONS = compressed_config()
ACTIVATIONS["config_groups"]["group_0"]["input_activations"] = {"num_bits": 8}
REFUSED: dict[str, Any] = {
    "quant_method must be torchao or compressed-tensors, got 'gptq'": {"quant_method": "gptq"},
    "quantization_config must be an object": "int8",
    "group_0.weights.num_bits must be 8, got 4": compressed_config(num_bits=4),
    "group_0.weights.symmetric must be true": compressed_config(symmetric=False),
    "group_0.weights.dynamic must be false": compressed_config(dynamic=True),
    "group_0.weights.strategy must be one of channel, group, tensor": compressed_config(
        strategy="block"
    ),
    "group_0.weights.actorder must be null, weight or static": compressed_config(actorder="group"),
    "group_0.input_activations must be null: only weights": ACTIVATIONS,
    "quantization_config.format must be one of pack-quantized": {
        **compressed_config(),
        "format": "marlin-24",
    },
    "kv_cache_scheme is not supported": {**compressed_config(), "kv_cache_scheme": {"num_bits": 8}},
    "default._type must be one of Int8WeightOnlyConfig, Float8WeightOnlyConfig": torchao_config(
        "Int4WeightOnlyConfig"
    ),
    "weight_dtype._data must be float8_e4m3fn": torchao_config(
        "Float8WeightOnlyConfig", weight_dtype={"_type": "torch.dtype", "_data": "float8_e5m2"}
    ),
    "quant_type must be an object": {"quant_method": "torchao", "quant_type": "int4wo"},
}


@pytest.mark.parametrize("why", REFUSED)
def test_other_schemes_are_refused_with_the_field_and_what_is_allowed(
    why: str, tmp_path: Path
) -> None:
    path = write(VOX, tmp_path / "c", REFUSED[why], lambda n: False, plain)
    with pytest.raises(CheckpointError, match=f"config.json: .*{why}"):
        load(path)


EDITS: dict[str, Callable[[Tensor, Tensor], dict[str, Tensor]]] = {
    "weight_packed must be int32 of two dimensions": lambda b, s: {
        **packed(b, s),
        "weight_packed": b,
    },
    "weight_packed has shape": lambda b, s: {**packed(b, s), "weight_shape": torch.tensor([9, 9])},
    "weight_scale has shape": lambda b, s: {**plain(b, s), "weight_scale": torch.ones(5, 1)},
    r"weight_scale has shape \[\d+, 0\]": lambda b, s: {**plain(b, s), "weight_scale": s[:, :0]},
    r"weight_scale is missing: .*weight is stored in torch\.int8": lambda b, s: {"weight": b},
    r"weight_scale is missing: .*weight is stored in torch\.float8": lambda b, s: {
        "weight": b.float().to(FP8)
    },
    "weight_scale stands beside no weight": lambda b, s: {"weight": b.float(), "weight_scale": s},
    "weight_zero_point is not part of this model": lambda b, s: {
        **plain(b, s),
        "weight_zero_point": torch.ones(1),
    },
    "weight_g_idx is not part of this model": lambda b, s: {
        **plain(b, s),
        "weight_g_idx": torch.ones(1),
    },
}


@pytest.mark.parametrize("why", EDITS)
def test_tensors_that_do_not_fit_are_named(why: str, tmp_path: Path) -> None:
    path = write(VOX, tmp_path / "c", compressed_config(), language_models, EDITS[why])
    with pytest.raises(CheckpointError, match=why):
        load(path)


def without_scheme(path: Path) -> Path:
    """The checkpoint, of which config.json no longer says that it is quantised."""
    config = json.loads((path / "config.json").read_text())
    del config["quantization_config"]
    (path / "config.json").write_text(json.dumps(config))
    return path


UNNAMED: dict[str, Callable[[Tensor, Tensor], dict[str, Tensor]]] = {
    "weight_scale is missing": lambda b, s: {"weight": b},
    "weight_scale stands beside no weight": lambda b, s: {"weight": b.float(), "weight_scale": s},
}


@pytest.mark.parametrize("why", UNNAMED)
def test_tensors_that_do_not_fit_are_named_also_where_no_scheme_is(
    why: str, tmp_path: Path
) -> None:
    path = without_scheme(
        write(VOX, tmp_path / "c", compressed_config(), language_models, UNNAMED[why])
    )
    with pytest.raises(CheckpointError, match=why):
        load(path, quantization="int8")


@pytest.mark.parametrize("source", [VOX, FISH_PATH])
def test_one_scale_of_all_outputs_is_read_also_where_no_scheme_is(
    source: Path, tmp_path: Path
) -> None:
    config = {**compressed_config(), "format": "naive-quantized"}
    path = write(source, tmp_path / "c", config, every_layer, lambda b, s: plain(b, s.max()))
    scales = {n: m.weight_scale for n, m in quantized_in(load(path)).items()}
    bare_scales = {n: m.weight_scale for n, m in quantized_in(load(without_scheme(path))).items()}
    assert scales
    assert all(torch.equal(bare_scales[n], scale) for n, scale in scales.items())


def test_float8_without_scales_is_only_a_dtype_where_no_scheme_is(tmp_path: Path) -> None:
    path = write(
        VOX,
        tmp_path / "c",
        compressed_config(),
        language_models,
        lambda b, s: {"weight": (b * s).to(FP8)},
    )
    weight = load(without_scheme(path)).net.base_lm.layers[0].mlp.down_proj.weight
    assert weight.dtype == torch.float32
    assert torch.equal(weight, weight.to(FP8).float())


# -- memory ---------------------------------------------------------------------------------------------------------


def networks() -> dict[str, tuple[Callable[[], nn.Module], tuple[str, ...], float]]:
    """A network of released size on the meta device, its stacks in 8 bits, and GiB that int8 saves (docs/models)."""
    c, bf16 = parse_fish(released("fish_s2", "fish-s2-pro").config), torch.bfloat16

    def qwen(name: str) -> nn.Module:
        return make_weights(parse_qwen(released("qwen3_tts", name).config, name), bf16, bf16)

    def voxcpm2() -> nn.Module:
        with meta_init():
            return VoxCPM2Net(parse_vox(released("voxcpm2", "voxcpm2").config), bf16)

    talkers = eight_bits({})
    return {
        "qwen3-tts 0.6B": (
            lambda: qwen("qwen3-tts-0.6b-base"),
            (*talkers.stacks, *talkers.depth),
            0.48,
        ),
        "qwen3-tts 1.7B": (
            lambda: qwen("qwen3-tts-1.7b-base"),
            (*talkers.stacks, *talkers.depth),
            1.39,
        ),
        "voxcpm2": (voxcpm2, VOXCPM2, 1.58),
        "fish s2 pro": (lambda: Language(c, 0, 0, bf16), (*FISH, *FISH_DEPTH), 3.76),
    }


@pytest.mark.parametrize("name", ["qwen3-tts 0.6B", "qwen3-tts 1.7B", "voxcpm2", "fish s2 pro"])
def test_int8_halves_the_weights_of_language_models_and_depth_loops(name: str) -> None:
    make, stacks, saved = networks()[name]
    net = make()
    layers = [w for s in stacks for w in net.get_submodule(f"{s}.layers").parameters()]
    before, total = sum(w.nbytes for w in layers), sum(w.nbytes for w in net.parameters())
    quantize_layers(net, stacks, torch.int8)
    after = sum(w.nbytes for s in stacks for w in net.get_submodule(f"{s}.layers").parameters())
    assert after <= 0.502 * before
    assert (total - sum(w.nbytes for w in net.parameters())) / GIB == pytest.approx(saved, abs=0.02)


@pytest.fixture
def wide_loop(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """The depth loop of a talker in int8, as on a GPU that has measured kernels."""
    monkeypatch.setattr(kernels.linear, "measured_on", lambda device: True)
    return load(checkpoint("qwen3_tts", tmp_path), quantization="int8")._predictor


def test_a_depth_loop_in_int8_has_its_weights_in_sixteen_bits_too(wide_loop: Any) -> None:
    stack, wide = wide_loop._stack, wide_loop._wide
    layers = quantized(stack)
    assert len(layers) == 4 * len(stack.layers)
    assert not quantized(wide)
    for name, layer in layers.items():
        exact = dequantize(layer.weight, layer.weight_scale, torch.float32)
        assert torch.equal(wide.get_submodule(name).weight, exact)
    assert wide.norm.weight.data_ptr() == stack.norm.weight.data_ptr()


@torch.inference_mode()
@pytest.mark.parametrize(
    ("rows", "invariant", "wide"),
    [(8, False, False), (9, False, True), (9, True, False), (32, False, True), (33, False, False)],
)
def test_nine_to_32_rows_of_a_depth_loop_are_multiplied_in_sixteen_bits(
    rows: int, invariant: bool, wide: bool, wide_loop: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    stacks: list[Stack] = []
    head = Stack.head

    def record(self: Stack, *args: Any) -> Tensor:
        stacks.append(self)
        return head(self, *args)

    monkeypatch.setattr(Stack, "head", record)
    width = wide_loop._project.in_features
    steps = len(wide_loop._heads)
    draws = torch.ones(rows), torch.full((rows,), 5), torch.ones(rows)
    with kernels.batch_invariant(invariant):
        frame = wide_loop.start(torch.ones(rows, width))
        frame.x.zero_()
        wide_loop(frame, torch.full((rows, steps), 0.5), *draws)
    used = wide_loop._wide if wide else wide_loop._stack
    assert stacks == [used] * steps


def test_models_in_sixteen_bits_or_float8_or_on_other_devices_have_one_depth_loop(
    wide_loop: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = checkpoint("qwen3_tts", tmp_path)
    assert load(path)._predictor._wide is None
    assert load(path, quantization="fp8")._predictor._wide is None
    monkeypatch.undo()
    assert load(path, quantization="int8")._predictor._wide is None


@pytest.mark.parametrize("dtype", [torch.int8, FP8])
def test_random_weights_in_eight_bits_are_as_large_as_others(dtype: torch.dtype) -> None:
    block = nn.ModuleDict({"layers": nn.ModuleList([nn.Linear(64, 256, bias=False)])})
    holder = nn.ModuleDict({"lm": block})
    quantize_layers(holder, ("lm",), dtype)
    random_init(holder, seed=1)
    layer = block["layers"][0]
    assert isinstance(layer, QuantizedLinear)
    drawn = dequantize(layer.weight, layer.weight_scale, torch.float32)
    assert float(drawn.abs().max()) <= 1 / 8 * 1.001
    assert float(drawn.std()) == pytest.approx(1 / 8 / 3**0.5, rel=0.05)


def test_a_quantisation_that_there_is_not_is_named() -> None:
    with pytest.raises(
        InvalidRequest, match="quantization: must be one of auto, int8, fp8, got 'int4'"
    ):
        TTS("dummy:toy", quantization="int4")

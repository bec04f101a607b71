"""Released sizes and names, the layouts that are accepted, and what is said about a directory that is not whole."""

from __future__ import annotations

import hashlib
import json
import math
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

from stentor import registry
from stentor.errors import CheckpointError, InvalidRequest
from stentor.models.base import PromptRows
from stentor.models.dummy import initialize_dummy_weights
from stentor.models.fish_s2 import codec as codecs
from stentor.models.fish_s2 import config
from stentor.models.fish_s2.builder import dummy_ids, make_codec
from stentor.models.fish_s2.checkpoint import language_model
from stentor.models.fish_s2.language_model import Language
from stentor.models.fish_s2.model import FishS2
from stentor.models.lora import NO_ADAPTERS
from stentor.models.weights import load_weights
from tests.helpers.released import released
from tests.models.fish_s2.oracle import CHECKPOINT

CPU = torch.device("cpu")
SOURCE = released("fish_s2", "fish-s2-pro")
LM = config.parse(SOURCE.config)
FINGERPRINT = "7080b1c9b5d5e95589a1efa18db19616170d7e35664e2e4e7f744bbf7180adad"  # of the sorted lines that the test makes


def released_language_model():
    """Names and shapes of the published shards."""

    def block(prefix, norms):
        yield f"{prefix}.attention.wqkv", [6144, 2560]
        yield f"{prefix}.attention.wo", [2560, 4096]
        for name in norms:
            yield f"{prefix}.attention.{name}", [128]
        for name, shape in (("w1", [9728, 2560]), ("w3", [9728, 2560]), ("w2", [2560, 9728])):
            yield f"{prefix}.feed_forward.{name}", shape
        yield f"{prefix}.attention_norm", [2560]
        yield f"{prefix}.ffn_norm", [2560]

    yield "text_model.model.embeddings", [155_776, 2560]
    yield "text_model.model.norm", [2560]
    for i in range(36):
        yield from block(f"text_model.model.layers.{i}", ("q_norm", "k_norm"))
    yield "audio_decoder.codebook_embeddings", [40_960, 2560]
    yield "audio_decoder.embeddings", [4096, 2560]
    yield "audio_decoder.output", [4096, 2560]
    yield "audio_decoder.norm", [2560]
    for i in range(4):
        yield from block(f"audio_decoder.layers.{i}", ())


def test_the_list_of_tensors_used_here_has_the_fingerprint_of_the_published_shards():
    names = {f"{name}.weight": shape for name, shape in released_language_model()}
    assert len(names) == 358
    assert sum(math.prod(s) for s in names.values()) == 4_561_852_416
    lines = "\n".join(
        sorted(f"{name}|BF16|{'x'.join(map(str, shape))}" for name, shape in names.items())
    )
    assert hashlib.sha256(lines.encode()).hexdigest() == FINGERPRINT


def test_the_published_tensors_fill_the_language_model_completely():
    tensors = {
        f"{n}.weight": torch.empty(s, dtype=torch.bfloat16, device="meta")
        for n, s in released_language_model()
    }
    language = Language(LM, 151678, 151645, torch.bfloat16)
    load_weights(language, language_model(tensors), "released", torch.device("meta"))
    assert sum(p.numel() for p in language.parameters()) == 4_561_852_416
    assert {p.dtype for p in language.parameters()} == {torch.bfloat16}


def test_the_released_codec_has_the_published_number_of_tensors_and_parameters():
    codec = make_codec(codecs.RELEASED, LM, torch.float32, torch.float32)
    tensors, numbers = 0, 0
    for name, p in codec.named_parameters():
        # What loading fuses and folds: w1 and w3, weight norms, gains.
        tensors += 2 if "gate_up_proj" in name else 1
        numbers += p.numel()
        plain = "upsample" in name or "downsample" in name
        if p.ndim == 3 and not plain and not name.endswith("alpha"):
            tensors += 1
            numbers += p.shape[0]
        if name.endswith(("o_proj.weight", "down_proj.weight", "pwconv2.weight")):
            tensors += 1
            numbers += p.shape[0]
    assert (tensors, numbers) == (535, 391_430_530)
    state = {n: math.prod(c.shape) for n, c in codec.columns.items()}
    windows = sum(v for n, v in state.items() if n.startswith("post"))
    assert windows * 4 == 8_323_072
    assert (sum(state.values()) - windows - 1) * 4 == 536_832


def test_a_whole_step_at_released_sizes_needs_no_host_value():
    """On the meta device tensors have shapes and no values: reading one raises, as it would break a captured step."""
    meta = torch.device("meta")
    language = Language(LM, 151678, 151645, torch.bfloat16)
    codec = make_codec(codecs.RELEASED, LM, torch.float32, torch.float32)
    language.process_weights_after_loading()
    codec.process_weights_after_loading()
    model = FishS2(language.to(meta), codec.to(meta), dummy_ids(SOURCE, LM), NO_ADAPTERS)
    batch, prompt = 3, 40

    def empty(*shape, dtype=torch.int64):
        return torch.empty(shape, dtype=dtype, device=meta)

    class Rows(dict):
        def recent(self, count):
            return empty(batch, count, 10), empty(batch, count, dtype=torch.bool)

    class KV:
        pos = empty(batch)

        def attend(self, layer, q, k, v, norm_rope):
            assert (q.shape[1:], k.shape[1:], k.dtype) == ((32, 128), (8, 128), torch.bfloat16)
            return torch.empty_like(q)

    with torch.inference_mode():
        given = PromptRows({"token": empty(prompt)}, empty(7, 10), empty(7))
        assert model.embed_prompt(given, None)[0].shape == (prompt, 2560)
        floats = {
            "temperature": empty(batch, dtype=torch.float32),
            "top_p": empty(batch, dtype=torch.float32),
        }
        rows = Rows(
            step=empty(batch),
            min_frames=empty(batch),
            top_k=empty(batch),
            prev=empty(batch, 10),
            **floats,
        )
        h = model.backbone(model.embed_frame(rows), KV())
        out = model.emit(h, rows, empty(batch, model.spec.draws, dtype=torch.float32))
        assert (out.frame.shape, out.frame.dtype, out.stop.dtype) == (
            (batch, 10),
            torch.int64,
            torch.bool,
        )
        state = {n: empty(batch, *c.shape, dtype=c.dtype) for n, c in codec.columns.items()}
        samples, new = codec.decode(empty(batch, 5, 10), state)
        assert samples.shape == (batch, 5 * 2048)
        assert {n: t.shape for n, t in new.items()} == {n: t.shape for n, t in state.items()}


def test_a_model_without_files_has_the_ids_of_the_released_tokenizer():
    tokens = dummy_ids(SOURCE, LM)
    assert (tokens.im_start, tokens.im_end, tokens.voice, tokens.semantic) == (
        151644,
        151645,
        151673,
        151678,
    )


def test_random_weights_are_the_same_each_time_and_speak():
    raw = json.loads((CHECKPOINT / "config.json").read_text())
    c = config.parse(raw)
    made = []
    for _ in range(2):
        language = Language(c, 1512, 1502, torch.float32)
        initialize_dummy_weights(language, CPU, seed=0)
        language.process_weights_after_loading()
        made.append(language)
    assert all(
        torch.equal(a, b) for a, b in zip(*(m.state_dict().values() for m in made), strict=True)
    )
    frames = torch.randint(0, 256, (4, 10))
    assert made[0].embed_codes(frames).std() < 3
    assert made[0].logits(torch.randn(4, 32)).isfinite().all()


def test_a_gpu_would_load_the_checkpoints_own_dtype_and_a_cpu_float32():
    assert registry.load(CHECKPOINT, CPU, None, {}).spec.kv.dtype == torch.float32
    half = registry.load(CHECKPOINT, CPU, torch.bfloat16, {})
    assert half.language.embeddings.weight.dtype == half.spec.kv.dtype == torch.bfloat16
    assert half.language.slow_rope.cos.dtype == torch.float32
    assert half.codec.quantizer.pre_module.norm.weight.dtype == torch.float32


def all_tensors():
    tensors = {}
    for shard in CHECKPOINT.glob("*.safetensors"):
        tensors.update(load_file(shard))
    return tensors


def without_shards(tmp_path):
    path = tmp_path / "model"
    shutil.copytree(CHECKPOINT, path)
    for f in path.glob("model*"):
        f.unlink()
    return path


def same(a: FishS2, b: FishS2):
    return all(
        torch.equal(x, y)
        for x, y in zip(a.language.parameters(), b.language.parameters(), strict=True)
    )


@pytest.mark.parametrize(
    "layout", ["one file", "pickle", "pickle with short names", "split attention"]
)
def test_other_layouts_of_the_weights_load_alike(tmp_path, layout):
    path, tensors = without_shards(tmp_path), all_tensors()
    if layout == "pickle with short names":
        short = {k.replace("text_model.model.", ""): v for k, v in tensors.items()}
        tensors = {
            k.replace("audio_decoder.codebook", "codebook").replace("audio_decoder.", "fast_"): v
            for k, v in short.items()
        }
    if layout == "split attention":
        for name in [k for k in tensors if "wqkv" in k]:
            fused = tensors.pop(name)
            for part, rows in zip("qkv", fused.split([64, 32, 32]), strict=True):
                tensors[name.replace("wqkv", f"w{part}")] = rows.contiguous()
    if layout.startswith("pickle"):
        torch.save({"state_dict": tensors}, path / "model.pth")
    else:
        save_file(tensors, path / "model.safetensors")
    assert same(registry.load(path, CPU, None, {}), registry.load(CHECKPOINT, CPU, None, {}))


@pytest.mark.parametrize("key", ["generator", "state_dict"])
def test_a_wrapped_codec_file_loads_alike(tmp_path, key):
    path = tmp_path / "model"
    shutil.copytree(CHECKPOINT, path)
    torch.save({key: torch.load(path / "codec.pth", weights_only=True)}, path / "codec.pth")
    wrapped, plain = (registry.load(p, CPU, None, {}).codec for p in (path, CHECKPOINT))
    assert all(
        torch.equal(a, b) for a, b in zip(wrapped.parameters(), plain.parameters(), strict=True)
    )


def edit_config(path, **changes):
    raw = json.loads((path / "config.json").read_text())
    for key, value in changes.items():
        section, _, name = key.partition("__")
        raw[section][name] = value
    (path / "config.json").write_text(json.dumps(raw))


def edit_codec(path, change):
    tensors = torch.load(path / "codec.pth", weights_only=True)
    change(tensors)
    torch.save(tensors, path / "codec.pth")


def reshaped(name, change):
    """A codec one of whose tensors has another shape."""
    return lambda p: edit_codec(p, lambda t: t.update({name: change(t[name])}))


def drop_token(path, content):
    data = json.loads((path / "tokenizer.json").read_text())
    data["added_tokens"] = [t for t in data["added_tokens"] if t["content"] != content]
    (path / "tokenizer.json").write_text(json.dumps(data))


SEMANTIC = "quantizer.semantic_quantizer.quantizers.0"
BROKEN = {
    "no shards": (lambda p: [f.unlink() for f in p.glob("model*")], "neither model.safetensors"),
    "a shard less": (
        lambda p: (p / "model-00002-of-00002.safetensors").unlink(),
        "model-00002-of-00002.safetensors",
    ),
    "cut shard": (
        lambda p: (p / "model-00001-of-00002.safetensors").write_bytes(b"\0" * 99),
        "model-00001",
    ),
    "no codec": (lambda p: (p / "codec.pth").unlink(), "codec.pth"),
    "cut codec": (
        lambda p: (p / "codec.pth").write_bytes((p / "codec.pth").read_bytes()[:9999]),
        "codec.pth",
    ),
    "no tokenizer": (lambda p: (p / "tokenizer.json").unlink(), "tokenizer.json"),
    "bad tokenizer": (lambda p: (p / "tokenizer.json").write_text("{}"), "tokenizer.json"),
    "no voice token": (lambda p: drop_token(p, "<|voice|>"), r"<\|voice\|>"),
    "no last code": (lambda p: drop_token(p, "<|semantic:255|>"), r"<\|semantic:255\|>"),
    "other width": (
        lambda p: edit_config(p, text_config__intermediate_size=96),
        r"layers\.0\.feed_forward\.w1.*config\.json asks",
    ),
    "no layers": (lambda p: edit_config(p, text_config__n_layer=None), "text_config.n_layer"),
    "more layers": (
        lambda p: edit_config(p, text_config__n_layer=3),
        r"text_model\.model\.layers\.2.*is missing",
    ),
    "fewer layers": (
        lambda p: edit_config(p, text_config__n_layer=1),
        r"text_model\.model\.layers\.1.*not part",
    ),
    "biases": (
        lambda p: edit_config(p, text_config__attention_qkv_bias=True),
        "attention_qkv_bias",
    ),
    "two widths": (
        lambda p: edit_config(p, audio_decoder_config__dim=64),
        "audio_decoder_config.dim",
    ),
    "codec tensor gone": (
        lambda p: edit_codec(p, lambda t: t.pop("decoder.model.6.conv.bias")),
        "decoder.model.6.bias",
    ),
    "codec norm gone": (
        lambda p: edit_codec(
            p, lambda t: t.pop("encoder.block.0.conv.parametrizations.weight.original0")
        ),
        "encoder.block.0.conv.weight_g",
    ),
    "codec book gone": (
        lambda p: edit_codec(
            p, lambda t: [t.pop(k) for k in list(t) if "quantizer.quantizers.8" in k]
        ),
        "9 codebooks",
    ),
    "a semantic code more": (
        reshaped(f"{SEMANTIC}.codebook.weight", lambda t: torch.cat([t, t[:1]])),
        "257 semantic codes, config.json says 256",
    ),
    "codec norm of one value": (
        reshaped("decoder.model.0.conv.parametrizations.weight.original0", lambda t: t[:1]),
        r"/codec\.pth: tensors decoder.model.0.conv.weight_g \[1, 1, 1\] and decoder.model.0.conv.weight_v \[\d+, ",
    ),
    "flat codec norm": (
        reshaped(f"{SEMANTIC}.in_proj.weight_v", torch.flatten),
        rf"/codec\.pth: tensors {SEMANTIC}.in_proj.weight_g \[8, 1, 1\] and .* are no weight norm",
    ),
    "flat codec projection": (
        reshaped("quantizer.pre_module.layers.0.attention.wqkv.weight", lambda t: t[0, 0]),
        r"/codec\.pth: tensor quantizer.pre_module.layers.0.attention.wqkv.weight has shape \[\] beside",
    ),
    "flat codec output": (
        reshaped("quantizer.pre_module.layers.0.attention.wo.weight", torch.flatten),
        r"/codec\.pth: tensor quantizer.pre_module.layers.0.attention.wqkv.weight has shape .* beside \[\d+\] of",
    ),
    "codec gain of one value": (
        reshaped("quantizer.downsample.0.1.gamma", lambda t: t[0]),
        r"/codec\.pth: tensor quantizer.downsample.0.1.gamma has shape \[\] and no layer",
    ),
    "codec stride of nothing": (
        reshaped("quantizer.downsample.0.0.conv.weight", lambda t: t[..., :0]),
        r"codec\.pth: tensor quantizer.downsample.0.0.weight has shape \[.*, 0\], and dimension 2 must be 1 or more",
    ),
    "flat codec book": (
        reshaped(f"{SEMANTIC}.codebook.weight", torch.flatten),
        rf"codec\.pth: tensor {SEMANTIC}.codebook.weight has shape \[\d+\], and dimension 1 must be",
    ),
}


@pytest.mark.parametrize("what", BROKEN)
def test_a_directory_that_is_not_whole_is_refused_by_name(tmp_path, what):
    path = tmp_path / "model"
    shutil.copytree(CHECKPOINT, path)
    spoil, message = BROKEN[what]
    spoil(path)
    with pytest.raises(CheckpointError, match=message):
        registry.load(path, CPU, None, {})


@pytest.mark.parametrize(
    ("options", "param"),
    [
        ({"flow_steps": 3}, "flow_steps"),
        ({"codec_dtype": "int8"}, "codec_dtype"),
        ({"codec_dtype": []}, "codec_dtype"),
    ],
)
def test_unknown_load_options_are_refused(options, param):
    with pytest.raises(InvalidRequest) as e:
        registry.load(CHECKPOINT, CPU, None, options)
    assert e.value.param == param

"""Checkpoints of Qwen3-TTS: what must be there, and dummies of the released sizes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file
from torch import nn

from stentor import TTS, CheckpointError, InvalidRequest, Reference, registry
from stentor.models import qwen3_tts
from stentor.models.base import SpeechModel
from stentor.models.qwen3_tts import builder
from stentor.models.qwen3_tts.builder import make_weights
from stentor.models.qwen3_tts.codec import Decoder
from stentor.models.qwen3_tts.config import parse, read_codec
from stentor.models.qwen3_tts.tokenizer import QwenTokenizer
from stentor.models.weights import FUSED, on_meta
from tests.fixtures.qwen3_tts import tiny_qwen3_tts as tiny
from tests.helpers.released import released, shrink

CPU = torch.device("cpu")


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    return tiny.write("custom_voice", tmp_path / "model")


def load(path: Path, dtype: torch.dtype | None = None, **options: object) -> SpeechModel:
    return registry.load(path, CPU, dtype, options)


def edit(file: Path, change: Callable[[dict[str, Any]], object]) -> None:
    data = json.loads(file.read_text())
    change(data)
    file.write_text(json.dumps(data))


# -- errors ---------------------------------------------------------------------------------------------------------


def test_a_missing_tensor_is_named(checkpoint: Path) -> None:
    file = checkpoint / "model.safetensors"
    tensors = load_file(file)
    del tensors["talker.code_predictor.lm_head.3.weight"]
    save_file(tensors, file)
    with pytest.raises(
        CheckpointError, match=r"talker\.code_predictor\.lm_head\.3\.weight is missing"
    ):
        load(checkpoint)


def test_an_extra_tensor_is_named(checkpoint: Path) -> None:
    file = checkpoint / "speech_tokenizer" / "model.safetensors"
    save_file({**load_file(file), "decoder.extra": np.zeros(1, np.float32)}, file)
    with pytest.raises(CheckpointError, match="extra"):
        load(checkpoint)


def test_a_tensor_of_another_shape_is_named(checkpoint: Path) -> None:
    edit(checkpoint / "config.json", lambda c: c["talker_config"].update(vocab_size=3000))
    with pytest.raises(CheckpointError, match=r"talker\.model\.codec_embedding"):
        load(checkpoint)


@pytest.mark.parametrize(
    ("file", "section", "key"),
    [
        ("config.json", None, "tts_model_type"),
        ("config.json", "talker_config", "hidden_size"),
        ("config.json", "talker_config", "codec_eos_token_id"),
        ("speech_tokenizer/config.json", "decoder_config", "head_dim"),
        ("speech_tokenizer/config.json", "decoder_config", "codebook_dim"),
        ("speech_tokenizer/config.json", None, "encode_downsample_rate"),
    ],
)
def test_a_missing_config_value_is_named(
    checkpoint: Path, file: str, section: str | None, key: str
) -> None:
    edit(checkpoint / file, lambda c: (c[section] if section else c).pop(key))
    with pytest.raises(CheckpointError, match=key):
        load(checkpoint)


@pytest.mark.parametrize(
    ("key", "value"),
    [("tts_model_type", "singing"), ("tokenizer_type", "qwen3_tts_tokenizer_25hz")],
)
def test_a_kind_that_is_not_served_is_named(checkpoint: Path, key: str, value: str) -> None:
    edit(checkpoint / "config.json", lambda c: c.update({key: value}))
    with pytest.raises(CheckpointError, match=value):
        load(checkpoint)


@pytest.mark.parametrize("key", ["codec_language_id", "spk_id"])
@pytest.mark.parametrize("value", ["two", None, [3], 2.5, -1])
def test_a_token_id_that_is_none_is_named(checkpoint: Path, key: str, value: object) -> None:
    edit(checkpoint / "config.json", lambda c: c["talker_config"].update({key: {"New": value}}))
    with pytest.raises(
        CheckpointError, match=rf"talker_config\.{key}\.New (must be an integer|is missing)"
    ):
        load(checkpoint)


@pytest.mark.parametrize(
    "file", ["vocab.json", "merges.txt", "tokenizer_config.json", "speech_tokenizer/config.json"]
)
def test_a_missing_file_is_named(checkpoint: Path, file: str) -> None:
    (checkpoint / file).unlink()
    with pytest.raises(CheckpointError, match=Path(file).name):
        load(checkpoint)


def test_added_tokens_must_have_the_ids_that_the_vocabulary_leaves_them(checkpoint: Path) -> None:
    vocab = len(tiny.mini_vocabulary()[0])
    edit(
        checkpoint / "tokenizer_config.json",
        lambda c: c["added_tokens_decoder"].update(
            {str(vocab + 99): c["added_tokens_decoder"].pop(str(vocab + 5))}
        ),
    )
    with pytest.raises(CheckpointError, match="<tts_text_eod>"):
        load(checkpoint)


def test_an_unknown_load_option_is_refused(checkpoint: Path) -> None:
    with pytest.raises(InvalidRequest, match="flow_steps"):
        load(checkpoint, flow_steps=3)
    with pytest.raises(InvalidRequest, match="codec_dtype"):
        load(checkpoint, codec_dtype="int4")


def test_words_are_split_by_qwens_pattern_unless_that_of_a_local_directory_is_asked_for(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tokens of both patterns: tests/parity/test_qwen3_tts.py."""
    made: list[bool] = []

    def tokenizer(path: Path, mistral: bool) -> QwenTokenizer:
        made.append(mistral)
        return QwenTokenizer(path, mistral)

    monkeypatch.setattr(builder, "QwenTokenizer", tokenizer)
    load(checkpoint)
    load(checkpoint, mistral_pretokenizer=True)
    assert made == [False, True]


def test_a_checkpoint_without_generation_config_has_the_references_defaults(
    checkpoint: Path,
) -> None:
    (checkpoint / "generation_config.json").unlink()
    options = load(checkpoint).spec.options
    assert options["temperature"].default == options["subtalker_temperature"].default == 0.9
    assert options["max_frames"].default == 2047  # 2048 draws, of which the last makes no frame


def test_a_checkpoint_that_does_not_sample_defaults_to_argmax(checkpoint: Path) -> None:
    edit(
        checkpoint / "generation_config.json",
        lambda c: c.update(do_sample=False, max_new_tokens=100),
    )
    options = load(checkpoint).spec.options
    assert options["temperature"].default == 0.0
    assert options["max_frames"].default == 99


def test_bfloat16_rounds_the_language_models_and_not_the_codec(checkpoint: Path) -> None:
    model = load(checkpoint, torch.bfloat16)
    assert model.spec.kv.dtype == torch.bfloat16
    assert {c.dtype for c in model.codec.columns.values()} == {torch.float32, torch.int64}
    halved = load(checkpoint, codec_dtype="bfloat16")
    assert {c.dtype for c in halved.codec.columns.values()} == {torch.bfloat16, torch.int64}


def test_a_bfloat16_model_speaks(checkpoint: Path) -> None:
    with TTS(checkpoint, device="cpu", dtype="bfloat16", max_num_seqs=2) as tts:
        assert len(tts.generate("hello", max_frames=5, ignore_eos=True, seed=1).frames) == 5


# -- dummies --------------------------------------------------------------------------------------------------------


def count(module: nn.Module) -> tuple[int, int]:
    """(tensors as the checkpoint has them, parameters)."""
    state = module.state_dict()
    fused = [len(parts) for name in state for key, parts in FUSED.items() if f".{key}." in name]
    return len(state) - len(fused) + sum(fused), sum(t.numel() for t in state.values())


@pytest.mark.parametrize(
    ("name", "tensors", "parameters"),
    [
        ("qwen3-tts-0.6b-customvoice", 402, 905_788_672),
        ("qwen3-tts-0.6b-base", 478, None),
        ("qwen3-tts-1.7b-customvoice", 404, 1_916_676_352),
        ("qwen3-tts-1.7b-voicedesign", 404, 1_916_676_352),
        ("qwen3-tts-1.7b-base", 480, None),
    ],
)
def test_a_dummy_has_the_tensors_and_parameters_of_the_release(
    name: str, tensors: int, parameters: int | None
) -> None:
    assert name in qwen3_tts.DUMMIES
    got = count(
        make_weights(parse(released("qwen3_tts", name).config, name), torch.bfloat16, torch.float32)
    )
    assert got[0] == tensors
    if parameters is not None:
        assert got[1] == parameters


def test_the_dummies_codec_has_the_tensors_and_parameters_of_the_release() -> None:
    codec = read_codec(released("qwen3_tts", "qwen3-tts-1.7b-base"))
    decoder = on_meta(lambda: Decoder(codec.decoder), torch.float32)
    assert count(decoder) == (271, 114_323_137)


@pytest.fixture
def shrunken(monkeypatch: pytest.MonkeyPatch) -> None:
    """Dummies of every kind, made the same way, with few and narrow layers."""
    narrow = {
        "hidden_size": 32,
        "intermediate_size": 32,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
    }
    narrow |= {"num_key_value_heads": 1, "head_dim": 16}
    speaker = {
        "enc_dim": 32,
        "enc_channels": [16, 16, 16, 16, 48],
        "enc_se_channels": 4,
        "enc_attention_channels": 4,
    }

    def change(files: dict[str, Any]) -> None:
        model, codec = files["config.json"], files["speech_tokenizer/config.json"]
        talker = model["talker_config"]
        talker |= {**narrow, "text_hidden_size": 8}
        talker["code_predictor_config"] |= narrow
        model["speaker_encoder_config"] = {"sample_rate": 24000, **speaker}
        codec["decoder_config"] |= {
            **narrow,
            "latent_dim": 16,
            "codebook_dim": 16,
            "decoder_dim": 32,
        }
        codec["encoder_config"] |= {**narrow, "num_filters": 2, "codebook_dim": 8}
        codec["encoder_config"]["vector_quantization_hidden_dimension"] = 8

    shrink(monkeypatch, change)


@pytest.mark.parametrize("name", qwen3_tts.DUMMIES)
@pytest.mark.usefixtures("shrunken")
def test_a_dummy_speaks_without_files_and_the_same_every_time(name: str) -> None:
    more: dict[str, object] = {"seed": 3}
    if name.endswith("base"):
        more["reference"] = Reference((tiny.reference_audio(1.0), 24000), "some words")
    made = []
    for _ in range(2):
        with TTS(f"dummy:{name}", device="cpu", max_num_seqs=2, memory_gb=0.02) as tts:
            made.append(tts.generate("Hello there.", max_frames=7, ignore_eos=True, **more))
            assert tts.sample_rate == 24000
    assert made[0].frames.shape == (7, 16)
    assert made[0].frames.tolist() == made[1].frames.tolist()
    assert np.isfinite(made[0].samples).all()
    assert np.abs(made[0].samples).max() > 0

"""Make the fixture: a tiny random checkpoint in the released layout, and what transformers gives for it.

    python tests/make_fixture.py FOLDER      (needs transformers)

Every request is greedy. `quantised` has the values of the same weights rounded to int8, as `quantization="int8"` does.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers

from stentor.layers.quantized import dequantize, quantize

REFERENCE_TEXT = "This was said before."
CASES: dict[str, dict[str, Any]] = {
    "plain": {"text": "Hello there, how are you today?", "voice": "0", "max_frames": 40},
    "other speaker": {"text": "One, two, three.", "voice": "3", "max_frames": 24},
    "reference": {
        "text": "And this comes after it.",
        "voice": "1",
        "max_frames": 24,
        "reference": True,
    },
    "ends": {"text": "", "voice": "0", "max_frames": 60},
}
SIZES = {
    "num_codebooks": 3, "vocab_size": 20, "text_vocab_size": 260, "hidden_size": 32, "intermediate_size": 48,
    "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 256,
    "codebook_pad_token_id": 18, "codebook_eos_token_id": 0, "audio_token_id": 258, "audio_eos_token_id": 259,
    "pad_token_id": 258, "bos_token_id": 256,
    "rope_parameters": {
        "rope_theta": 500000.0, "rope_type": "llama3", "factor": 4.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0,
        "original_max_position_embeddings": 64,
    },
    "depth_decoder_config": {
        "num_codebooks": 3, "backbone_hidden_size": 32, "vocab_size": 20, "hidden_size": 24, "intermediate_size": 40,
        "num_hidden_layers": 2, "num_attention_heads": 3, "num_key_value_heads": 1, "max_position_embeddings": 4,
        "rope_parameters": {
            "rope_theta": 500000.0, "rope_type": "llama3", "factor": 32.0, "high_freq_factor": 0.0078125,
            "low_freq_factor": 0.001953125, "original_max_position_embeddings": 16,
        },
    },
    "codec_config": {
        "model_type": "mimi", "sampling_rate": 2400, "hidden_size": 16, "num_filters": 4, "upsampling_ratios": [4, 3],
        "codebook_size": 16, "codebook_dim": 8, "num_quantizers": 3, "vector_quantization_hidden_dimension": 8,
        "upsample_groups": 16, "num_hidden_layers": 2, "intermediate_size": 32, "num_attention_heads": 2,
        "num_key_value_heads": 2, "sliding_window": 6, "max_position_embeddings": 512,
    },
}  # fmt: skip
STACKS = "backbone_model.layers.", "depth_decoder.model.layers."


def tokenizer() -> Tokenizer:
    """One token for each byte, and the special tokens of the released file."""
    made = Tokenizer(
        models.BPE(
            vocab={c: i for i, c in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))},
            merges=[],
        )
    )
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    names = ("<|begin_of_text|>", "<|end_of_text|>", "<|AUDIO|>", "<|audio_eos|>")
    made.add_special_tokens([AddedToken(name, special=True) for name in names])
    return made


def recording() -> np.ndarray:
    """Reference audio, float32 [n] at 2,400 Hz."""
    t = np.arange(1511) / 2400
    return (
        0.4 * np.sin(2 * np.pi * 170 * t * (1 + 0.2 * t)) + 0.1 * np.sin(2 * np.pi * 600 * t)
    ).astype(np.float32)


def randomise(model: torch.nn.Module, seed: int) -> None:
    """Weights that make codes vary: the library's own are so small that all frames are alike."""
    generator = torch.Generator().manual_seed(seed)
    for name, p in model.state_dict().items():
        if name.endswith(
            ("stride", "kernel_size", "padding_total", "audio_tokens_offsets", "initialized")
        ):
            continue
        if name.endswith("cluster_usage"):
            p.uniform_(0.5, 2.0, generator=generator)
        elif p.ndim == 1:
            base = 0.3 if name.endswith("scale") else 1.0 if name.endswith("weight") else 0.0
            p.copy_(base + 0.1 * torch.randn(p.shape, generator=generator))
        else:
            wide = name.endswith(("embed_sum", "embed_tokens.weight", "embed_text_tokens.weight"))
            fan_in = p.shape[1] if "codebooks_head" in name else p[0].numel()
            gain = 1.0 if name.startswith("codec_model") else 2.0
            p.copy_(
                torch.randn(p.shape, generator=generator) * (1.0 if wide else gain / fan_in**0.5)
            )
    model.state_dict()["codec_model.decoder.decoder_seanet.layers.8.conv.weight"].mul_(
        0.3
    )  # below full scale


def speak(model: Any, tokens: Tokenizer, case: dict[str, Any]) -> tuple[np.ndarray, np.ndarray]:
    """Codes [T, K] of the frames that are audio, and samples [n]."""
    turn = f"<|begin_of_text|>[{case['voice']}]{case['text']}<|end_of_text|>"
    values: dict[str, Any] = {}
    if case.get("reference"):
        wav = torch.from_numpy(recording())[None, None]
        frames = model.codec_model.encode(wav).audio_codes.shape[-1]
        said = f"<|begin_of_text|>[{case['voice']}]{REFERENCE_TEXT}<|end_of_text|>"
        turn = f"{said}{'<|AUDIO|>' * frames}<|audio_eos|>{turn}"
        values = {"input_values": wav, "input_values_cutoffs": torch.tensor([[wav.shape[-1]]])}
    ids = torch.tensor([tokens.encode(turn, add_special_tokens=False).ids])
    greedy = {
        "do_sample": False,
        "depth_decoder_do_sample": False,
        "max_new_tokens": case["max_frames"],
    }
    with torch.no_grad():
        # given as the processor gives it: the library would take audio for padding, which has the same id
        codes = model.generate(
            input_ids=ids, attention_mask=torch.ones_like(ids), **values, **greedy
        )[0]
        ended = (codes[:, :-1] == model.config.codebook_eos_token_id).all(-1).nonzero()
        codes = codes[: int(ended[0, 0])] if len(ended) else codes
        audio = model.codec_model.decode(
            codes.T[None].clamp_max(SIZES["codec_config"]["codebook_size"] - 1)
        ).audio_values
    return codes.numpy().astype(np.int32), audio[0, 0].clamp(-1, 1).numpy()


def write(folder: Path, seed: int = 3) -> None:
    """Write checkpoint, cases.json and expected.npz."""
    from transformers import CsmConfig, CsmForConditionalGeneration, __version__

    torch.set_num_threads(1)
    tokens = tokenizer()
    model = CsmForConditionalGeneration(CsmConfig(**SIZES)).eval()
    randomise(model, seed)
    cases = {name: dict(case) for name, case in CASES.items()}
    ending(model, tokens, cases["ends"])
    checkpoint = folder / "checkpoint"
    checkpoint.mkdir(parents=True, exist_ok=True)
    config = {**model.config.to_dict(), "transformers_version": None}
    (checkpoint / "config.json").write_text(json.dumps(config, indent=1, sort_keys=True) + "\n")
    tokens.save(str(checkpoint / "tokenizer.json"))
    with tempfile.TemporaryDirectory() as saved:
        model.save_pretrained(saved)
        shutil.copy(Path(saved) / "model.safetensors", checkpoint)
    expected = {}
    for kind in ("float", "int8"):
        if kind == "int8":
            round_weights(model)
        for name, case in cases.items():
            expected[f"{kind}/{name}/frames"], expected[f"{kind}/{name}/samples"] = speak(
                model, tokens, case
            )
    expected["codes"] = (
        model.codec_model.encode(torch.from_numpy(recording())[None, None])
        .audio_codes[0, :3]
        .T.numpy()
    )
    np.savez_compressed(folder / "expected.npz", **expected)
    made = {"transformers": __version__, "torch": torch.__version__, "seed": seed, "cases": cases}
    (folder / "cases.json").write_text(json.dumps(made, indent=1) + "\n")


def ending(model: Any, tokens: Tokenizer, case: dict[str, Any]) -> None:
    """Choose the text of a case and the code that ends audio, so that the case ends before `max_frames`."""
    for text in (f"So it goes on {n}." for n in range(100)):
        case["text"], model.config.codebook_eos_token_id = (
            text,
            SIZES["vocab_size"] - 1,
        )  # which nothing ends with
        codes, _ = speak(model, tokens, case)
        for t, (first, *others, _) in enumerate(codes):
            if (
                t > 4
                and first < 16
                and {first} == set(others)
                and not (codes[:t, :-1] == first).all(-1).any()
            ):
                model.config.codebook_eos_token_id = int(first)
                return
    raise SystemExit("no text ends: try another seed")


def round_weights(model: torch.nn.Module) -> None:
    """Weights of the language models' blocks as int8 with one scale for each output holds them."""
    for name, p in model.state_dict().items():
        if name.startswith(STACKS) and p.ndim == 2:
            bits, scale = quantize(p, torch.int8)
            p.copy_(dequantize(bits, scale, p.dtype))


if __name__ == "__main__":
    write(Path(sys.argv[1]), *map(int, sys.argv[2:]))

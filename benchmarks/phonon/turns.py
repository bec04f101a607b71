"""stentor, transformers and Gradium's runtime `ptts` in turns on the same cores, with the same random weights.

    pip install --target DIR transformers==5.24.0 ptts==0.4.2
    PYTHONPATH=$PWD:DIR python benchmarks/phonon/turns.py --json FILE

A round measures each side once: ten seconds of audio from 24 tokens of text and a voice of ten seconds. stentor and the
runtime stream it. transformers returns it as a whole, so its first audio is its last. Of stentor also four texts, one
after another and at once. Weights are float32 of released sizes, as parameter counts on the Hub give them. Wall time
counts what other work takes from the machine, CPU time does not. Settings are for one thread on one core and two on two.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import tempfile
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from benchmarks.pocket.turns import FRAMES, in_turns, measured, speaking, work, write_tokenizer

TEXT = "Abcde fghij klmno pqrs."
TEXTS = [TEXT, "Zbcde fghij klmno pqrt.", "Ebcde fghij klmno pqro.", "Obcde fghij klmno pqru."]
"""24 tokens: the runtime then makes 125 frames where speech does not end."""
NEVER = 1e9
VOICE_FRAMES = 125
SIDES = ("transformers", "ptts", "ptts q8_0", "stentor")
HIDDEN = 512


def make_checkpoint(folder: Path, layers: int) -> None:
    """Random weights in float32 in the released layout, and as transformers saves both models."""
    import transformers as hf
    from safetensors.torch import load_file, save_file

    from tests.fixtures.phonon.make_tiny_phonon import randomise, runtime_codec

    codec = hf.PocketTTSAudioTokenizerModel(hf.PocketTTSAudioTokenizerConfig(encoder_config=None))
    model = hf.GradiumPhononTTSForConditionalGeneration(
        hf.GradiumPhononTTSConfig(
            hidden_size=HIDDEN,
            num_attention_heads=8,
            intermediate_size=4 * HIDDEN,
            num_hidden_layers=layers,
            flow_head_config={"condition_dim": HIDDEN},
        )
    )
    randomise(model, 1, 1.0)
    randomise(codec, 2, 1.0)
    model.save_pretrained(folder / "model")
    codec.save_pretrained(folder / "codec")
    tensors = load_file(folder / "model" / "model.safetensors")
    tensors = {name: t for name, t in tensors.items() if name.startswith("flow_lm.")}
    tensors.update(runtime_codec(codec, heads=8))
    save_file({name: t.contiguous() for name, t in tensors.items()}, folder / "model.safetensors")
    config = json.loads((folder / "model" / "config.json").read_text())
    config.update(runtime_config(layers))
    (folder / "config.json").write_text(json.dumps(config))
    latents = torch.randn(512, VOICE_FRAMES, generator=torch.Generator().manual_seed(3))
    save_file({"speaker_wavs": latents}, folder / "default-voice.safetensors")
    special = ("<unk>", "<s>", "</s>", "<pad>", "<bos>", "<prompt>", "<latent>")
    write_tokenizer(folder, dict.fromkeys(special, -99.0))


def runtime_config(layers: int) -> dict[str, Any]:
    """Sections of config.json that the runtime reads."""
    codec = {
        "channels": 1,
        "sample_rate": 24000,
        "frame_rate": 12.5,
        "dimension": 512,
        "quantizer_dimension": 32,
        "quantizer_output_dimension": 512,
        "n_filters": 64,
        "n_residual_layers": 1,
        "ratios": [6, 5, 4],
        "kernel_size": 7,
        "last_kernel_size": 3,
        "residual_kernel_size": 3,
        "dilation_base": 2,
        "compress": 2,
        "transformer_d_model": 512,
        "transformer_num_heads": 8,
        "transformer_num_layers": 2,
        "transformer_layer_scale": 0.01,
        "transformer_context": 250,
        "transformer_max_period": 10000.0,
        "transformer_dim_feedforward": 2048,
        "downsample_channel_wise": False,
    }
    return {
        "flow_lm": {
            "d_model": HIDDEN,
            "num_heads": 8,
            "num_layers": layers,
            "dim_feedforward": 4 * HIDDEN,
            "max_period": 10000.0,
            "n_bins": 4000,
            "lut_dim": HIDDEN,
            "flow_dim": 512,
            "flow_depth": 6,
            "ldim": 32,
            "time_rms_norm": "rms",
        },
        "mimi": codec,
        "temp": 0.3,
        "lsd_decode_steps": 1,
        "eos_threshold": -4.0,
        "fuser": {
            "sum": ["num_speakers", "duration_delta"],
            "streaming_sum": [],
            "prepend": [],
            "cross": [],
        },
        "conditioners": [
            {
                "name": "num_speakers",
                "type": "lut",
                "lut": {
                    "n_bins": 31,
                    "dim": 16,
                    "possible_values": [str(i) for i in range(31)],
                    "tokenizer": "noop",
                },
            },
            {
                "name": "duration_delta",
                "type": "continuous",
                "continuous": {"dim": 128, "scale_factor": 1000.0, "max_period": 10000.0},
            },
        ],
    }


def transformers_side(folder: Path, threads: int) -> Callable[[], dict[str, Any]]:
    import transformers as hf
    from safetensors.torch import load_file
    from tokenizers import Tokenizer

    torch.set_num_threads(threads)
    model = hf.GradiumPhononTTSForConditionalGeneration.from_pretrained(folder / "model").eval()
    codec = hf.PocketTTSAudioTokenizerModel.from_pretrained(folder / "codec").eval()
    latents = load_file(folder / "default-voice.safetensors")["speaker_wavs"].T[None]
    ids = Tokenizer.from_file(str(folder / "tokenizer.json")).encode(TEXT).ids
    prompt = torch.tensor([[5] * VOICE_FRAMES + ids + [4]])

    @torch.inference_mode()
    def speak() -> int:
        out = model.generate(
            input_ids=prompt,
            attention_mask=torch.ones_like(prompt),
            audio_prompt_latents=latents,
            frames_after_eos=2,
            eos_threshold=NEVER,
            max_new_tokens=FRAMES,
            do_sample=True,
            temperature=0.3,
            return_dict_in_generate=True,
        )
        return int(codec.decode(out.audio_latents).audio_values.shape[-1])

    return lambda: measured(speak() for _ in range(1))


def runtime_side(folder: Path, threads: int, quant: str | None) -> Callable[[], dict[str, Any]]:
    import ptts

    ptts.set_num_threads(threads)
    tts = ptts.TTS(str(folder), lang="none", device="cpu", eos_threshold=NEVER, quant=quant)

    def run() -> dict[str, Any]:
        with tts.stream(TEXT) as chunks:
            return measured(len(chunk) for chunk in chunks)

    return run


def stentor_side(folder: Path, threads: int) -> Callable[[], dict[str, Any]]:
    from stentor import TTS

    tts = TTS(folder, device="cpu", threads=threads, max_num_seqs=4)
    options = {"ignore_eos": True, "max_frames": FRAMES, "seed": 1}

    return speaking(tts, TEXTS, options)


def side_of(side: str, folder: Path, threads: int) -> Callable[[], dict[str, Any]]:
    """A call that measures a side once."""
    if side == "stentor":
        return stentor_side(folder, threads)
    if side == "transformers":
        return transformers_side(folder, threads)
    return runtime_side(folder, threads, side.removeprefix("ptts").strip() or None)


def compare(layers: int, rounds: int, threads: list[int]) -> dict[str, Any]:
    """All rounds with each number of threads, on as many cores."""
    results: dict[str, Any] = {
        "layers": layers,
        "transformers": version("transformers"),
        "ptts": version("ptts"),
        "torch": torch.__version__,
        "cpu": platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "settings": [],
    }
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make_checkpoint(folder, layers)
        for count in threads:
            results["settings"].append(in_turns(SIDES, folder, rounds, count, __file__))
    return results


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--layers", type=int, default=6, help="6: 31M. 9: 40M")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--json", type=Path)
    parser.add_argument("--side", choices=SIDES, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.side is not None:
        work(side_of(args.side, args.folder, args.threads[0]))
        return
    results = compare(args.layers, args.rounds, args.threads)
    if args.json is not None:
        args.json.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()

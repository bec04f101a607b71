"""Measure encoders of reference audio alone, at their released sizes: time, launches, precision. A table comes last.

Run: python benchmarks/engine/encoders.py [--out FILE] [--seconds 28] [FAMILY ...]
     python benchmarks/engine/encoders.py --device cpu --seconds 0.3 --tiny         a dry run without a GPU
Needs: a GPU and nothing but stentor.

Variants: float32, float32 with TF32 (`tf32`), float16 with fused kernels, float16 without (`plain`). Every variant
encodes 8 s, then noise of the length that is measured for the first time (`first`), then again (`ms`, the median).
`launches` are kernels and copies of one encoding, `kernels` the slowest of them in ms. `error` is that of what is
quantised (or, VoxCPM2, of the latents) against float32, and `equal` the share of equal codes by codebook. `captured`
is the same from graphs, as an engine serves it: its time, whether it has the same bits, and what of it ran eagerly, for
each of the windows that --windows names by their columns. Weights are random and speech is noise in bands: real weights
were not at hand. Then milliseconds of the host, of the recording.
"""

from __future__ import annotations

import argparse
import copy
import json
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # this tree, also where none is installed
from benchmarks.timing import machine_speed
from stentor import Reference
from stentor.audio import Recording, load
from stentor.engine.device import BACKGROUND, Device
from stentor.engine.encoder_graphs import EncoderGraphs
from stentor.kernels import Kernel, switches
from stentor.layers import windows
from stentor.layers.conv import cast_codec
from stentor.layers.types import Eager, Launch, eager

FAMILIES = ("fish-s2", "qwen3-tts", "qwen3-tts speaker", "voxcpm2")
VARIANTS = {
    "float32": (torch.float32, False, True),
    "tf32": (torch.float32, True, True),
    "float16": (torch.float16, False, True),
    "float16 plain": (torch.float16, False, False),
}
"""Precision, TF32 in products and convolutions, fused kernels."""
REPEATS, WARM, TOP = 7, 8.0, 8


@dataclass
class Made:
    """An encoder: `latents` of samples [n], their codes, samples per second. `encode` is both, in one call."""

    latents: Callable[[Tensor], Tensor]
    codes: Callable[[Tensor], Tensor] | None
    encode: Callable[[Tensor, Launch], Tensor]
    rate: int


def calm(module: nn.Module) -> None:
    """Smaller random convolutions: a net that amplifies is chaotic, and any rounding becomes other codes."""
    for name, p in module.named_parameters():
        if p.ndim == 3 and not name.endswith("alpha"):
            p.data *= 0.4


def fish(device: torch.device, dtype: torch.dtype, tiny: bool) -> Made:
    from stentor.models.dummy import initialize_dummy_weights
    from stentor.models.fish_s2 import config
    from stentor.models.fish_s2.codec_config import stack_config
    from stentor.models.fish_s2.dummy import RELEASED, RELEASED_CODEC
    from stentor.models.fish_s2.loader import make_codec

    small = {"encoder_dim": 4, "encoder_stack": stack_config(64, 48, 1)}
    sizes = replace(RELEASED_CODEC, **small) if tiny else RELEASED_CODEC
    drawn, codec = (make_codec(sizes, config.parse(RELEASED), d, d) for d in (torch.float32, dtype))
    initialize_dummy_weights(drawn, device, 0)  # which draws other numbers in 16 bits
    calm(drawn.encoder)
    own = {name: p.dtype for name, p in codec.named_parameters()}
    codec.load_state_dict({n: p.to(own[n]) for n, p in drawn.state_dict().items()}, assign=True)
    codec.to(device).requires_grad_(False)
    codec.process_weights_after_loading()
    return Made(codec.latents, lambda x: codec.quantizer.encode(x)[0], codec.encode, 44100)


def qwen(device: torch.device, dtype: torch.dtype, tiny: bool) -> Made:
    from stentor.models.dummy import initialize_dummy_weights
    from stentor.models.qwen3_tts.codec_encoder import Encoder
    from stentor.models.qwen3_tts.dummy import CONSTANTS, codec_config
    from stentor.models.qwen3_tts.loader import build

    c = codec_config().encoder
    encoder = build(lambda: Encoder(replace(c, filters=4) if tiny else c), torch.float32)
    initialize_dummy_weights(encoder, device, 0, constants=CONSTANTS)
    calm(encoder)
    encoder.process_weights_after_loading(60 * 24000, dtype)
    return Made(encoder.latents, encoder.quantizer, encoder.__call__, 24000)


def speaker(device: torch.device, dtype: torch.dtype, tiny: bool) -> Made:
    """It has one precision. `float16` says nothing."""
    from stentor.models.dummy import initialize_dummy_weights
    from stentor.models.qwen3_tts.dummy import config
    from stentor.models.qwen3_tts.loader import build
    from stentor.models.qwen3_tts.speaker_encoder import LogMel, SpeakerEncoder

    c = config("qwen3-tts-1.7b-base").speaker
    assert c is not None
    encoder = build(lambda: SpeakerEncoder(c), torch.float32)
    initialize_dummy_weights(encoder, device, 0)
    mel = LogMel(c.sample_rate, c.mels).to(device)
    return Made(lambda wav: encoder(mel(wav)), None, lambda wav, _: encoder(mel(wav)), 24000)


def voxcpm2(device: torch.device, dtype: torch.dtype, tiny: bool) -> Made:
    from stentor.models.dummy import random_init
    from stentor.models.voxcpm2.codec import AudioVAE
    from stentor.models.voxcpm2.config import parse
    from stentor.models.voxcpm2.dummy import RELEASED

    c = parse(RELEASED).vae
    with torch.device(device):
        vae = AudioVAE(replace(c, encoder_dim=4) if tiny else c)
    random_init(vae, 0)
    vae.requires_grad_(False)
    calm(vae)
    cast_codec(vae.encoder, dtype)
    hop = vae.config.hop

    def encode(wav: Tensor, launch: Launch = eager) -> Tensor:
        return vae.encode_latents(wav[None, : len(wav) // hop * hop], launch)

    return Made(encode, None, encode, 16000)


MAKERS = {"fish-s2": fish, "qwen3-tts": qwen, "qwen3-tts speaker": speaker, "voxcpm2": voxcpm2}


def voice(seconds: float, rate: int, seed: int) -> np.ndarray:
    """Noise in bands that come and go, [n] float32."""
    rng = np.random.default_rng(seed)
    n = int(seconds * rate)
    t = np.arange(n) / rate
    tones = [np.sin(2 * np.pi * f * t + 3 * np.sin(2 * np.pi * 5 * t)) for f in rng.uniform(80, 4000, 12)]
    loud = 0.5 + 0.5 * np.sin(2 * np.pi * rng.uniform(0.5, 4, 12)[:, None] * t)
    wave: np.ndarray = (np.stack(tones) * loud).sum(0) * 0.03 + rng.standard_normal(n) * 0.01
    return wave.astype(np.float32)


def timed(device: torch.device, run: Callable[[], object]) -> float:
    """Milliseconds until the device is done."""
    if device.type == "cuda":
        torch.cuda.synchronize()
    started = time.perf_counter()
    run()
    if device.type == "cuda":
        torch.cuda.synchronize()
    return (time.perf_counter() - started) * 1e3


def launches(device: torch.device, run: Callable[[], object]) -> dict[str, Any]:
    """Kernels and copies of one call: how many, ms together, and the slowest."""
    if device.type != "cuda":
        return {}
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as found:
        run()
        torch.cuda.synchronize()
    events = [e for e in found.key_averages() if e.self_device_time_total > 0]
    slowest = sorted(events, key=lambda e: -e.self_device_time_total)[:TOP]
    return {
        "launches": sum(e.count for e in events),
        "device_ms": round(sum(e.self_device_time_total for e in events) / 1e3, 3),
        "kernels": {f"{e.count} x {e.key[:90]}": round(e.self_device_time_total / 1e3, 3) for e in slowest},
    }


def captured(made: Made, samples: Tensor, args: argparse.Namespace) -> dict[str, Any]:
    """By the columns of its windows: milliseconds from graphs, and whether the bits are those of the eager call."""
    found = {}
    for sizes in args.windows:
        windows.COLUMNS = tuple(int(x) for x in sizes.split(","))
        found[sizes] = from_graphs(made, samples, Device(args.device))
    return found


def from_graphs(made: Made, samples: Tensor, device: Device) -> dict[str, Any]:
    stream = device.stream(BACKGROUND)
    launch = EncoderGraphs(device, stream, required=True, columns=windows.COLUMNS[0])
    plain = Eager(launch.columns)
    want = made.encode(samples, plain).clone()

    def times(how: Launch) -> float:
        return round(statistics.median(timed(device.torch, lambda: made.encode(samples, how)) for _ in range(5)), 2)

    device.synchronize()
    with stream.active():
        with launch.capturing():
            capturing = timed(device.torch, lambda: made.encode(samples, launch))
        ms = times(launch)
        got = made.encode(samples, launch)
        device.synchronize()
        return {
            "ms": ms,
            "eager ms": times(plain),
            "equal": torch.equal(got, want),
            "graphs": len(launch.graphs.graphs),
            "eager calls": launch.graphs.eager_calls,
            "capturing ms": round(capturing, 1),
            **launches(device.torch, lambda: made.encode(samples, launch)),
        }


def variant(name: str, label: str, args: argparse.Namespace, want: Any) -> tuple[dict[str, Any], Any]:
    """The figures of one variant, and what it encoded."""
    device = torch.device(args.device)
    dtype, tf32, fused = VARIANTS[label]
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = tf32
    switches.OFF = frozenset() if fused else frozenset({Kernel.CONV1D})
    made = MAKERS[name](device, dtype, args.tiny)
    source = [torch.from_numpy(voice(s, made.rate, i)).to(device) for i, s in enumerate((WARM, args.seconds))]

    def encode(wav: Tensor) -> tuple[Tensor, Tensor | None]:
        latents = made.latents(wav)
        return latents, None if made.codes is None else made.codes(latents)

    for _ in range(2):
        encode(source[0])
    first = timed(device, lambda: encode(source[1]))
    times = [timed(device, lambda: encode(source[1])) for _ in range(REPEATS)]
    front = statistics.median(timed(device, lambda: made.latents(source[1])) for _ in range(REPEATS))
    latents, codes = encode(source[1])
    got = {"first": round(first, 2), "ms": round(statistics.median(times), 2), "ms before codes": round(front, 2)}
    got |= launches(device, lambda: encode(source[1]))
    if args.tiny or (device.type == "cuda" and label == "float16"):
        got["captured"] = captured(made, source[1], args)
    if want is not None:
        got["error"] = float((latents.double() - want[0].double()).norm() / want[0].double().norm())
        if codes is not None:
            got["equal"] = [round(x, 4) for x in (codes == want[1]).float().mean(0).tolist()]
    return got, (latents, codes)


def host(rate: int, seconds: float) -> dict[str, float]:
    """Milliseconds of the host for a recording."""
    samples = voice(seconds, rate, 5)
    runs = []
    for _ in range(5):
        at = [time.perf_counter()]
        made = load(Reference((samples, rate)), "reference", (0.1, 60.0))
        at.append(time.perf_counter())
        Recording(made.samples, rate).digest  # noqa: B018
        at.append(time.perf_counter())
        runs.append([1e3 * (b - a) for a, b in pairwise(at)])
    check, digest = (round(statistics.median(r), 2) for r in zip(*runs, strict=True))
    return {"read and check": check, "digest": digest}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("families", nargs="*", default=list(FAMILIES))
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--seconds", type=float, default=28.0)
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--variants", nargs="+", default=list(VARIANTS))
    parser.add_argument("--windows", nargs="+", default=[",".join(map(str, windows.COLUMNS))])
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    result: dict[str, Any] = {"machine": machine_speed(torch.device(args.device)), "seconds": args.seconds}
    with torch.inference_mode():
        for name in args.families:
            want, found = None, {}
            for label in args.variants if name != "qwen3-tts speaker" else ("float32",):
                found[label], made = variant(name, label, args, want)
                want = want or copy.copy(made)
            result[name] = found
            if args.out:
                args.out.write_text(json.dumps(result, indent=1))
    result["host"] = {rate: host(rate, args.seconds) for rate in (16000, 24000, 44100)}
    if args.out:
        args.out.write_text(json.dumps(result, indent=1))
    for name in args.families:
        for label, found in result[name].items():
            for sizes, graphs in found.pop("captured", {}).items():
                print(name, label, "windows", sizes, json.dumps({k: v for k, v in graphs.items() if k != "kernels"}))
            print(name, label, json.dumps({k: v for k, v in found.items() if k != "kernels"}))
            for kernel, ms in found.get("kernels", {}).items():
                print("   ", ms, kernel)
    print("host", json.dumps(result["host"]))


if __name__ == "__main__":
    main()

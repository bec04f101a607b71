"""Measure codec decoders alone, captured as the engine captures them: time, error, memory. A short table comes last.

Run: python benchmarks/engine/codec.py [--out DIR] [CODEC ...]       every codec in a process of its own
     python benchmarks/engine/codec.py --brief --out DIR             float16 and float32 only: about 40 s
     python benchmarks/engine/codec.py --one CODEC --out DIR         one codec, here
     python benchmarks/engine/codec.py --device cpu --tiny           a dry run

Codecs have the released sizes and random weights, except `voice`: the autoencoder of the embedded voice on
its own held-out latents. Variants: float32, bfloat16 and float16 with the fused kernels and without (`plain`), and,
if asked for, what cuDNN does when it may try its algorithms (`tuned`). Errors are those of 40 frames decoded in chunks,
against float32 without TF32. The processes prepare side by side and measure one after the other; `machine` says what
a large copy and a large product reach then: below 4 TB/s or 700 TFLOP/s, somebody shares the GPU.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import math
import statistics
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from benchmarks.timing import machine_speed  # noqa: E402
from stentor.engine.codec_state import CodecStateTable  # noqa: E402
from stentor.engine.cuda_graphs import CudaGraphRunner  # noqa: E402
from stentor.engine.device import Device  # noqa: E402
from stentor.kernels import Kernel, switches  # noqa: E402
from stentor.layers.conv import cast_codec  # noqa: E402
from stentor.layers.types import State  # noqa: E402
from stentor.models.base import Codec  # noqa: E402

ROWS, FRAMES = (1, 4, 16, 64), (1, 2, 4, 8, 16, 25)
FEW = (1, 8, 25)  # frames of the slow variants, and what the table shows
CPU_ROWS, CPU_FRAMES = (1, 2), (1, 2)
CHUNKS = (1, 2, 4, 8, 25)  # of the comparison
VARIANTS = {
    "float16": (torch.float16, True, False, FRAMES),
    "float32": (torch.float32, False, False, (1, 25)),
    "float16 plain": (torch.float16, False, False, FEW),
    "bfloat16": (torch.bfloat16, True, False, (8,)),
    "float16 tuned": (torch.float16, False, True, (8,)),
}
"""Precision, fused kernels, cuDNN tries its algorithms, frames per call that are timed."""
USUAL = ("float16", "float32", "float16 plain", "bfloat16")
BRIEF = ("float16", "float32")
CODECS = ("voxcpm2", "qwen3-tts", "fish-s2", "voice")
Made = tuple[Codec, nn.Module, Callable[[int, int], Tensor], float]
"""The codec, its modules, frames [rows, count, ...] to decode, seconds of audio per frame."""


def calm(module: nn.Module) -> None:
    """Smaller random convolutions: a net that amplifies is chaotic, and any rounding becomes another waveform."""
    for name, p in module.named_parameters():
        if p.ndim == 3 and not name.endswith("alpha"):
            p.data *= 0.4


def voxcpm2(device: torch.device, dtype: torch.dtype, tiny: bool) -> Made:
    from stentor.models.dummy import random_init
    from stentor.models.voxcpm2.codec import AudioVAE, PatchCodec
    from stentor.models.voxcpm2.config import parse
    from stentor.models.voxcpm2.dummy import RELEASED

    c = parse(RELEASED)
    sizes = replace(c.vae, decoder_dim=64, encoder_dim=4) if tiny else c.vae
    with device:
        vae = AudioVAE(sizes)
        random_init(vae, 0)
    vae.requires_grad_(False)
    cast_codec(vae.decoder, dtype)
    seconds = c.patch * sizes.upsampling / sizes.out_sample_rate
    return PatchCodec(vae), vae.decoder, lambda b, n: torch.randn(b, n, c.patch, c.feat, device=device), seconds


def qwen3_tts(device: torch.device, dtype: torch.dtype, tiny: bool) -> Made:
    from stentor.models.dummy import initialize_dummy_weights
    from stentor.models.qwen3_tts.codec_decoder import Codec as Qwen
    from stentor.models.qwen3_tts.codec_decoder import Decoder
    from stentor.models.qwen3_tts.dummy import CONSTANTS, codec_config
    from stentor.models.qwen3_tts.loader import build

    c = codec_config().decoder
    c = replace(c, width=64, latent=32, codebook_dim=32) if tiny else c
    decoder = build(lambda: Decoder(c), torch.float32)
    initialize_dummy_weights(decoder, device, 0, constants=CONSTANTS)
    calm(decoder)
    decoder.process_weights_after_loading(dtype)
    size = (c.codebook_size, c.codebooks)
    return Qwen(decoder), decoder, lambda b, n: torch.randint(size[0], (b, n, size[1]), device=device), 0.08


def fish_s2(device: torch.device, dtype: torch.dtype, tiny: bool) -> Made:
    from stentor.models.dummy import initialize_dummy_weights
    from stentor.models.fish_s2 import config
    from stentor.models.fish_s2.dummy import RELEASED, RELEASED_CODEC
    from stentor.models.fish_s2.loader import make_codec

    sizes = replace(RELEASED_CODEC, decoder_dim=64, encoder_dim=4) if tiny else RELEASED_CODEC
    drawn, codec = (make_codec(sizes, config.parse(RELEASED), d, torch.float32) for d in (torch.float32, dtype))
    initialize_dummy_weights(drawn, device, 0)  # which draws other numbers in 16 bits
    calm(drawn)
    own = {name: p.dtype for name, p in codec.named_parameters()}
    codec.load_state_dict({n: p.to(own[n]) for n, p in drawn.state_dict().items()}, assign=True)
    codec.to(device).requires_grad_(False)
    codec.process_weights_after_loading()
    books = sizes.residual_books + 1
    parts = nn.ModuleList([codec.quantizer.post_module, codec.quantizer.upsample, codec.decoder])
    return codec, parts, lambda b, n: torch.randint(1024, (b, n, books), device=device), sizes.hop / 44100


def voice(device: torch.device, dtype: torch.dtype, tiny: bool) -> Made:
    from stentor.models.voxcpm2.codec import PatchCodec
    from stentor.models.voxcpm2.loader import UNUSED_VAE
    from stentor.models.weights import fold_weight_norm, load_weights, read_safetensors
    from training.common import load_config
    from training.modules import build_vae

    config, folder = load_config()["model"], ROOT / "stentor" / "assets" / "voice"
    vae = build_vae(config)
    weights = fold_weight_norm(read_safetensors(folder / "audiovae.safetensors"))
    load_weights(vae, weights, "the trained autoencoder", device, ignore=UNUSED_VAE)
    vae.to(device).requires_grad_(False)
    cast_codec(vae.decoder, dtype)
    flat = torch.randn(4096, config["feat_dim"], device=device)  # the deviation that its latents have
    patch = config["patch_size"]

    def frames(rows: int, count: int) -> Tensor:
        starts = torch.arange(rows, device=device)[:, None] * 97 + torch.arange(count * patch, device=device)
        return flat[starts % len(flat)].view(rows, count, patch, -1)

    seconds = patch * vae.config.upsampling / vae.config.out_sample_rate
    return PatchCodec(vae), vae.decoder, frames, seconds


MAKERS = {"voxcpm2": voxcpm2, "qwen3-tts": qwen3_tts, "fish-s2": fish_s2, "voice": voice}


@contextmanager
def fused(wanted: bool) -> Iterator[None]:
    """The codec's kernels on or off, while modules are made and run."""
    before = switches.OFF
    switches.OFF = before - {Kernel.CONV1D} if wanted else before | {Kernel.CONV1D}
    try:
        yield
    finally:
        switches.OFF = before


class Captured:
    """One codec with the engine's buffers around it: slots' state, gathered and scattered by row."""

    def __init__(self, made: Made, device: Device, slots: int) -> None:
        self.codec, _, frames, self.seconds = made
        where = device.torch
        self.state = CodecStateTable(self.codec.columns, slots + 1, where)
        self.idx, self.frames = torch.arange(slots, device=where), frames(slots, max(FRAMES) if device.cuda else 2)
        self.out: dict[tuple[int, ...], Tensor] = {}
        self.device, self.stream = device, device.stream()
        self.graphs = CudaGraphRunner("codec", self._decode, device, self.stream, True)

    def _decode(self, rows: int, count: int) -> None:
        idx = self.idx[:rows]
        samples, new = self.codec.decode(self.frames[:rows, :count], self.state.gather(idx))
        self.state.store(idx, new)
        self.out[rows, count] = samples

    def capture(self, keys: list[tuple[int, int]]) -> None:
        self.device.synchronize()  # the buffers were filled on another stream
        with self.stream.active():
            self.graphs.plan(sorted(keys, key=math.prod, reverse=True))
            self.graphs.capture()

    def times(self, keys: list[tuple[int, int]]) -> dict[str, float]:
        """Median milliseconds per call."""
        out = {}
        with self.stream.active():
            for key in keys:
                out[f"{key[0]}x{key[1]}"] = round(statistics.median(self.once(key) for _ in range(4)), 3)
        return out

    def once(self, key: tuple[int, int]) -> float:
        repeats = 1 if math.prod(key) > 100 else 4
        if not self.device.cuda:
            started = time.perf_counter()
            self.graphs(*key)
            return (time.perf_counter() - started) * 1e3
        a, b = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        a.record()
        for _ in range(repeats):
            self.graphs(*key)
        b.record()
        b.synchronize()
        return a.elapsed_time(b) / repeats

    def profile(self, key: tuple[int, int]) -> dict[str, Any]:
        if not self.device.cuda:
            return {}
        with self.stream.active(), torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as p:
            self.graphs(*key)
            self.device.synchronize()
        rows = [(e.key[:70], e.count, round(e.self_device_time_total, 1)) for e in p.key_averages()]
        rows = sorted((r for r in rows if r[2] > 0), key=lambda r: -r[2])
        return {"kernels": sum(r[1] for r in rows), "us": round(sum(r[2] for r in rows)), "top": rows[:12]}


def in_chunks(made: Made, frames: Tensor) -> Tensor:
    """frames [B, n, ...] decoded as a stream -> samples [B, n * hop]."""
    codec = made[0]
    state: State = {
        n: torch.full((len(frames), *c.shape), c.fill, dtype=c.dtype, device=frames.device)
        for n, c in codec.columns.items()
    }
    parts = []
    for part in frames.split(CHUNKS, dim=1):
        samples, state = codec.decode(part, state)
        parts.append(samples)
    return torch.cat(parts, 1).double()


def largest(made: Made, frames: Tensor) -> float:
    """The largest value that any module of the decoder makes."""
    found = [frames.new_zeros((), dtype=torch.float32)]

    def watch(module: nn.Module, given: object, made: object) -> None:
        if isinstance(made, Tensor):
            found.append(made.detach().abs().max().float())

    hooks = [m.register_forward_hook(watch) for m in made[1].modules()]
    in_chunks(made, frames)
    for hook in hooks:
        hook.remove()
    return round(float(torch.stack(found).max()), 2)


def together(out: Path, name: str, count: int) -> None:
    """Wait until `count` processes have prepared, so that nobody's preparation disturbs a measurement."""
    (out / f".ready-{name}").touch()
    end = time.monotonic() + 40
    while len(list(out.glob(".ready-*"))) < count and time.monotonic() < end:
        time.sleep(0.05)


@contextmanager
def alone(out: Path) -> Iterator[None]:
    """While no other process of this benchmark measures."""
    with (out / ".measuring").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


class Variant:
    """One codec in one precision: prepared, with what must be compiled, then measured."""

    def __init__(self, name: str, label: str, device: Device, tiny: bool, reference: dict[str, Tensor]) -> None:
        self.name, self.label, self.device, self.found = name, label, device, dict[str, Any]()
        dtype, self.kernel, self.tuned, frames = VARIANTS[label]
        rows, counts = (ROWS, frames) if device.cuda else (CPU_ROWS, CPU_FRAMES)
        self.keys = [(b, n) for b in rows for n in counts]
        started = time.perf_counter()
        with torch.inference_mode(), fused(self.kernel):
            self.made = MAKERS[name](device.torch, dtype, tiny)
            self._compare(reference)
            self.captured = Captured(self.made, device, max(rows))
            if self.kernel:
                self._capture()
        self.found["seconds to prepare"] = round(time.perf_counter() - started, 1)

    def _compare(self, reference: dict[str, Tensor]) -> None:
        error, want = in_chunks(self.made, reference["frames"]) - reference["samples"], reference["samples"]
        self.found["snr_db"] = round(float(20 * (want.norm() / error.norm()).log10()), 1)
        self.found["worst_of_peak"] = float(error.abs().max() / want.abs().max())

    def _capture(self) -> None:
        self.found["frame_mib"] = round(made_bytes(self.made, self.device) / 2**20, 2)
        held = self.device.allocated_bytes()
        torch.backends.cudnn.benchmark = self.tuned
        self.captured.capture(self.keys)
        self.found["gib"] = round((self.device.allocated_bytes() - held) / 2**30, 2)

    def measure(self) -> dict[str, Any]:
        found, started = self.found, time.perf_counter()
        with torch.inference_mode(), fused(self.kernel):
            if not self.kernel:
                self._capture()
            found["machine"] = machine_speed(self.device.torch)
            found["ms"] = self.captured.times(self.keys)
            found["profile"] = self.captured.profile((16, 8))
        found["audio_s_per_s"] = {f"{b}x{n}": round(b * n * self.made[3] / found["ms"][f"{b}x{n}"] * 1e3)
                                  for b, n in self.keys}  # fmt: skip
        found["seconds"] = round(time.perf_counter() - started, 1)
        print(f"{self.name} {self.label}: {found['ms']}, {found['seconds']} s", flush=True)
        return found


def made_bytes(made: Made, device: Device) -> float:
    """Memory that a call of one row takes at most, by frame."""
    state = CodecStateTable(made[0].columns, 1, device.torch).columns
    frames = made[2](1, max(FRAMES))
    return device.peak_bytes(lambda: made[0].decode(frames, state)) / max(FRAMES)


def compare(name: str, device: Device, tiny: bool) -> dict[str, Tensor]:
    """What every variant must come near: frames and their samples in true float32, and the largest value on the way."""
    flags = torch.backends.cudnn.flags(enabled=True, allow_tf32=False) if device.cuda else nullcontext()
    with torch.inference_mode(), fused(False), flags:
        torch.manual_seed(1)
        made = MAKERS[name](device.torch, torch.float32, tiny)
        frames = made[2](2, sum(CHUNKS))
        return {"frames": frames, "samples": in_chunks(made, frames), "largest": torch.tensor(largest(made, frames))}


def one(name: str, out: Path, device: Device, tiny: bool, variants: list[str], among: int) -> None:
    found: dict[str, Any] = {"codec": name, "device": device.describe(), "variants": {}, "errors": {}}
    file = out / f"codec_{name.replace('-', '_')}.json"
    prepared: dict[str, Variant] = {}

    def attempt(label: str, work: Callable[[], None]) -> None:
        try:
            work()
        except Exception:
            found["errors"][label] = traceback.format_exc()
            print(found["errors"][label][-2500:], flush=True)

    def prepare(label: str) -> None:
        prepared[label] = Variant(name, label, device, tiny, reference)

    def measure(label: str) -> None:
        found["variants"][label] = prepared.pop(label).measure()

    try:
        reference = compare(name, device, tiny)
        found["largest_value"] = float(reference["largest"])
        for label in variants:
            attempt(label, lambda label=label: prepare(label))
    finally:
        together(out, name, among)
    with alone(out):
        for label in list(prepared):
            attempt(label, lambda label=label: measure(label))
            file.write_text(json.dumps(found, indent=1))


def table(out: Path) -> str:
    keys = [f"{b}x{n}" for b in (1, 16, 64) for n in FEW]
    head = ["codec variant", *keys, "a-s/s", "SNR dB", "worst", "GiB", "kernels"]
    lines = ["  ".join(f"{h:>22}" if i == 0 else f"{h:>8}" for i, h in enumerate(head))]
    for file in sorted(out.glob("codec_*.json")):
        found = json.loads(file.read_text())
        for label, v in found["variants"].items():
            worst = v.get("worst_of_peak")
            cells = [v["ms"].get(k, "-") for k in keys]
            cells += [
                max(v["audio_s_per_s"].values()),
                v.get("snr_db", "-"),
                f"{worst:.1e}" if worst is not None else "-",
            ]
            cells += [v.get("gib", "-"), v["profile"].get("kernels", "-")]
            lines.append("  ".join([f"{found['codec'] + ' ' + label:>22}", *(f"{c:>8}" for c in cells)]))
            lines.append(
                f"{'machine':>22}  {v.get('machine', {})}, {v.get('frame_mib', '-')} MiB a frame, {v['seconds']} s"
            )
        top = found["variants"].get("float16", {}).get("profile", {}).get("top", [])
        lines += [f"    {us:>8} us {count:>4} x {key}" for key, count, us in top[:6]]
        lines.append(f"    largest value {found['largest_value']}; errors: {', '.join(found['errors']) or 'none'}")
    return "\n".join(lines)


def drive(a: argparse.Namespace) -> None:
    """Every codec in a process of its own, so that a crash costs only itself."""
    end = time.monotonic() + a.seconds
    running = {}
    for stale in a.out.glob(".ready-*"):
        stale.unlink()
    for name in a.codecs:
        command = [sys.executable, __file__, "--one", name, "--out", str(a.out), "--device", a.device]
        command += ["--among", str(len(a.codecs)), "--variants", *a.variants, *(["--tiny"] if a.tiny else [])]
        running[name] = subprocess.Popen(command, cwd=ROOT)
    for name, process in running.items():
        try:
            process.wait(max(1.0, end - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            print(f"-- {name}: out of time", flush=True)
    print(table(a.out), flush=True)


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("codecs", nargs="*", default=list(CODECS))
    p.add_argument("--one", choices=CODECS)
    p.add_argument("--out", type=Path, default=Path("."))
    p.add_argument("--device", default="cuda")
    p.add_argument("--tiny", action="store_true")
    p.add_argument("--variants", nargs="*", choices=VARIANTS)
    p.add_argument("--among", type=int, default=1)
    p.add_argument("--brief", action="store_true")
    p.add_argument("--seconds", type=float, default=110.0)
    a = p.parse_args()
    a.variants = a.variants or list(BRIEF if a.brief else USUAL)
    a.out.mkdir(parents=True, exist_ok=True)
    if a.one:
        one(a.one, a.out, Device(a.device), a.tiny, a.variants, a.among)
    else:
        drive(a)


if __name__ == "__main__":
    main()

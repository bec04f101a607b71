"""`deterministic` is refused where it would not hold, and reaches all that the engine captures and launches."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from stentor import TTS, InvalidRequest, kernels
from stentor.config import EngineConfig
from stentor.engine.running import model_runner
from stentor.engine.running.device import Device
from stentor.engine.running.side import TorchSide, check_deterministic
from stentor.engine.stream import AudioStream
from stentor.engine.voice import CodecPrimer
from stentor.kernels import Kernel, switches
from stentor.layers.types import Column
from stentor.models.base import KVSpec
from stentor.models.codec_timing import CAUSAL, CodecTiming, UtteranceTiming
from stentor.models.cosyvoice3.codec import CosyVoice3Codec
from tests.helpers.tiny import VOICE, checkpoint

CPU = Device("cpu")


@pytest.fixture
def with_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pretend to be a GPU with Triton."""
    for name in ("AVAILABLE", "INTERPRETED"):
        monkeypatch.setattr(switches, name, True)
    monkeypatch.setattr(switches, "OFF", frozenset({Kernel.GEMV, Kernel.PDL}))


def model(
    invariant: bool = True,
    codec: torch.dtype = torch.float16,
    dtype: torch.dtype = torch.bfloat16,
    timing: CodecTiming = CAUSAL,
):
    kv = KVSpec(1, 1, 8, dtype)
    spec = SimpleNamespace(family="a family", batch_invariant=invariant, kv=kv, codec_timing=timing)
    columns = {"history": Column((2,), codec), "clock": Column(dtype=torch.int64)}
    return SimpleNamespace(spec=spec, codec=SimpleNamespace(columns=columns))


def test_a_cpu_refuses_it_and_says_what_holds_there():
    with pytest.raises(InvalidRequest, match=r"deterministic: needs a CUDA GPU.* on a CPU"):
        TTS("dummy:toy", device="cpu", deterministic=True)


@pytest.mark.usefixtures("with_kernels")
def test_what_is_missing_is_named():
    check_deterministic(model(), CPU)
    row_by_row = UtteranceTiming()  # its calls have one row, in any dtype
    check_deterministic(model(codec=torch.float32, timing=row_by_row), CPU)
    for given, words in (
        (model(invariant=False), "is not available for a family"),
        (model(codec=torch.float32), "a codec in 16 bits, got float32"),
        (model(dtype=torch.float64), "a dtype of at most 32 bits"),
    ):
        with pytest.raises(InvalidRequest, match=words):
            check_deterministic(given, CPU)


@pytest.mark.usefixtures("with_kernels")
def test_a_kernel_that_is_off_leaves_sums_to_the_library(monkeypatch):
    monkeypatch.setattr(switches, "OFF", frozenset({Kernel.NORM}))
    with pytest.raises(InvalidRequest, match="all kernels on"):
        check_deterministic(model(), CPU)


@pytest.mark.parametrize("wanted", [False, True])
def test_captures_and_launches_of_an_engine_are_inside(wanted, monkeypatch):
    seen: dict[str, bool] = {}
    for owner, name in (
        (model_runner.ModelRunner, "capture"),
        (model_runner.ModelRunner, "_decode"),
        (CodecPrimer, "capture"),
    ):
        plain = getattr(owner, name)

        def spy(self, *args, plain=plain, key=f"{owner.__name__}.{name}"):
            seen[key] = kernels.is_batch_invariant()
            return plain(self, *args)

        monkeypatch.setattr(owner, name, spy)
    monkeypatch.setattr(
        "stentor.engine.running.side.check_deterministic", lambda model, device: None
    )
    with TTS(
        "dummy:toy", device="cpu", max_num_seqs=2, memory_gb=0.01, deterministic=wanted
    ) as tts:
        tts.generate("Hello.", seed=1, max_frames=3)
        assert isinstance(tts.engine.side, TorchSide)
        assert tts.engine.config == EngineConfig(
            max_num_seqs=2, memory_gb=0.01, deterministic=wanted
        )
    assert seen == {
        "ModelRunner.capture": wanted,
        "ModelRunner._decode": wanted,
        "CodecPrimer.capture": wanted,
    }
    assert not kernels.is_batch_invariant()


def audio(stream: AudioStream) -> bytes:
    return b"".join(chunk.samples.tobytes() for chunk in stream)


@pytest.mark.parametrize("wanted", [False, True])
def test_a_codec_of_the_libraries_sums_has_one_row_in_a_call(wanted, monkeypatch, tmp_path):
    rows: set[int] = set()
    decode = CosyVoice3Codec.decode

    def spy(self, frames, state, call):
        rows.add(len(frames))
        return decode(self, frames, state, call)

    monkeypatch.setattr(CosyVoice3Codec, "decode", spy)
    monkeypatch.setattr(
        "stentor.engine.running.side.check_deterministic", lambda model, device: None
    )
    path = checkpoint("cosyvoice3", tmp_path)
    settings = {"max_num_seqs": 3, "memory_gb": 0.01, "deterministic": wanted}
    with TTS(path, device="cpu", **settings) as tts:
        options = {"max_frames": 60, "ignore_eos": True, **VOICE["cosyvoice3"]}
        requests = [tts.request("Hello.", seed=i, **options) for i in range(3)]
        for streaming in (True, False):
            alone = [audio(tts.submit(request, streaming)) for request in requests]
            beside = [audio(s) for s in [tts.submit(request, streaming) for request in requests]]
            assert not wanted or beside == alone
    assert (max(rows) == 1) is wanted

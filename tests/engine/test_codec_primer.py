"""The codec's state after a voice is made once, beside the engine's thread, and audio does not depend on where it is."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from stentor import TTS, Reference, Speech, audio
from stentor.config import EngineConfig
from stentor.engine.running.codec_runner import CodecRunner
from stentor.engine.running.codec_state import CodecStateTable
from stentor.engine.running.cuda_graphs import CudaGraphRunner
from stentor.engine.running.device import Device
from stentor.engine.voice import CodecPrimer, piece_sizes, pieces
from stentor.layers.types import Launch, torch_dtype
from stentor.models.base import Prompt, SpeechModel
from stentor.models.toy.model import Toy
from tests.fixtures.qwen3_tts import tiny_qwen3_tts
from tests.helpers.tiny import FIXTURES

RATE = 6000
TOY: dict[str, Any] = {"device": "cpu", "max_num_seqs": 3, "memory_gb": 0.002}


def voice(hz: float, seconds: float = 0.5, text: str | None = "la la") -> Reference:
    at = np.arange(int(24_000 * seconds)) / 24_000
    return Reference((0.5 * np.sin(2 * np.pi * hz * at).astype(np.float32), 24_000), text)


def checkpoint(family: str, folder: Path) -> str | Path:
    if family == "qwen3_tts":
        tiny_qwen3_tts.write("base", folder)
        return folder
    return "dummy:toy" if family == "toy" else FIXTURES / family


def prompt(frames: np.ndarray) -> Prompt:
    return Prompt(
        {}, frames, np.zeros(0), {}, 1, 0, codec_prefix=frames, voice=audio.digest(frames)
    )


def test_pieces_are_of_few_lengths_and_give_all_frames() -> None:
    assert piece_sizes(25) == [25, 16, 8, 4, 2, 1]
    assert piece_sizes(3) == [3, 2, 1]
    assert piece_sizes(0) == []
    assert pieces(63, piece_sizes(25)) == [25, 25, 8, 4, 1]
    for count in range(1, 120):
        assert sum(pieces(count, piece_sizes(25))) == count


@pytest.mark.parametrize("family", ["toy", "voxcpm2", "qwen3_tts"])
def test_a_voice_sounds_alike_with_its_codec_state_new_kept_or_gone(
    family: str, tmp_path: Path
) -> None:
    """And alike in pieces: the audio of the frames is what the codec makes of prefix and frames in one call."""

    def speak(tts: TTS, hz: float) -> Speech:
        return tts.generate(
            "One two three.", reference=voice(hz), seed=3, max_frames=6, min_frames=6, retries=1
        )

    path = checkpoint(family, tmp_path)
    with TTS(path, **TOY, codec_states_mb=64) as keeping:
        primer = keeping.engine.primer
        new, kept, other = speak(keeping, 200), speak(keeping, 200), speak(keeping, 300)
        assert (primer.counts().hits, primer.counts().misses, primer.counts().entries) == (1, 2, 2)
        assert primer.counts().size == 2 * keeping.engine.codec.states.data[0].nbytes
        whole = decoded_whole(keeping, new, voice(200))
    with TTS(path, **TOY, codec_states_mb=0) as forgetting:
        gone = [speak(forgetting, 200) for _ in range(2)]
        assert forgetting.engine.primer.counts().misses == 2
        assert forgetting.engine.primer.counts().size == 0
    for speech in (kept, *gone):
        np.testing.assert_array_equal(speech.samples, new.samples)
    assert np.abs(other.samples - new.samples).max() > 1e-4
    np.testing.assert_allclose(new.samples, whole[-len(new.samples) :], atol=1e-4)


def decoded_whole(tts: TTS, speech: Speech, reference: Reference) -> np.ndarray:
    """The codec's prefix and the frames of a speech, decoded in one call: samples [n]."""
    made = tts.prompt(tts.request("One two three.", reference=reference))
    codec, spec = tts.engine.model.codec, tts.spec
    frames = np.concatenate((made.codec_prefix, speech.frames[: len(speech.samples) // spec.hop]))
    state = CodecStateTable(codec.columns, 1, torch.device("cpu")).columns
    with torch.inference_mode():
        samples, _ = codec.decode(
            torch.from_numpy(frames)[None].to(torch_dtype(spec.frame.dtype)), state
        )
    return samples[0].numpy()


def toy_primer(megabytes: float = 1.0) -> tuple[CodecPrimer, SpeechModel]:
    with TTS("dummy:toy", **TOY) as tts:
        model = tts.engine.model
    return CodecPrimer(model, EngineConfig(codec_states_mb=megabytes), Device("cpu")), model


def test_every_piece_is_served_by_a_captured_call() -> None:
    primer, model = toy_primer()
    frames = np.random.default_rng(0).random((7, *model.spec.frame.shape)).astype(np.float32)
    eager = primer.claim(prompt(frames)).result()
    assert primer.graphs.eager_calls == 4
    captured, _ = toy_primer()
    captured.graphs.graphs = {
        (n,): SimpleNamespace(replay=partial(captured.graphs.fn, n)) for n in captured.sizes
    }
    assert torch.equal(captured.claim(prompt(frames)).result(), eager)
    assert captured.graphs.eager_calls == 0


def test_rows_that_were_not_used_lately_go_when_the_budget_is_spent() -> None:
    primer, model = toy_primer()
    size = primer.claim(prompt(frames_of(model, 0))).result().nbytes
    small, _ = toy_primer(2.5 * size / (1 << 20))
    for seed in (0, 1, 0, 2, 0, 1):
        small.claim(prompt(frames_of(model, seed))).result()
        assert small.counts().size <= 2.5 * size
    assert (small.counts().hits, small.counts().misses, small.counts().entries) == (2, 4, 2)


def frames_of(model: SpeechModel, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).random((2, *model.spec.frame.shape)).astype(np.float32)


def test_requests_of_one_voice_get_its_state_in_one_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    copies: list[int] = []
    fill = CodecStateTable.fill
    monkeypatch.setattr(
        CodecStateTable,
        "fill",
        lambda self, rows, state: (copies.append(len(rows)), fill(self, rows, state)),
    )
    with TTS("dummy:toy", **TOY) as tts:
        made = [tts.prompt(tts.request(f"Number {i}.", reference=voice(200))) for i in range(2)]
        runner: CodecRunner = tts.engine.codec
        assert made[0].codec_state is made[1].codec_state
        rows = [(SimpleNamespace(slot=slot), p) for slot, p in enumerate(made)]
        with torch.inference_mode():
            runner.admit(rows)
        assert copies == [2]
        assert torch.equal(runner.states.data[0], runner.states.data[1])
        assert torch.equal(runner.states.data[0], made[0].codec_state)


def noting(found: dict[str, set[str]], what: str, call: Callable[..., Any]) -> Callable[..., Any]:
    """`call`, whose threads are noted under `what`."""

    def noted(*args: Any) -> Any:
        found.setdefault(what, set()).add(threading.current_thread().name.rpartition("_")[0])
        return call(*args)

    return noted


def test_the_engine_thread_neither_encodes_nor_primes(monkeypatch: pytest.MonkeyPatch) -> None:
    threads: dict[str, set[str]] = {}
    with TTS("dummy:toy", **TOY) as tts:
        graphs = tts.engine.primer.graphs
        monkeypatch.setattr(graphs, "fn", noting(threads, "prime", graphs.fn))
        monkeypatch.setattr(
            tts.engine.model, "encode", noting(threads, "encode", tts.engine.model.encode)
        )
        tts.generate("One. Two.", reference=voice(200), split_granularity="sentence", max_frames=4)
    assert threads == {"prime": {"stentor-prime"}, "encode": {"stentor-encode"}}


def test_a_reference_is_resampled_hashed_encoded_and_primed_once_for_all_texts_pieces_and_tries(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls: list[str] = []

    def counted(module: Any, name: str) -> None:
        plain = getattr(module, name)
        monkeypatch.setattr(module, name, lambda *a: (calls.append(name), plain(*a))[1])

    for name in ("resample", "digest"):
        counted(audio, name)
    with TTS("dummy:toy", **TOY) as tts:
        counted(tts.engine.model, "encode")
        calls.clear()  # those of the start
        texts, options = (
            ["One two. Three four.", "Five. Six."],
            {"split_granularity": "sentence", "max_frames": 4},
        )
        tts.generate(texts, reference=voice(200), seed=1, **options)
        assert sorted(calls) == ["digest", "encode", "resample"]
        calls.clear()
        loaded = tts.load_reference(voice(300))
        for _ in range(3):
            tts.generate("Seven.", reference=loaded, seed=1, max_frames=4)
        assert sorted(calls) == ["digest", "encode", "resample"]
        assert tts.engine.primer.counts().misses == 2


def test_every_thread_and_every_piece_has_run_before_the_engine_is_ready(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    encoded: list[str] = []
    primed: list[int] = []
    encode, plain = Toy.encode, CudaGraphRunner.__call__

    def noted(self: Toy, wav: torch.Tensor, role: str, launch: Launch) -> dict[str, torch.Tensor]:
        encoded.append(threading.current_thread().name)
        return encode(self, wav, role, launch)

    def called(self: CudaGraphRunner, *key: int) -> None:
        primed.extend(key if self.name == "priming" else ())
        plain(self, *key)

    monkeypatch.setattr(Toy, "encode", noted)
    monkeypatch.setattr(CudaGraphRunner, "__call__", called)
    with TTS("dummy:toy", **TOY) as tts:
        assert len(set(encoded)) == tts.engine.encoder.threads
        assert primed == [2, 1]
        assert tts.engine.primer.counts().misses == 0

"""The built-in voice's graphs: they are those of the checkpoint, and speak as torch does."""

from __future__ import annotations

import hashlib
import json
import tomllib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

import stentor
from stentor.config import Policy
from stentor.engine import opening
from stentor.engine.running.side import TorchSide
from stentor.engine.running_onnx.side import GraphSide
from stentor.errors import InvalidRequest
from stentor.graphs import exactness, rng
from stentor.graphs.sessions import GraphTable, value_of
from stentor.graphs.tensors import TensorFile
from stentor.graphs.weights import INT8_UPSAMPLING
from stentor.layers import rng as torch_rng
from stentor.models.model_names import DEFAULT_VOICE, GRAPHS
from stentor.models.voxcpm2.tokenizer import CharacterTokenizer, TextTokenizer

ROOT = Path(__file__).parents[2]
TEXTS = ("Is the harbour open?", "Seven gulls sat on the wall, and none of them moved.")
OTHERS = ("Nothing else was said.", "The tide turned at noon.", "Bring a lamp.", "Who is there?")


@pytest.fixture(scope="module")
def voice() -> Iterator[stentor.TTS]:
    with stentor.TTS(device="cpu", max_num_seqs=8, threads=2) as tts:
        yield tts


def test_the_table_has_the_sums_of_the_graphs_and_of_the_weights() -> None:
    table = json.loads((DEFAULT_VOICE / GRAPHS).read_text(encoding="utf-8"))
    assert len(table["sha256"]) == 9
    for name, digest in table["sha256"].items():
        assert hashlib.sha256((DEFAULT_VOICE / name).read_bytes()).hexdigest() == digest, name


def test_the_graphs_hold_no_weights() -> None:
    sizes = [file.stat().st_size for file in (DEFAULT_VOICE / GRAPHS.parent).iterdir()]
    assert sum(sizes) < 1_000_000


def test_upsamplings_in_eight_bits_have_the_weights_of_the_checkpoint() -> None:
    table = GraphTable.read(DEFAULT_VOICE)
    file = TensorFile(DEFAULT_VOICE / table.files["codec"])
    upsamplings = [w for w in table.weights["codec"].values() if w.layout == INT8_UPSAMPLING]
    assert len(upsamplings) == 2
    for weight in upsamplings:
        integers, scales = weight.narrow(file)
        wide = weight.wide(file)  # rounded to the 11 bits of float16
        assert integers.dtype == np.int8
        assert np.allclose(integers * scales[:, None], wide, rtol=2**-11, atol=1e-7)


def test_the_codec_in_eight_bits_has_noise_35_db_below_the_audio(voice: stentor.TTS) -> None:
    frames = [f for chunk in voice.stream(TEXTS[1], seed=3) for f in chunk.frames]
    table = GraphTable.read(DEFAULT_VOICE)
    files = {name: TensorFile(DEFAULT_VOICE / name) for name in set(table.files.values())}
    audio = []
    for eight_bits in (False, True):
        session = table.session("codec", files, eight_bits, convolutions=True)
        feeds = {
            f"s{i}": value_of(np.zeros(s, np.float32)) for i, s in enumerate(table.codec_states)
        }
        feeds["x"] = value_of(np.concatenate(frames))
        audio.append(session(feeds)[0].numpy())

    noise = np.square(audio[1] - audio[0]).mean()
    assert 0 < noise < 10**-3.5 * np.square(audio[0]).mean()


def test_draws_are_those_of_torch() -> None:
    for seed, step in ((0, 0), (1, 7), (2**63 - 1, 3), (12345, 999)):
        expected = torch_rng.uniform(torch.tensor([seed]), torch.tensor([step]), 256)[0]
        assert np.array_equal(rng.uniform(seed, step, 256), expected.numpy())


def test_characters_have_the_ids_of_the_tokenizers_package() -> None:
    file = DEFAULT_VOICE / "tokenizer.json"
    text = "ðə hˈɛɹəld, 50 vˈYsᵻz! ☃"
    assert CharacterTokenizer(file)(text) == TextTokenizer(file)(text)


@pytest.mark.parametrize("text", TEXTS)
def test_graphs_in_float32_speak_as_torch_does(text: str) -> None:
    with (
        stentor.TTS(runtime="torch", dtype="float32", device="cpu") as reference,
        stentor.TTS(runtime="onnxruntime", dtype="float32", device="cpu") as graphs,
    ):
        for seed in (1, 2, 3):
            expected = reference.generate(text, seed=seed).samples
            samples = graphs.generate(text, seed=seed).samples
            assert len(samples) == len(expected)
            assert np.abs(samples - expected).max() <= 1e-3 * np.abs(expected).max()


def test_audio_is_the_same_bytes_streamed_and_with_other_requests(voice: stentor.TTS) -> None:
    single = voice.generate(TEXTS[1], seed=5).samples
    streamed = np.concatenate([c.samples for c in voice.stream(TEXTS[1], seed=5)])
    together = voice.generate([TEXTS[1], *OTHERS], seed=5)
    assert np.array_equal(single, streamed)
    assert np.array_equal(single, together[0].samples)


def test_audio_is_the_same_bytes_after_preemption(voice: stentor.TTS) -> None:
    expected = [voice.generate(text, seed=5).samples for text in (*TEXTS, *OTHERS)]
    gib = 13.5 * 16 * 2 * 10 * 2 * 64 * 4 / 2**30  # 13 pages of 16 positions: three requests
    policy = Policy(reserve_tokens=0)
    with stentor.TTS(
        device="cpu", max_num_seqs=6, memory_gb=gib, threads=1, policy=policy
    ) as tight:
        spoken = tight.generate([*TEXTS, *OTHERS], seed=5)
        assert tight.engine.health().preemptions > 0
    for samples, speech in zip(expected, spoken, strict=True):
        assert np.array_equal(samples, speech.samples)


def test_a_codec_call_that_fails_on_its_thread_ends_its_own_request_only(
    voice: stentor.TTS, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(frames: object, states: object) -> None:
        raise MemoryError("no room for the samples")

    with monkeypatch.context() as patched:
        patched.setattr(voice.engine.codec.model, "decode", broken)
        with pytest.raises(stentor.EngineError, match="no room for the samples"):
            voice.generate(OTHERS[0], seed=1)
    assert len(voice.generate(OTHERS[0], seed=1).samples)


@pytest.mark.parametrize(
    ("arguments", "side"),
    [
        ({}, GraphSide),
        ({"dtype": "float32"}, GraphSide),
        ({"flow_steps": 4}, GraphSide),
        ({"runtime": "torch"}, TorchSide),
        ({"dtype": "bfloat16"}, TorchSide),
        ({"quantization": "int8"}, TorchSide),
        ({"max_loras": 1}, TorchSide),
    ],
)
def test_an_argument_that_needs_torch_takes_torch(arguments: dict[str, object], side: type) -> None:
    with stentor.TTS(device="cpu", **arguments) as tts:
        assert isinstance(tts.engine.side, side)


@pytest.mark.parametrize(
    ("model", "arguments", "message"),
    [
        (None, {"quantization": "int8"}, "quantization asks for what needs torch"),
        ("dummy:toy", {}, "dummy:toy has no graphs"),
        (None, {"runtime": "tensorrt"}, "must be one of auto, onnxruntime, torch"),
    ],
)
def test_a_runtime_that_cannot_run_a_model_is_refused(
    model: str | None, arguments: dict[str, str], message: str
) -> None:
    options = {"runtime": "onnxruntime", "device": "cpu", **arguments}
    with pytest.raises(InvalidRequest, match=message) as refused:
        stentor.TTS(model, **options)
    assert refused.value.param == "runtime"


def test_a_cpu_that_adds_eight_bits_wrongly_gets_float32(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    assert exactness.adds_exactly()
    loaded = []
    monkeypatch.setattr(exactness, "adds_exactly", lambda: False)
    load_graphs = opening.registry.load_graphs
    monkeypatch.setattr(
        opening.registry,
        "load_graphs",
        lambda path, eight_bits, options: (
            loaded.append(eight_bits) or load_graphs(path, eight_bits, options)
        ),
    )
    stentor.TTS(device="cpu").close()
    assert loaded == [False]


def test_the_core_has_twenty_packages_at_most_and_no_torch() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    names = {line.split(">")[0] for line in project["dependencies"]}
    assert len(names) <= 13  # they bring cffi, pycparser, protobuf, flatbuffers and three more
    assert not names & {"torch", "tokenizers", "huggingface-hub", "triton"}

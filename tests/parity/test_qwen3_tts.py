"""Qwen3-TTS on tiny checkpoints in the released layout equals what the official package gave for them.

Expected values: tests/fixtures/qwen3_tts, made by tests/fixtures/make_qwen3_tts.py.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from stentor import TTS, Reference, Speech, registry
from stentor.layers.conv import StreamingState
from stentor.layers.frame_decoder import CLOCK, FrameCodec
from stentor.layers.types import State, eager
from stentor.models.qwen3_tts.builder import fill_codec
from stentor.models.qwen3_tts.codec import Decoder
from stentor.models.qwen3_tts.config import read_codec
from stentor.models.qwen3_tts.speaker_encoder import mel_filters
from stentor.models.qwen3_tts.tokenizer import QwenTokenizer
from stentor.models.source import Checkpoint
from tests.fixtures.qwen3_tts import tiny_qwen3_tts as tiny
from tests.helpers.released import released

FIXTURES = Path(__file__).parents[1] / "fixtures" / "qwen3_tts"

CPU = torch.device("cpu")
CASES: list[dict[str, Any]] = json.loads((FIXTURES / "codes.json").read_text(encoding="utf-8"))
VOICE = Reference((tiny.reference_audio(2.03), 24000))
SAMPLED = {
    "temperature": 1.1, "top_k": 7, "top_p": 0.9, "subtalker_temperature": 0.7, "subtalker_top_k": 3,
    "subtalker_top_p": 0.95, "repetition_penalty": 1.3, "min_frames": 9, "max_frames": 11, "seed": 5,
}  # fmt: skip

OTHERS = 5  # sampled requests beside the cases
ALONE = 2  # cases of each checkpoint that are spoken alone as well


def arguments(case: dict[str, Any]) -> dict[str, Any]:
    """A case of codes.json as arguments of TTS.generate."""
    r = case["request"]
    out = {"language": r["language"], "max_frames": case["max_frames"], "temperature": 0.0}
    out["non_streaming_mode"] = case["non_streaming_mode"]
    if "speaker" in r:
        out["voice"] = r["speaker"]
    # the package drops instructions for 0.6B, stentor refuses them
    if r.get("instruct") and case["kind"] != "small":
        out["instructions"] = r["instruct"]
    if case["kind"] == "base":
        out["reference"] = Reference(VOICE.audio, r["ref_text"])
    return out


def of(kind: str) -> list[dict[str, Any]]:
    return [case for case in CASES if case["kind"] == kind]


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("qwen3_tts")
    for kind in tiny.KINDS:
        tiny.write(kind, folder / kind)
    return folder


@pytest.fixture(scope="module", params=tiny.KINDS)
def model(request: pytest.FixtureRequest, checkpoints: Path) -> Iterator[tuple[str, TTS]]:
    with TTS(checkpoints / request.param, device="cpu", max_num_seqs=12) as tts:
        yield request.param, tts


@pytest.fixture(scope="module")
def spoken(model: tuple[str, TTS]) -> tuple[dict[str, Speech], list[tuple[Speech, int]]]:
    """All cases in one batch, and sampled requests that join and leave between them, with the most frames of each."""
    kind, tts = model
    cases, others = {}, []
    for i, case in enumerate(of(kind)):
        text, options = case["request"]["text"], arguments(case)
        if i < OTHERS:
            sampled = {**options, **SAMPLED, "seed": i, "max_frames": 3 + 3 * i}
            others.append((tts.submit(tts.request(text, **sampled)), 3 + 3 * i))
        cases[case["name"]] = tts.submit(tts.request(text, **options), False)
    return {n: tts.speech(list(s), 0) for n, s in cases.items()}, [
        (tts.speech(list(s), 0), n) for s, n in others
    ]


@pytest.fixture(scope="module")
def speeches(spoken: tuple[dict[str, Speech], list[tuple[Speech, int]]]) -> dict[str, Speech]:
    """Every case as it was spoken in the batch."""
    return spoken[0]


def test_greedy_codes_of_every_mode_equal_the_official_packages_in_a_batch_with_sampled_requests(
    model: tuple[str, TTS], spoken: tuple[dict[str, Speech], list[tuple[Speech, int]]]
) -> None:
    speeches, others = spoken
    for case in of(model[0]):
        speech = speeches[case["name"]]
        assert speech.frames.tolist() == case["codes"], case["name"]
        ended = len(case["codes"]) < case["max_frames"]
        assert (speech.finish_reason == "stop") >= ended
    assert len(others) == OTHERS
    for speech, max_frames in others:
        assert min(9, max_frames) <= len(speech.frames) <= max_frames
        assert speech.frames.min() >= 0
        assert speech.frames.max() < 2048


def test_frames_are_integers_of_sixteen_codes(speeches: dict[str, Speech]) -> None:
    for speech in speeches.values():
        assert np.issubdtype(speech.frames.dtype, np.integer)
        assert speech.frames.shape[1] == 16
        assert len(speech.samples) == 1920 * len(speech.frames)


def test_audio_equals_the_official_packages_to_a_thousandth_of_its_peak(
    speeches: dict[str, Speech],
) -> None:
    with np.load(FIXTURES / "audio.npz") as audio:
        names = speeches.keys() & set(audio.files)
        assert names
        for name in names:
            want, got = audio[name], speeches[name].samples[::5]
            # The package cuts a clone's reference by a float ratio and may keep one sample more.
            shift = len(want) - len(got)
            assert shift in (0, 1)
            assert np.abs(want[shift:] - got).max() < 1e-3 * np.abs(want).max(), name


def test_streamed_chunks_of_a_request_alone_are_the_whole_of_the_batch(
    model: tuple[str, TTS], speeches: dict[str, Speech]
) -> None:
    kind, tts = model
    for case in of(kind)[:ALONE]:
        chunks = list(tts.stream(case["request"]["text"], **arguments(case)))
        assert np.concatenate([c.frames for c in chunks]).tolist() == case["codes"]
        whole = speeches[case["name"]].samples
        np.testing.assert_allclose(np.concatenate([c.samples for c in chunks]), whole, atol=1e-5)
        assert len(chunks) > 1


def test_a_sampled_request_is_the_same_alone_batched_and_streamed(model: tuple[str, TTS]) -> None:
    kind, tts = model
    case = of(kind)[0]
    options = {**arguments(case), **SAMPLED}
    text = case["request"]["text"]
    alone = tts.generate(text, **options)
    first, *_ = tts.generate([text, "something else", "and a third"], **options)
    assert first.frames.tolist() == alone.frames.tolist()
    assert (
        np.concatenate([c.frames for c in tts.stream(text, **options)]).tolist()
        == alone.frames.tolist()
    )
    assert tts.generate(text, **{**options, "seed": 6}).frames.tolist() != alone.frames.tolist()


def test_a_sharded_checkpoint_speaks_the_same(tmp_path: Path) -> None:
    case = of("custom_voice")[0]
    with TTS(tiny.write("custom_voice", tmp_path / "sharded", shards=3), device="cpu") as tts:
        assert (
            tts.generate(case["request"]["text"], **arguments(case)).frames.tolist()
            == case["codes"]
        )


# -- codec ----------------------------------------------------------------------------------------------------------


def decoder(path: Path, dtype: torch.dtype) -> Decoder:
    source = Checkpoint(path)
    made, _ = fill_codec(source, read_codec(source), CPU, dtype, with_encoder=False)
    made.process_weights_after_loading()
    return made


def in_chunks(codec: FrameCodec, codes: torch.Tensor, sizes: list[int]) -> torch.Tensor:
    """Decode with the state handed on as the engine does, in the decoder's own dtype."""
    state: State = {
        name: torch.zeros(len(codes), *c.shape, dtype=c.dtype) for name, c in codec.columns.items()
    }
    out, at = [], 0
    for n in sizes:
        streaming = StreamingState(state)
        pos = state[CLOCK][:, None] + torch.arange(n)
        out.append(codec.decoder(codes[:, at : at + n], pos, streaming))
        state = {**streaming.new, CLOCK: state[CLOCK] + n}
        assert state.keys() == codec.columns.keys()
        at += n
    return torch.cat(out, dim=1)


SIZES = [1, 1, 2, 4, 8, 12, 25, 40, 80, 100, 57]


@torch.inference_mode()
def test_codec_in_chunks_equals_one_forward_and_the_official_one_in_float64(
    checkpoints: Path,
) -> None:
    codec = FrameCodec(decoder(checkpoints / "base", torch.float64))
    codes = torch.from_numpy(np.stack([tiny.codes(5, 330), tiny.codes(6, 330)]))
    whole = codec.decoder(codes, torch.arange(330).expand(2, -1))
    assert whole.dtype == torch.float64
    assert (in_chunks(codec, codes, SIZES) - whole).abs().max() < 1e-9
    with np.load(FIXTURES / "codec.npz") as want:
        assert np.abs(whole[0, : 2 * 1920].numpy() - want["wave_head"]).max() < 1e-9
        assert np.abs(whole[0, ::61].numpy() - want["wave_rest"]).max() < 1e-9


@torch.inference_mode()
def test_codec_in_float32_is_within_a_thousandth_of_the_peak(checkpoints: Path) -> None:
    codec = FrameCodec(decoder(checkpoints / "base", torch.float32))
    codes = torch.from_numpy(tiny.codes(5, 330))[None]
    state = {name: torch.zeros(1, *c.shape, dtype=c.dtype) for name, c in codec.columns.items()}
    out, at = [], 0
    for n in SIZES:
        samples, state = codec.decode(codes[:, at : at + n].int(), state)
        out.append(samples)
        at += n
    got = torch.cat(out, dim=1)[0].numpy()
    with np.load(FIXTURES / "codec.npz") as want:
        peak = np.abs(want["wave_rest"]).max()
        assert np.abs(got[::61] - want["wave_rest"]).max() < 1e-3 * peak


def test_codec_state_of_the_released_size_is_what_the_spec_counts() -> None:
    with torch.device("meta"):
        columns = FrameCodec(
            Decoder(read_codec(released("qwen3_tts", "qwen3-tts-1.7b-base")).decoder)
        ).columns
    sizes = {name: int(np.prod(c.shape)) for name, c in columns.items() if name != CLOCK}
    window = sum(n for name, n in sizes.items() if name.startswith("window"))
    assert window == 1_163_264
    # The spec counts r output columns per transposed convolution; one input column is remembered here instead.
    overlap = sum(r * (1536 >> (i + 1)) - (1536 >> i) for i, r in enumerate((8, 5, 4, 3)))
    assert sum(sizes.values()) - window == 141_472 - overlap


# -- encoders -------------------------------------------------------------------------------------------------------


@torch.inference_mode()
def test_encoder_codes_and_speaker_vectors_equal_the_official_ones(checkpoints: Path) -> None:
    model = registry.load(checkpoints / "base", CPU, torch.float32, {})
    with np.load(FIXTURES / "codec.npz") as want:
        # long: past the encoder's window of ten seconds
        for name, seconds in (
            ("short", 2.03),
            ("long", 13.0),
        ):
            got = model.encode(torch.from_numpy(tiny.reference_audio(seconds)), "reference", eager)
            np.testing.assert_array_equal(got["codes"].numpy(), want[f"codes_{name}"])
            vector = want[f"speaker_{name}"]
            assert np.abs(got["speaker"].numpy() - vector).max() < 1e-4 * np.abs(vector).max()


def test_mel_filters_equal_librosas() -> None:
    with np.load(FIXTURES / "codec.npz") as want:
        np.testing.assert_allclose(mel_filters(24000, 1024, 128), want["mel"], atol=1e-8)


# -- tokens ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("pattern", ["plain", "mistral"])
def test_tokens_of_2000_mixed_script_strings_equal_the_official_ones(
    pattern: str, tmp_path: Path
) -> None:
    with np.load(FIXTURES / "tokens.npz") as want:
        added = {
            token: (i, special) for token, (i, special) in json.loads(str(want["added"])).items()
        }
        ends = np.cumsum(want[f"{pattern}_lengths"].astype(np.int64))
        expected = np.split(want[f"{pattern}_ids"], ends[:-1])
    tiny.write_tokenizer(tmp_path, True, added)
    tokenizer = QwenTokenizer(tmp_path, mistral=pattern == "mistral")
    strings = tiny.strings()
    assert len(strings) == len(expected) == 2000
    wrong = [
        s for s, ids in zip(strings, expected, strict=True) if tokenizer.encode(s) != ids.tolist()
    ]
    assert wrong == []

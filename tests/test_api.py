"""The public API: what it takes, what it gives, and how it says no before anything is queued."""

import io
import math
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile

import stentor
from stentor import TTS, CheckpointError, InvalidRequest, Reference
from stentor.config import EngineConfig, Policy

TONE = (np.sin(np.arange(3000) / 20) * 0.5).astype(np.float32)


@pytest.fixture(scope="module")
def tts():
    with TTS("dummy:toy", memory_gb=0.002) as t:
        yield t


def test_speech_knows_its_length_and_saves_itself(tts: TTS, tmp_path: Path):
    speech = tts.generate("hello", seed=1, max_frames=20, min_frames=20, retries=1)
    assert speech.samples.dtype == np.float32
    assert speech.samples.shape == (20 * tts.spec.hop,)
    assert speech.frames.shape == (20, 7)
    assert speech.duration == pytest.approx(20 * tts.spec.hop / tts.sample_rate)
    assert (speech.seed, speech.finish_reason) == (1, "length")
    speech.save(tmp_path / "a.wav")
    read, rate = soundfile.read(tmp_path / "a.wav", dtype="float32")
    assert rate == tts.sample_rate
    np.testing.assert_allclose(read, speech.samples, atol=1.6 / 32768)


def test_a_stream_yields_chunks_and_only_the_last_says_how_it_ended(tts: TTS):
    chunks = list(tts.stream("hello", seed=1, max_frames=20, min_frames=20))
    assert len(chunks) > 2
    assert [c.finish_reason for c in chunks] == [None] * (len(chunks) - 1) + ["length"]


def test_a_missing_seed_is_drawn_and_told(tts: TTS):
    a = tts.generate("hello", max_frames=5, min_frames=5, retries=1)
    b = tts.generate("hello", max_frames=5, min_frames=5, retries=1, seed=a.seed)
    np.testing.assert_array_equal(a.samples, b.samples)


def test_a_reference_may_be_a_path_bytes_or_samples(tts: TTS, tmp_path: Path):
    path = tmp_path / "ref.wav"
    soundfile.write(path, TONE, 6000, subtype="FLOAT")
    results = [
        tts.generate(
            "hi", seed=1, reference=Reference(audio), max_frames=5, min_frames=5, retries=1
        )
        for audio in (
            path,
            str(path),
            path.read_bytes(),
            (TONE, 6000),
            (np.stack([TONE, TONE], 1), 6000),
        )
    ]
    for other in results[1:]:
        np.testing.assert_allclose(other.samples, results[0].samples, atol=1e-5)


@pytest.mark.parametrize(
    ("text", "options", "names"),
    [
        ("", {}, "text: must not be empty"),
        (" \n\t ", {}, "text: must not be empty"),
        (7, {}, "text: must be a string"),
        (None, {}, "text: must be a string, got NoneType"),
        (b"hi", {}, "text: must be a string, got bytes"),
        ({"one": "hi"}, {}, "text: must be a string, got dict"),
        ("x" * 10_000, {"split_granularity": "none"}, "text: has 10000 characters, at most 512"),
        (
            "ж" * 300,
            {"split_granularity": "none"},
            "text: is too long for one request: it has 300 characters",
        ),
        (
            "hi",
            {"split_granularity": "word"},
            "split_granularity: must be one of auto, none, sentence, clause",
        ),
        ("bad \ud800", {}, "text: is not valid Unicode"),
        ("hi", {"voice": "nobody"}, "voice: 'nobody' is not known; known: low, high"),
        ("hi", {"language": "klingon"}, "language: 'klingon' is not known; known: auto, english"),
        ("hi", {"instructions": 5}, "instructions: must be a string"),
        ("hi", {"seed": -1}, "seed: must be an integer"),
        ("hi", {"seed": 1.5}, "seed: must be an integer"),
        ("hi", {"seed": True}, "seed: must be an integer"),
        ("hi", {"temperature": -0.1}, "temperature: must be from 0 to 2"),
        ("hi", {"temperature": float("nan")}, "temperature: must be from 0 to 2"),
        ("hi", {"temperature": "hot"}, "temperature: must be a number"),
        ("hi", {"top_k": 1.5}, "top_k: must be a whole number"),
        ("hi", {"top_p": 2}, "top_p: must be from 0 to 1"),
        ("hi", {"max_frames": 0}, "max_frames: must be from 1"),
        (
            "hi",
            {"repetition_penalty": 1.1},
            "repetition_penalty: dummy:toy does not take it; it takes cfg",
        ),
        ("hi", {"nonsense": 1}, "nonsense: dummy:toy does not take it"),
        ("hi", {"prompt": Reference((TONE, 6000), "x")}, "prompt: dummy:toy takes none"),
        ("hi", {"reference": "ref.wav"}, "reference: must be a stentor.Reference"),
        ("hi", {"retries": 0}, "retries: must be a whole number from 1 to 10"),
        ("hi", {"retries": np.float64(2)}, "retries: must be a whole number from 1 to 10"),
        ("hi", {"lora": 3}, "lora: must be the name of a loaded adapter, got int"),
        ("hi", {"seed": np.True_}, "seed: must be an integer"),
        ("hi", {"seed": np.float32(3)}, "seed: must be an integer"),
        ("hi", {"top_k": np.float32(1.5)}, "top_k: must be a whole number"),
        ("hi", {"temperature": np.float32("nan")}, "temperature: must be from 0 to 2"),
    ],
)
def test_bad_requests_name_the_field_and_what_is_allowed(
    tts: TTS, text: object, options: dict, names: str
):
    before = tts.engine.health().stats.submitted
    with pytest.raises(InvalidRequest) as e:
        tts.generate(text, **options)
    assert names in str(e.value)
    assert e.value.param in names
    assert isinstance(e.value, ValueError)
    assert tts.engine.health().stats.submitted == before


def test_voices_of_openai_and_kokoro_are_voices_of_the_model(tts: TTS):
    """Each name stands for the voice that it has on the server."""
    plain = {"seed": 5, "max_frames": 3}
    of = {v: tts.generate("hi", voice=v, **plain).samples.tobytes() for v in ("low", "high")}
    for name, voice in (("alloy", "low"), ("Ash", "high"), ("af_high", "high"), ("LOW", "low")):
        assert tts.generate("hi", voice=name, **plain).samples.tobytes() == of[voice]


def test_numbers_of_numpy_are_numbers(tts: TTS):
    plain = {"seed": 5, "max_frames": 3, "temperature": 0.5, "retries": 2}
    kinds = {
        "seed": np.uint64,
        "max_frames": np.int32,
        "temperature": np.float16,
        "retries": np.int8,
    }
    same = tts.generate("hi", **{name: kinds[name](value) for name, value in plain.items()})
    assert same.samples.tobytes() == tts.generate("hi", **plain).samples.tobytes()
    assert type(same.seed) is int
    assert type(EngineConfig(max_num_seqs=np.int64(3)).max_num_seqs) is int  # type: ignore[arg-type]


def nan_tone() -> np.ndarray:
    tone = TONE.copy()
    tone[7] = np.nan
    return tone


def wav(samples: np.ndarray, rate: int) -> bytes:
    out = io.BytesIO()
    soundfile.write(out, samples, rate, format="WAV")
    return out.getvalue()


@pytest.mark.parametrize(
    ("audio", "says"),
    [
        ("/nowhere/ref.wav", "does not exist"),
        ("/", "'/' is a directory; name an audio file (wav, flac, ogg, mp3)"),
        ("/dev/null", "'/dev/null' is no regular file; name an audio file"),
        (b"", "the given file is empty"),
        (b"no audio at all", "the given file is not readable audio (wav, flac, ogg, mp3, m4a"),
        (b"RIFF\x00\x00\x00\x00WAVEjunk", "not readable audio"),
        (wav(TONE, 6000)[:60], "long, must be"),
        ((np.zeros(3000, np.float32), 6000), "silent"),
        ((TONE[:60], 6000), "0.01 s long, must be 0.05 to 5 s"),
        ((TONE[:299], 6000), "0.04983 s long, must be 0.05 to 5 s"),
        ((np.tile(TONE, 20), 6000), "10 s long, must be 0.05 to 5 s"),
        (wav(np.tile(TONE, 1300), 6000), "the given file is longer than 5 s"),
        (wav(np.zeros((4_000, 16), np.int16), 192_000), "has 16 channels at 192000 Hz; at most 8"),
        ((nan_tone(), 6000), "NaN"),
        ((TONE, 0), "sample rate"),
        ((TONE, 44100.5), "sample rate"),
        ((TONE, -16000), "sample rate"),
        ((TONE.astype(np.int64), 6000), "float or int16"),
        ((TONE * 32767, 6000), "must lie in [-1, 1]"),
        ((TONE.reshape(10, 10, 30), 6000), "shape"),
        ((TONE,), "(samples, rate)"),
        (5, "path, bytes or (samples, rate)"),
        (([[0.1, 0.2], [0.3]], 6000), "samples must have shape"),
        ("~nobody-of-this-name/ref.wav", "'~nobody-of-this-name/ref.wav' is no path: "),
        ("a\0b.wav", "is no path: it holds a NUL character"),
        ("\ud800.wav", "is no path: "),
    ],
)
def test_bad_reference_audio_is_refused_with_its_reason(tts: TTS, audio: object, says: str):
    with pytest.raises(InvalidRequest) as e:
        tts.generate("hi", reference=Reference(audio))
    assert str(e.value).startswith("reference: ")
    assert says in str(e.value)


@pytest.mark.parametrize(
    ("model", "says"),
    [
        ("/nowhere/model", "no such directory"),
        ("./nowhere", "no such directory"),
        ("dummy:nothing", "known: "),
    ],
)
def test_unknown_models_are_named(model: str, says: str):
    with pytest.raises(CheckpointError, match=says):
        TTS(model)


@pytest.mark.parametrize("model", [3, ["a"], b"a"])
def test_a_model_that_is_no_name_is_refused_by_its_type(model: Any):
    with pytest.raises(InvalidRequest, match=f"model: must be a path, got {type(model).__name__}"):
        TTS(model)


def test_what_is_no_request_is_not_queued(tts: TTS):
    with pytest.raises(InvalidRequest, match=r"request: must be what TTS\.request gives, got str"):
        tts.submit("hi")  # type: ignore[arg-type]


def test_a_directory_that_is_no_model_says_why(tmp_path: Path):
    with pytest.raises(CheckpointError, match=r"has no config\.json"):
        TTS(tmp_path)
    (tmp_path / "config.json").write_text("{not json")
    with pytest.raises(CheckpointError, match="is not JSON"):
        TTS(tmp_path)
    (tmp_path / "config.json").write_text('{"architecture": "gpt9"}')
    with pytest.raises(CheckpointError, match="'gpt9'; known: "):
        TTS(tmp_path)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"device": "tpu"}, "device: must be auto, cpu, cuda"),
        ({"dtype": "int4"}, "dtype: must be one of"),
        ({"max_num_seqs": 0}, "max_num_seqs: must be at least 1"),
        ({"memory_gb": -1}, "memory_gb: must be above 0"),
        ({"memory_gb": math.nan}, "memory_gb: must be above 0, got nan"),
        ({"memory_gb": math.inf}, "memory_gb: must be above 0"),
        ({"max_num_seqs": "4"}, "max_num_seqs: must be a whole number, got '4'"),
        ({"threads": 1.5}, "threads: must be a whole number"),
        ({"gpu_memory_utilization": 1.5}, "gpu_memory_utilization: must be in"),
        ({"warp": 9}, "warp: "),
        ({"device": None}, "device: must be auto, cpu, cuda or cuda:N, got None"),
        ({"name": 3}, "name: must be a string, got int"),
        ({"lexicon": 3}, "lexicon: must be a path, got int"),
        ({"loras": ["a"]}, "loras: must be a mapping of names to paths, got list"),
        ({"policy": {}}, "policy: must be a stentor.config.Policy, got dict"),
        ({"policy": None}, "policy: must be a stentor.config.Policy, got NoneType"),
        ({"batch_sizes": 3}, "batch_sizes: must be a list of whole numbers, got 3"),
        ({"batch_sizes": ("4",)}, "batch_sizes: must be a whole number, got '4'"),
        ({"require_graphs": "no"}, "require_graphs: must be true or false, got 'no'"),
        ({"max_num_seqs": -(10**5000)}, "max_num_seqs: must be at least 1, got an integer of"),
    ],
)
def test_bad_engine_options_are_named(options: dict, says: str):
    with pytest.raises(ValueError) as e:
        TTS("dummy:toy", **options)
    assert says in str(e.value)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"max_prefill_tokens": 0}, "max_prefill_tokens: must be at least 1"),
        ({"max_ahead": math.nan}, "max_ahead: must be at least 0"),
        ({"ramp": (1, 0)}, "ramp: must be at least 1"),
        ({"ramp": 3}, "ramp: must be a list of whole numbers"),
        ({"max_queue": -1}, "max_queue: must be at least 0"),
    ],
)
def test_a_policy_with_which_no_request_would_end_is_refused(options: dict, says: str):
    with pytest.raises(InvalidRequest, match=says):
        Policy(**options)


def test_the_version_is_a_version():
    assert stentor.__version__.count(".") == 2


@pytest.mark.parametrize(
    "error",
    [
        InvalidRequest("text", "must not be empty"),
        stentor.BatchError([stentor.EngineError("one"), InvalidRequest("a", "b")]),
    ],
)
def test_an_error_comes_back_from_another_process(error: stentor.StentorError):
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is type(error)
    assert (str(again), repr(vars(again))) == (str(error), repr(vars(error)))

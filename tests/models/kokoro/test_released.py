"""Kokoro's released graph in 8 bits, with its style tables, by onnxruntime."""

from __future__ import annotations

import asyncio
import importlib.util
import sys
import types
from collections.abc import Iterator

import numpy as np
import pytest

import stentor
from stentor.errors import CheckpointError, InvalidRequest
from stentor.graphs.onnx_file import FLOAT, INT64, OnnxFile
from stentor.host.onnx_runtime import onnxruntime
from stentor.models.kokoro import GRAPH
from stentor.models.kokoro.front_ends import EXTRAS, front_end
from stentor.models.kokoro.spec import HOP
from stentor.models.kokoro.tokenizer import IDS
from tests.helpers.kokoro_folder import kokoro_folder

TEXT = "The lighthouse keeper counted seven ships."
OTHER = "Nobody had seen the eighth one, which came at night."


@pytest.fixture(scope="module")
def tts() -> Iterator[stentor.TTS]:
    with stentor.TTS(kokoro_folder(), device="cpu", threads=1) as loaded:
        yield loaded


def test_it_equals_the_graph_as_others_run_it(tts):
    """kokoro-onnx 0.6.1 runs the whole file with these inputs and onnxruntime's own settings."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    whole = onnxruntime.InferenceSession(
        kokoro_folder() / GRAPH, options, providers=["CPUExecutionProvider"]
    )
    for voice, speed in (("af_heart", 1.0), ("bm_george", 1.5)):
        prompt = tts.prompt(tts.request(TEXT, voice=voice, speed=speed))
        (expected,) = whole.run(
            None,
            {
                "tokens": prompt.rows["token"][None],
                "style": prompt.columns["style"][None],
                "speed": np.array([speed], np.float32),
            },
        )
        spoken = tts.generate(TEXT, voice=voice, speed=speed).samples
        assert spoken.shape == expected.shape
        assert np.abs(expected).max() < 1
        np.testing.assert_allclose(spoken, expected, atol=1e-3)


def test_two_voices_at_once_and_streams_are_the_same_bytes_as_alone(tts):
    alone = [tts.generate(text, voice=v) for text, v in ((TEXT, "af_bella"), (OTHER, "am_adam"))]
    streams = [
        tts.submit(tts.request(text, voice=v))
        for text, v in ((TEXT, "af_bella"), (OTHER, "am_adam"))
    ]
    for speech, stream in zip(alone, streams, strict=True):
        together = np.concatenate([chunk.samples for chunk in stream])
        np.testing.assert_array_equal(together, speech.samples)
    streamed = np.concatenate([c.samples for c in tts.stream(TEXT, voice="af_bella")])
    np.testing.assert_array_equal(streamed, alone[0].samples)


def test_times_of_words_are_those_of_the_durations(tts):
    prompt = tts.prompt(tts.request(TEXT))
    speech = tts.generate(TEXT, word_timestamps=True)
    (chunk,) = tts.submit(tts.request(TEXT))
    frames = np.bincount(chunk.frames)
    ends = np.cumsum(frames) * HOP / 24_000
    assert [w.text for w in speech.words] == TEXT.split()
    for word, place in zip(speech.words, prompt.words, strict=True):
        assert word.start == pytest.approx(ends[place.start - 1], abs=0.001)
        assert word.end == pytest.approx(ends[place.stop - 1], abs=0.001)


@pytest.mark.parametrize(("speed", "own"), [(0.25, 0.5), (0.5, 0.5), (2.0, 2.0), (4.0, 2.0)])
def test_it_speaks_at_its_own_speeds_and_others_are_stretched(tts, speed, own):
    text = "Seven ships."
    plain = tts.generate(text, speed=own)
    asked = tts.generate(text, speed=speed, word_timestamps=True)
    assert asked.duration == pytest.approx(plain.duration * own / speed, rel=0.05)
    assert asked.words[-1].end <= asked.duration + 0.01
    assert tts.generate(text).duration / plain.duration == pytest.approx(own, rel=0.2)


def test_a_mix_is_between_its_voices(tts):
    def style(voice):
        return tts.prompt(tts.request(TEXT, voice=voice)).columns["style"]

    expected = (2 * style("af_bella") + style("af_sky")) / 3
    np.testing.assert_allclose(style("af_bella(2)+af_sky(1)"), expected, atol=1e-6)
    np.testing.assert_allclose(style("AF_Bella(2) + af_sky"), expected, atol=1e-6)
    with pytest.raises(InvalidRequest, match=r"voice: 'af_bella\+nobody' is not known"):
        tts.request(TEXT, voice="af_bella+nobody")


def test_all_voices_are_there_with_what_their_names_say(tts):
    assert len(tts.voices) == 54
    assert tts.spec.default_voice == tts.voices[0] == "af_heart"
    described = tts.spec.voice_descriptions
    assert described["bm_george"] == "British man"
    assert described["zf_xiaobei"] == "Chinese woman"
    assert set(described) == set(tts.voices)


@pytest.mark.parametrize(
    ("voice", "extra", "library"),
    [
        ("ef_dora", "en", "phonemizer"),
        ("ff_siwis", "en", "phonemizer"),
        ("jf_alpha", "ja", "pyopenjtalk"),
        ("zf_xiaobei", "zh", "jieba"),
    ],
)
def test_a_language_whose_reader_is_not_installed_names_it(tts, voice, extra, library):
    if importlib.util.find_spec(library) is not None:
        pytest.skip(f"{library} is installed")
    with pytest.raises(InvalidRequest, match=rf"language: .*pip install 'misaki\[{extra}\]'"):
        tts.generate("Hola", voice=voice)
    assert tts.generate("Hola", voice=voice, language="english").duration > 0.3


def test_japanese_without_its_dictionary_names_the_command(monkeypatch):
    """The package unidic is installed with `misaki[ja]`, its dictionary is not."""

    def without_dictionary():
        raise RuntimeError("Failed initializing MeCab")

    reader = types.ModuleType("misaki.ja")
    reader.JAG2P = without_dictionary
    monkeypatch.setitem(sys.modules, "misaki", types.ModuleType("misaki"))
    monkeypatch.setitem(sys.modules, "misaki.ja", reader)
    with pytest.raises(InvalidRequest, match=r"language: .*python -m unidic download"):
        front_end("japanese")


def test_british_voices_read_british_english(tts):
    def signs(voice):
        return tts.prompt(tts.request("The harbour.", voice=voice)).rows["token"].tolist()

    assert signs("bf_emma") == signs("bm_george") != signs("af_heart")
    assert IDS["ː"] in signs("bf_emma")
    assert IDS["ɹ"] not in signs("bf_emma")


def test_a_text_without_a_sound_of_the_language_is_refused(tts):
    with pytest.raises(InvalidRequest, match="nothing that can be read as english"):
        tts.generate("你好")


def test_a_stream_begins_with_a_clause(tts):
    text = f"{TEXT} {OTHER} {TEXT}"
    first = next(iter(tts.stream(text)))
    assert first.duration < tts.generate(text).duration / 2


def test_text_that_is_still_being_written_is_spoken(tts):
    async def words():
        for word in f"{TEXT} {OTHER}".split():
            yield f"{word} "

    async def spoken():
        return [chunk async for chunk in tts.astream(words())]

    chunks = asyncio.run(spoken())
    assert sum(chunk.duration for chunk in chunks) > tts.generate(TEXT).duration


def test_phonemes_in_a_text_are_read(tts):
    def signs(text):
        return tts.prompt(tts.request(text)).rows["token"].tolist()

    assert signs("[Worcester](/wˈʊstəɹ/) here.") == signs("[Wuster](/wˈʊstəɹ/) here.")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dtype": "float32"}, "dtype: .*graph in 8 bits: leave dtype out"),
        ({"runtime": "torch"}, "has no kokoro-v1_0.pth: its graph runs on a CPU"),
        ({"quantization": "int8"}, "quantization: is no engine option and no load option"),
    ],
)
def test_what_the_graph_cannot_do_is_refused(options, message):
    with pytest.raises((InvalidRequest, CheckpointError), match=message):
        stentor.TTS(kokoro_folder(), device="cpu", **options)


def test_a_part_needs_what_it_is_given_and_the_file_a_model():
    data = memoryview((kokoro_folder() / GRAPH).read_bytes())
    file = OnnxFile(data)
    with pytest.raises(CheckpointError, match="no value 'speed'"):
        file.part({"tokens": INT64, "style": FLOAT}, ["audio"])
    with pytest.raises(CheckpointError, match="no value 'nothing'"):
        file.part({}, ["nothing"])
    for broken in (b"", b"no model", bytes(data[:1000])):
        with pytest.raises(CheckpointError, match="no ONNX model"):
            OnnxFile(memoryview(broken))


def test_tables_that_are_none_are_refused(tmp_path):
    (tmp_path / "voices").mkdir()
    (tmp_path / GRAPH).symlink_to(kokoro_folder() / GRAPH)
    table = tmp_path / "voices" / "af_heart.bin"
    table.write_bytes(b"\0" * 1024)
    with (
        stentor.TTS(tmp_path, device="cpu") as loaded,
        pytest.raises(CheckpointError, match="is no table of 510 styles"),
    ):
        loaded.generate("Hi.")


def test_every_language_but_english_names_an_extra():
    from stentor.models.kokoro.voices import LANGUAGES

    assert set(LANGUAGES.values()) - set(EXTRAS) == {"english", "british english"}

"""Requests to Qwen3-TTS checkpoints: what is accepted, what is refused and how, and what options do."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from stentor import TTS, InvalidRequest, Reference
from stentor.audio import Recording
from stentor.kernels.constants import VECTOR_ID
from stentor.models.base import Prompt, Voice
from stentor.models.dummy import DummyTokenizer
from stentor.models.frame_prompt import TEXT_CAPACITY
from stentor.models.info import ReferenceAudio, SpeechRequest
from stentor.models.qwen3_tts.config import parse
from stentor.models.qwen3_tts.prompt import PromptBuilder
from tests.fixtures.qwen3_tts import tiny_qwen3_tts as tiny
from tests.helpers.released import released
from tests.helpers.stepped_engine import hold

FAST = {"max_frames": 4, "temperature": 0.0}
LANGUAGES = {
    "english", "chinese", "german", "french", "spanish", "italian", "portuguese", "russian", "japanese", "korean"
}  # fmt: skip


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, TTS]]:
    folder = tmp_path_factory.mktemp("qwen3_tts")
    loaded = {
        k: TTS(tiny.write(k, folder / k), device="cpu", max_num_seqs=4, memory_gb=0.05)
        for k in tiny.KINDS
    }
    yield loaded
    for tts in loaded.values():
        tts.close()


def voice(seconds: float, text: str | None = None) -> Reference:
    return Reference((tiny.reference_audio(seconds), 24000), text)


def refused(tts: TTS, param: str, **options: object) -> str:
    with pytest.raises(InvalidRequest) as error:
        tts.generate("Hello.", **FAST, **options)
    assert error.value.param == param
    return error.value.message


# -- who speaks what ------------------------------------------------------------------------------------------------


def test_voices_and_languages_are_listed_and_dialects_are_not_languages(
    models: dict[str, TTS],
) -> None:
    assert models["custom_voice"].voices == ("dylan", "eric", "ryan", "serena", "vivian")
    assert models["base"].voices == models["voice_design"].voices == ()
    for tts in models.values():
        assert set(tts.languages) == LANGUAGES


def test_an_unknown_voice_is_refused_with_the_known_ones(models: dict[str, TTS]) -> None:
    assert "vivian" in refused(models["custom_voice"], "voice", voice="nobody")


def test_an_unknown_language_is_refused_with_the_known_ones(models: dict[str, TTS]) -> None:
    message = refused(models["custom_voice"], "language", language="klingon")
    assert "english" in message
    assert "auto" in message


def test_a_dialect_is_no_language(models: dict[str, TTS]) -> None:
    assert (
        "beijing_dialect"
        not in refused(models["custom_voice"], "language", language="beijing_dialect").split(";")[1]
    )


@pytest.mark.parametrize("kind", ["small", "base"])
def test_instructions_are_refused_where_the_model_takes_none(
    models: dict[str, TTS], kind: str
) -> None:
    more = {"reference": voice(1.0)} if kind == "base" else {}
    refused(models[kind], "instructions", instructions="slowly", **more)


@pytest.mark.parametrize("kind", ["voice_design", "base"])
def test_a_voice_name_is_refused_where_there_are_none(models: dict[str, TTS], kind: str) -> None:
    refused(models[kind], "voice", voice="vivian")


def test_base_models_want_a_reference(models: dict[str, TTS]) -> None:
    assert "reference" in refused(models["base"], "reference")


@pytest.mark.parametrize("kind", ["custom_voice", "voice_design", "small"])
def test_other_models_want_none(models: dict[str, TTS], kind: str) -> None:
    refused(models[kind], "reference", reference=voice(1.0))


@pytest.mark.parametrize("seconds", [0.2, 300.0])
def test_a_reference_too_short_or_too_long_is_refused(
    models: dict[str, TTS], seconds: float
) -> None:
    refused(models["base"], "reference", reference=voice(seconds))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", -0.1), ("top_k", -1), ("top_k", 3073), ("top_p", 1.5), ("repetition_penalty", 0.0),
        ("subtalker_temperature", float("nan")), ("subtalker_top_k", 2049), ("subtalker_top_p", -1.0),
        ("min_frames", -1), ("max_frames", 0), ("non_streaming_mode", 1), ("trim_leading_silence", "yes"),
        ("ignore_eos", 0.5), ("cfg", 2.0),
    ],
)  # fmt: skip
def test_an_option_out_of_range_is_refused_by_name(
    models: dict[str, TTS], name: str, value: object
) -> None:
    with pytest.raises(InvalidRequest, match=name):
        models["custom_voice"].request("Hello.", **{name: value})


def test_the_first_voice_speaks_when_none_is_named(models: dict[str, TTS]) -> None:
    tts = models["custom_voice"]
    unnamed, by_name = tts.generate("Hello.", **FAST), tts.generate("Hello.", voice="Dylan", **FAST)
    assert unnamed.frames.tolist() == by_name.frames.tolist()
    assert tts.generate("Hello.", voice="ryan", **FAST).frames.tolist() != by_name.frames.tolist()


# -- options --------------------------------------------------------------------------------------------------------


def test_ignore_eos_runs_to_max_frames(models: dict[str, TTS]) -> None:
    tts, text = models["custom_voice"], "Hello there, how are you?"
    ends = {"language": "english", "voice": "ryan", "temperature": 0.0}
    short = len(tts.generate(text, **ends, max_frames=40).frames)
    assert short < 40
    speech = tts.generate(text, **ends, max_frames=short + 3, ignore_eos=True)
    assert len(speech.frames) == short + 3
    assert speech.finish_reason == "length"


def test_min_frames_keeps_it_speaking(models: dict[str, TTS]) -> None:
    tts, text = models["custom_voice"], "Hello there, how are you?"
    ends = {"language": "english", "voice": "ryan", "temperature": 0.0}
    short = len(tts.generate(text, **ends, max_frames=60).frames)
    longer = tts.generate(text, **ends, min_frames=short + 3, max_frames=short + 5)
    assert short < short + 3 <= len(longer.frames)


@pytest.mark.parametrize(("first", "left_out"), [(0.0, 1), (1.0, 0)])
def test_trim_leading_silence_leaves_out_the_first_frame_if_it_is_silent(
    models: dict[str, TTS], monkeypatch: pytest.MonkeyPatch, first: float, left_out: int
) -> None:
    tts = models["custom_voice"]
    options = {"voice": "ryan", "max_frames": 9, "temperature": 0.0, "ignore_eos": True}
    plain = tts._model.codec.decode
    fresh = [True]

    def decode(frames, state, call):
        samples, new = plain(frames, state, call)
        if fresh[0]:
            samples[:, :1920] *= first
        fresh[0] = False
        return samples, new

    monkeypatch.setattr(tts._model.codec, "decode", decode)
    untrimmed = tts.generate("Hello.", **options)
    fresh[0] = True
    trimmed = tts.generate("Hello.", **options, trim_leading_silence=True)
    np.testing.assert_allclose(trimmed.samples, untrimmed.samples[1920 * left_out :], atol=1e-5)


def test_temperature_zero_silences_the_subtalkers_dice(models: dict[str, TTS]) -> None:
    tts = models["custom_voice"]
    seeds = [
        tts.generate("Hello.", **FAST, subtalker_temperature=2.0, seed=s).frames.tolist()
        for s in (1, 2)
    ]
    assert seeds[0] == seeds[1]


def test_x_vector_only_clones_without_the_references_codes(models: dict[str, TTS]) -> None:
    tts = models["base"]
    with_words = tts.generate(
        "Hello.", reference=voice(1.0, "some words"), x_vector_only=True, **FAST
    )
    untold = tts.generate("Hello.", reference=voice(1.0), **FAST)
    in_context = tts.generate("Hello.", reference=voice(1.0, "some words"), **FAST)
    assert with_words.frames.tolist() == untold.frames.tolist() != in_context.frames.tolist()


def test_a_speaker_embedding_speaks_as_its_reference_does_by_x_vector(
    models: dict[str, TTS],
) -> None:
    tts, ask = models["base"], {"max_frames": 4, "ignore_eos": True, "seed": 3}
    vector = tts.speaker_embedding(voice(1.0, "some words"))
    assert vector.shape == (tts.spec.speaker_size,)
    for non_streaming in (False, True):
        mode = {**ask, "non_streaming_mode": non_streaming}
        cloned = tts.generate(
            "Hello.", reference=voice(1.0, "some words"), x_vector_only=True, **mode
        )
        for embedding in (vector, vector.tolist()):
            speech = tts.generate("Hello.", speaker_embedding=embedding, **mode)
            np.testing.assert_array_equal(speech.frames, cloned.frames)
            np.testing.assert_array_equal(speech.samples, cloned.samples)
        other = tts.generate("Hello.", speaker_embedding=-vector, **mode)
        assert other.frames.tolist() != cloned.frames.tolist()


def test_what_is_no_speaker_embedding_of_this_model_is_refused(models: dict[str, TTS]) -> None:
    size = models["base"].spec.speaker_size
    for wrong in (
        [0.0] * (size + 1), [[0.0] * size], [], 1.0, "x", ["1"] * size, [True] * size, [[1.0], []], {"a": 1},
        [float("nan")] * size, [1e39] * size, [None] * size,
    ):  # fmt: skip
        refused(models["base"], "speaker_embedding", speaker_embedding=wrong)
    refused(
        models["base"], "speaker_embedding", speaker_embedding=[0.0] * size, reference=voice(1.0)
    )
    for kind in ("custom_voice", "voice_design"):
        refused(models[kind], "speaker_embedding", speaker_embedding=[0.0] * size)
        with pytest.raises(InvalidRequest, match="speaker_embedding"):
            models[kind].speaker_embedding(voice(1.0))


def test_defaults_come_from_generation_config(models: dict[str, TTS]) -> None:
    options = models["custom_voice"].spec.options
    assert (options["temperature"].default, options["top_k"].default, options["top_p"].default) == (
        0.9,
        50,
        1.0,
    )
    assert options["repetition_penalty"].default == 1.05
    assert options["max_frames"].default == 8191


def test_a_starved_engine_speaks_the_same(tmp_path: Path) -> None:
    """Rows that lose their pages are replayed from their own frames."""
    path = tiny.write("base", tmp_path / "base")
    requests = [
        (f"number {i} " * (i + 1), {"reference": voice(0.8 + i / 4, "with words"), "seed": i})
        for i in range(4)
    ]
    options = {"max_frames": 40, "ignore_eos": True, "non_streaming_mode": False}

    def spoken(tts: TTS) -> list[list[list[int]]]:
        """The frames of all. The engine sees none before all are there."""
        checked = [tts.request(text, **more, **options) for text, more in requests]
        prompts = [tts.prompt(request) for request in checked]
        all_there = threading.Event()
        hold(tts)(all_there)
        streams = [
            tts.engine.submit(p, r.seed, streaming=False)
            for p, r in zip(prompts, checked, strict=True)
        ]
        all_there.set()
        return [tts.speech(list(s), 0).frames.tolist() for s in streams]

    with TTS(path, device="cpu", max_num_seqs=4, dtype="float64") as tts:
        want = spoken(tts)
        assert tts.engine.health().preemptions == 0
    with TTS(path, device="cpu", max_num_seqs=4, dtype="float64", memory_gb=0.0002) as tts:
        assert spoken(tts) == want
        assert tts.engine.health().preemptions > 0


# -- prompts --------------------------------------------------------------------------------------------------------


def builder(name: str, max_model_len: int = 32768) -> Callable[..., Prompt]:
    source = released("qwen3_tts", name)
    tokenizer = DummyTokenizer(1000, source.special)
    return PromptBuilder(parse(source.config, name), tokenizer, max_model_len).build


def ask(text: str, **options: object) -> SpeechRequest:
    values = {
        "temperature": 0.9, "top_k": 50, "top_p": 1.0, "repetition_penalty": 1.05, "subtalker_temperature": 0.9,
        "subtalker_top_k": 50, "subtalker_top_p": 1.0, "min_frames": 2, "max_frames": 8191,
        "non_streaming_mode": None, "x_vector_only": False, "trim_leading_silence": False, "ignore_eos": False,
    }  # fmt: skip
    return SpeechRequest(text, options={**values, **options})


def test_streaming_text_takes_ten_rows_with_a_language_and_nine_with_auto() -> None:
    build = builder("qwen3-tts-1.7b-customvoice")
    request = ask("one two three", non_streaming_mode=False)
    request = replace(request, voice="ryan")
    assert build(request, []).length == 9
    prompt = build(replace(request, language="english"), [])
    assert prompt.length == 10
    assert len(prompt.columns["text"]) == 3  # two words and the text's end are still to be heard


def test_a_dialect_speaks_chinese_and_auto_in_dialect_and_english_plainly() -> None:
    build = builder("qwen3-tts-1.7b-customvoice")
    for language, code in (("auto", 2074), ("chinese", 2074), ("english", 2050)):
        request = replace(ask("hello"), voice="dylan", language=language)
        assert build(request, []).rows["code"][5] == code


def test_a_text_too_long_to_stream_is_refused_and_fits_whole() -> None:
    build, text = builder("qwen3-tts-1.7b-customvoice"), "word " * (TEXT_CAPACITY + 10)
    with pytest.raises(
        InvalidRequest,
        match="text: is too long for one request: it has 20530 characters, and about 20475 fit",
    ):
        build(ask(text, non_streaming_mode=False), [])
    prompt = build(ask(text, non_streaming_mode=True), [])
    assert prompt.length > TEXT_CAPACITY
    assert prompt.max_frames == 8191


def test_a_prompt_longer_than_the_model_is_refused() -> None:
    with pytest.raises(InvalidRequest, match=r"it has 3000 characters, and about 24\d\d fit"):
        builder("qwen3-tts-1.7b-voicedesign", 500)(ask("word " * 600), [])


def test_frames_are_limited_by_what_the_prompt_leaves() -> None:
    prompt = builder("qwen3-tts-1.7b-voicedesign", 500)(ask("word " * 100, max_frames=490), [])
    assert prompt.max_frames == 500 - prompt.length


def test_a_clone_hears_its_reference_first() -> None:
    codes = np.arange(5 * 16).reshape(5, 16).astype(np.int32)
    speaker = np.linspace(0, 1, 1024, dtype=np.float32)
    request = replace(
        ask("one two"),
        reference=ReferenceAudio(Recording(np.zeros(9000, np.float32), 24_000), "ref"),
    )
    prompt = builder("qwen3-tts-0.6b-base")(
        request, [Voice("me", {"codes": codes, "speaker": speaker})]
    )
    assert prompt.codec_prefix.tolist() == prompt.frames.tolist() == codes.tolist()
    assert prompt.frame_at.tolist() == list(range(prompt.length - 5, prompt.length))
    assert prompt.rows["code"].tolist().count(VECTOR_ID) == 1
    assert prompt.columns["speaker"] is speaker
    assert prompt.voice == "me"


def test_a_retry_is_offered_only_where_another_seed_could_help() -> None:
    build = builder("qwen3-tts-1.7b-voicedesign")
    assert build(ask("one two"), []).runaway_frames == 192 + 24
    for options in ({"temperature": 0.0}, {"ignore_eos": True}, {"min_frames": 300}):
        assert build(ask("one two", **options), []).runaway_frames is None

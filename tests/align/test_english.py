"""The English aligner: its parts by hand, its network against PyTorch, and whole on speech of the embedded voice."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch

import stentor
from stentor.align.english import EnglishAlignment, word_classes
from stentor.align.network import DELAY, MELS, RATE, STACK, LogMelStream, Network
from stentor.align.path import CLASSES, FLOOR, GAP, SYMBOLS, word_frames
from stentor.speech.words import sounding_words
from stentor.text.marks import TextMarks
from training.train_aligner import Net, export, through_mp3, through_telephone

TEXTS = (
    "The old boats lay in the harbour, waiting for the morning tide.",
    "Please call the office at five thirty, and ask for Mrs. Lee.",
)


@pytest.fixture(scope="module")
def spoken() -> Iterator[list[stentor.Speech]]:
    """By the embedded voice, with the times that its own heads give."""
    with stentor.TTS(device="cpu", max_num_seqs=2) as tts:
        yield tts.generate(list(TEXTS), word_timestamps=True, seed=4, retries=1)


def aligned(samples: np.ndarray, rate: int, text: str, step: int = 10**9) -> np.ndarray:
    """Seconds [words, 2], where the samples come `step` at a time."""
    alignment = EnglishAlignment(rate)
    for at in range(0, len(samples), step):
        alignment.add(samples[at : at + step])
    return np.array(alignment.spans(text.split()))


def test_words_are_where_the_heads_of_the_embedded_voice_find_them(
    spoken: list[stentor.Speech],
) -> None:
    for text, speech in zip(TEXTS, spoken, strict=True):
        times = np.array([(w.start, w.end) for w in speech.words])
        for samples, rate in (
            (speech.samples, speech.sample_rate),
            (through_mp3(speech.samples, speech.sample_rate, 64_000), speech.sample_rate),
            (through_telephone(speech.samples, speech.sample_rate), RATE),
        ):
            error = np.abs(aligned(samples, rate, text) - times)
            assert np.median(error) < 0.05
            assert error.max() < 0.3


def test_chunks_of_any_size_give_the_same_times(spoken: list[stentor.Speech]) -> None:
    speech = spoken[0]
    at_once = aligned(speech.samples, speech.sample_rate, TEXTS[0])
    for step in (speech.sample_rate, 1920, 333):
        np.testing.assert_allclose(
            aligned(speech.samples, speech.sample_rate, TEXTS[0], step), at_once, atol=0.021
        )


def test_words_so_far_are_those_of_the_whole(spoken: list[stentor.Speech]) -> None:
    speech = spoken[0]
    half = speech.samples[: len(speech.samples) // 2]
    complete, part = (aligned(s, speech.sample_rate, TEXTS[0]) for s in (speech.samples, half))
    before_end = complete[:, 1] < len(half) / speech.sample_rate - 0.3
    assert 3 < before_end.sum() < len(complete) - 3
    np.testing.assert_allclose(part[before_end], complete[before_end], atol=0.041)
    assert (
        part[complete[:, 0] > len(half) / speech.sample_rate + 0.3, 0]
        >= len(half) / speech.sample_rate - 0.05
    ).all()


def test_the_network_is_the_one_that_was_trained() -> None:
    torch.manual_seed(3)
    net = Net(torch.randn(STACK * MELS), torch.rand(STACK * MELS) + 0.5)
    silence = torch.randn(STACK * MELS)
    weights = {k: v.float().numpy() for k, v in export(net, silence).items()}
    frames = torch.randn(57, STACK * MELS)
    late = torch.cat((frames, silence.half().float().repeat(DELAY, 1)))
    with torch.inference_mode():
        expected = net(late[None])[0, DELAY:].log_softmax(-1).numpy()
    network = Network(weights)
    parts = [network.feed(frames[a:b].numpy()) for a, b in ((0, 1), (1, 8), (8, 50), (50, 57))]
    rest = network.finish(np.zeros((0, STACK * MELS), np.float32))
    scores = np.concatenate((*parts, rest))
    np.testing.assert_allclose(scores, expected, atol=0.03)  # half precision
    np.testing.assert_array_equal(network.finish(np.zeros((0, STACK * MELS), np.float32)), rest)


def test_frames_do_not_depend_on_how_samples_are_cut() -> None:
    samples = np.random.default_rng(0).normal(0, 0.1, 5000).astype(np.float32)
    at_once, many = LogMelStream().finish(samples), LogMelStream()
    *first, last = np.split(samples, (1, 2, 400, 401, 3000))
    parts = [many.feed(part) for part in first]
    for _ in range(2):  # the end may be asked for and more fed
        np.testing.assert_allclose(np.concatenate((*parts, many.finish(last))), at_once, atol=1e-4)
    assert len(at_once) == -(-len(samples) // (RATE // 50))


def test_the_way_passes_over_gaps_and_ends_where_the_audio_does() -> None:
    a, b, c = (SYMBOLS.index(s) + 1 for s in "stn")
    kinds = [GAP, a, a, b, c, c, GAP, GAP]
    scores = np.full((len(kinds), CLASSES), -8.0)
    scores[np.arange(len(kinds)), kinds] = 0.0
    assert word_frames(scores, [[a], [b, c]]) == [(1, 3), (3, 6)]
    assert word_frames(scores, [[a, b], [c], [b, a]]) == [
        (1, 4),
        (4, 6),
        (np.inf, np.inf),
    ]  # the last is not reached


def likeliest(scores: np.ndarray, states: list[int]) -> float:
    """The score of the best of all ways: each gap, at even states, may be passed over."""
    best = np.full(len(states), -np.inf)
    for t, row in enumerate(np.maximum(scores, FLOOR)):
        before, best = best, np.full(len(states), -np.inf)
        for i, kind in enumerate(states):
            came = [
                before[i],
                *before[max(i - 1, 0) : i],
                *(before[i - 2 : i - 1] if i % 2 and i > 1 else []),
            ]
            best[i] = (0.0 if t == 0 and i < 2 else max(came)) + row[kind]
    return float(max(best[:-2].max(), best[-2:].max() + 12.0))


@pytest.mark.parametrize("seed", range(6))
def test_no_other_way_is_likelier(seed: int) -> None:
    draw = np.random.default_rng(seed)
    words = [[int(kind)] for kind in draw.integers(1, CLASSES, 9)]
    states = [GAP, *(kind for word in words for kind in (*word, GAP))]
    scores = draw.normal(-4, 3, (1040, CLASSES))  # across the border of two blocks
    spans = word_frames(scores, words)
    way = np.full(len(scores), -1)
    for i, (first, behind) in enumerate(spans):
        way[int(first) : int(behind)] = 2 * i + 1
    gaps = np.searchsorted([first for first, _ in spans], np.arange(len(scores)), "right") * 2
    way = np.where(way < 0, gaps, way)
    likelihood = (
        np.maximum(scores, FLOOR)[np.arange(len(scores)), np.array(states)[way]].sum() + 12.0
    )
    assert likelihood == pytest.approx(likeliest(scores, states))


def test_a_long_text_is_followed_to_its_end_in_little_memory() -> None:
    draw = np.random.default_rng(1)
    words = [list(draw.integers(1, CLASSES, draw.integers(2, 6))) for _ in range(600)]
    kinds = [kind for word in words for kind in (*np.repeat(word, 2), GAP)]
    scores = np.full((len(kinds), CLASSES), -8.0, np.float32)
    scores[np.arange(len(kinds)), kinds] = 0.0
    starts = np.cumsum([0, *(2 * len(word) + 1 for word in words[:-1])])
    assert [first for first, _ in word_frames(scores, words)] == list(starts)


def test_words_have_the_phonemes_that_are_read_and_marks_none() -> None:
    classes = word_classes(["Call", "", "—", "5", "[", "now."])
    assert [len(f) > 0 for f in classes] == [True, False, False, True, False, True]
    assert [SYMBOLS[k - 1] for k in classes[0]] == ["k", "ɔ", "l"]


def test_a_familys_marks_are_no_words() -> None:
    marks = TextMarks(speaker=r"<\d>", other=r"\[\w+\]")
    assert sounding_words("<0> Well, [laughs] it—went [sighs]away.", marks) == [
        "",
        "Well,",
        "",
        "it—",
        "went",
        "away.",
    ]
    assert sounding_words("[no] marks", TextMarks()) == ["[no]", "marks"]


def test_silence_and_no_words_have_no_times() -> None:
    assert EnglishAlignment(24_000).spans(["a", "b"])[1] == (np.inf, np.inf)
    silent = EnglishAlignment(24_000)
    silent.add(np.zeros(24_000, np.float32))
    assert silent.spans(["—", "..."]) == [None, None]

"""CosyVoice3 equals the values of the official modules (tests/fixtures/cosyvoice3/README.md), by way of the engine."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from stentor import TTS
from stentor.config import Policy
from stentor.engine.running import step
from stentor.errors import InvalidRequest
from stentor.models.base import Emit, Rows
from stentor.models.cosyvoice3.config import MAX_SILENT
from stentor.models.cosyvoice3.live_text import turn_of
from stentor.models.cosyvoice3.model import SILENT
from tests.fixtures.cosyvoice3 import tiny_cosyvoice3 as tiny
from tests.helpers.patience import until
from tests.helpers.stepped_engine import read_at_once

E = tiny.expected()
UNIFORMS = {1000 + i: np.random.default_rng(i).random((4096, 2)) for i in range(3)}
"""The draws of the official run, by the seed of the request that gets them."""
SYSTEM = 7  # ids of the prompt text up to and including <|endofprompt|>
CASES: dict[str, dict[str, Any]] = {
    "ras_zero_shot": {"text": tiny.spelled(E["text"]), "voice": "words", "seed": 1000},
    "ras_instruct2": {
        "text": tiny.spelled(E["text"]),
        "voice": "mute",
        "instructions": tiny.spelled(E["prompt_text"][:SYSTEM]),
        "seed": 1001,
    },
    "ras_cross_lingual": {
        "text": tiny.spelled(np.concatenate((E["prompt_text"][:SYSTEM], E["text"]))),
        "voice": "mute",
        "seed": 1002,
    },
    "greedy": {"text": tiny.spelled(E["text"]), "voice": "words", "temperature": 0.0, "seed": 1},
}
CHAIN = 1e-2  # of the peak: through a mel that is off by rounding
STREAM = 1e-3  # of the peak
VOICE = {"text": "Ab", "voice": "flow", "max_frames": 200, "seed": 2}


def with_official_draws(seed: Tensor, at: Tensor, draws: int) -> Tensor:
    """`uniform`, where seeds of the official run have its draws, in float64."""
    u = UNIFORM(seed, at, draws).double()
    for row, (s, n) in enumerate(zip(seed.tolist(), at.tolist(), strict=True)):
        if s in UNIFORMS:
            u[row] = torch.from_numpy(UNIFORMS[s][n])
    return u


UNIFORM = step.uniform


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Iterator[Any]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("stentor.models.cosyvoice3.codec_noise.source_noise", tiny.source_noise)
        patch.setattr(step, "uniform", with_official_draws)
        yield tiny.write(tmp_path_factory.mktemp("cosyvoice3"))


@pytest.fixture(scope="module")
def tts(folder) -> Iterator[TTS]:
    with TTS(folder, device="cpu", max_num_seqs=6, threads=1) as model:
        yield model


def heard(codes: np.ndarray) -> list[int]:
    """Without codes of silence from the sixth in a row on, which the original does not give to its flow."""
    kept, silent = [], 0
    for code in codes.tolist():
        silent = silent + 1 if code in SILENT else 0
        kept += [code] if silent <= MAX_SILENT else []
    return kept


def check(name: str, speech) -> None:
    """An utterance of twenty codes for each token of text has no end of its own."""
    tokens = len(E["text"]) + (SYSTEM if name == "ras_cross_lingual" else 0)
    assert speech.frames[:, 0].tolist() == heard(E[name])
    assert len(speech.samples) == 960 * len(speech.frames)
    assert speech.finish_reason == ("length" if len(E[name]) == 20 * tokens else "stop")


@pytest.mark.parametrize("name", CASES)
def test_a_request_alone_gives_the_official_codes(tts: TTS, name: str):
    check(name, tts.generate(**CASES[name], retries=1))


def test_requests_together_with_others_give_the_official_codes(tts: TTS):
    others = [
        {"text": "AbAcAd", "voice": "flow", "max_frames": 30, "seed": 5},
        {**CASES["greedy"], "max_frames": 11},
    ]
    alone = [tts.generate(**o, retries=1) for o in others]
    streams = [tts.submit(tts.request(**r)) for r in (*others, *CASES.values())]
    together = [tts.speech(list(s), s.seed) for s in streams]
    for name, speech in zip(CASES, together[len(others) :], strict=True):
        check(name, speech)
    for a, b in zip(alone, together, strict=False):
        assert a.frames.tolist() == b.frames.tolist()
        assert error(b.samples, a.samples) < CHAIN


def error(got: np.ndarray, want: np.ndarray) -> float:
    assert got.shape == want.shape
    return float(np.abs(got - want).max() / np.abs(want).max())


def say_official_codes(tts: TTS, monkeypatch: pytest.MonkeyPatch) -> None:
    """The language model says the codes of the official chain."""
    codes = torch.from_numpy(E["flow_token"])

    def emit(h: Any, rows: Rows, u: Tensor) -> Emit:
        at = rows["step"]
        frame = codes[at.clamp_max(len(codes) - 1)][:, None]
        return Emit(
            frame,
            at >= len(codes),
            {"silent": torch.zeros_like(at)},
            torch.ones_like(at, dtype=torch.bool),
        )

    monkeypatch.setattr(tts._model, "emit", emit)


@pytest.fixture
def given(tts: TTS, monkeypatch: pytest.MonkeyPatch) -> None:
    say_official_codes(tts, monkeypatch)


def test_an_utterance_that_is_not_streamed_is_the_official_offline_one(tts: TTS, given: None):
    samples = tts.generate(**VOICE, retries=1).samples
    mel = torch.from_numpy(E["mel_full"]).T
    of_mel = tiny.audio_of(tts._model.codec.vocoder, mel).numpy()
    assert error(samples, of_mel) < CHAIN
    tail = E["official_whole_tail"]
    assert error(samples[-len(tail) :], tail) < CHAIN


def spoken(stream) -> np.ndarray:
    return np.concatenate([c.samples for c in stream])


def test_a_stream_is_the_official_one_with_its_last_chunk(tts: TTS, given: None):
    """By itself, batched with others, and whatever was streamed before it.

    The hop is the request's: in the original it belongs to the model and is never reset.
    """
    first = list(tts.stream(**VOICE))
    other = tts.submit(tts.request(**{**VOICE, "voice": "words", "max_frames": 40}))
    second = list(tts.stream(**VOICE))
    spoken(other)
    prefix = tiny.PROMPT
    sizes = [25 + -prefix % 25, 50]
    for chunks in (first, second):
        frames = [len(c.frames) for c in chunks]
        assert frames[:-1] == sizes
        assert sum(frames) == len(E["flow_token"])
        assert error(spoken(chunks), E["official_stream"]) < STREAM


def test_a_streams_first_chunks_are_of_the_chunk_masked_mel(tts: TTS, given: None):
    mel = torch.from_numpy(E["mel_chunked"]).T
    of_mel = tiny.audio_of(tts._model.codec.vocoder, mel).numpy()
    chunks = list(tts.stream(**VOICE))
    samples = spoken(chunks[:-1])
    assert error(samples, of_mel[: len(samples)]) < CHAIN


def test_streams_in_one_call_have_the_audio_of_streams_by_themselves(tts: TTS, given: None):
    """Voices whose codes are not multiples of one another, so that their chunks have other lengths."""
    requests = [
        {**VOICE, "voice": voice, "max_frames": count}
        for voice, count in (("words", 95), ("words37", 95), ("words45", 40), ("mute", 95))
    ]
    alone = [spoken(tts.submit(tts.request(**r))) for r in requests]
    streams = [tts.submit(tts.request(**r)) for r in requests]
    for samples, stream in zip(alone, streams, strict=True):
        assert error(spoken(stream), samples) < CHAIN


def test_silent_codes_from_the_sixth_in_a_row_on_are_not_heard(
    tts: TTS, monkeypatch: pytest.MonkeyPatch
):
    """They count for the limit, and the language model goes on from them."""
    said = [5, 1, 2, 1, 2, 28, 1, 1, 9, 1, 7]
    steps: list[int] = []

    def sample(logits: Tensor, *_: Any) -> Tensor:
        steps.append(len(logits))
        return torch.tensor([said[min(len(steps), len(said)) - 1]])  # a step may run behind the end

    monkeypatch.setattr("stentor.models.cosyvoice3.model.sample_ras", sample)
    speech = tts.generate("Ab", voice="flow", max_frames=len(said), seed=3, retries=1)
    assert speech.frames[:, 0].tolist() == [5, 1, 2, 1, 2, 28, 9, 1, 7]
    assert len(speech.samples) == 960 * 9


@pytest.mark.parametrize(
    ("likeliest", "options", "count"),
    [
        ("end", {}, 0),
        ("unused", {}, 0),
        ("start", {}, None),
        ("end", {"min_frames": 3}, 3),
        ("unused", {"min_frames": 3}, 3),
    ],
)
def test_any_special_code_ends_and_below_the_official_least_only_the_start_is_masked(
    tts: TTS,
    monkeypatch: pytest.MonkeyPatch,
    likeliest: str,
    options: dict[str, int],
    count: int | None,
) -> None:
    """The original masks the start where it means the end. `min_frames` masks all."""
    c = tts._model.config.language
    special, plain = (
        {"start": c.start, "end": c.end, "unused": c.fill + 5}[likeliest],
        tts._model.language.logits,
    )

    def steered(h: Tensor) -> Tensor:
        z = torch.full_like(plain(h), -1e9)
        z[:, 7], z[:, special] = 0.0, 1e3
        return z

    monkeypatch.setattr(tts._model.language, "logits", steered)
    asked = {**VOICE, "temperature": 0.0, **options}
    least = int(
        tts.prompt(tts.request(**asked)).columns["start_from"]
    )  # twice the tokens of the text
    speech = tts.generate(**asked, retries=1)
    assert (speech.frames[:, 0].tolist(), speech.finish_reason) == (
        [7] * (least if count is None else count),
        "stop",
    )


def test_preempted_requests_give_the_official_codes(folder):
    # layers, keys and values, heads, dimensions, tokens, bytes: one page
    kv = 2 * 2 * 2 * 12 * 16 * 4
    sizes = {"max_num_seqs": 4, "memory_gb": 30 * kv / 2**30}
    policy = Policy(max_prefill_delay=0)
    with TTS(folder, device="cpu", threads=1, policy=policy, **sizes) as poor:
        with read_at_once(poor):
            streams = [poor.submit(poor.request(**r)) for r in CASES.values()]
        for name, stream in zip(CASES, streams, strict=True):
            check(name, poor.speech(list(stream), stream.seed))
        assert poor.engine.health().preemptions > 0


# -- text that comes while the model speaks --

LIVE = {  # voice, tokens of the text, draws after which the model ends, and the one at which it asks for text
    "bistream": ("words", 12, 55, None),
    "bistream_37": ("words37", 12, 70, None),
    "bistream_45": ("words45", 12, 70, None),
    "bistream_early_fill": ("words", 12, 55, 2),
    "bistream_short_text": ("words", 3, 20, None),
}


def steer(model: Any, monkeypatch: pytest.MonkeyPatch, last: int, asks_at: int | None) -> None:
    """Steer one row as the official run steered its model, with its draws."""
    c, uniforms, draws = model.config.language, np.random.default_rng(17).random((4096, 2)), [0]
    emit, logits = model.emit, model.language.logits

    def steered(h: Tensor) -> Tensor:
        z = logits(h).clone()
        z[:, c.start] = z[:, c.task :] = -1e9
        z[:, c.end] = -1e9 if draws[0] - 1 < last else 1e3
        if draws[0] == asks_at:
            z[:, c.fill] = 1e3
        return z

    def counted(h: Any, rows: Rows, u: Tensor) -> Emit:
        turn = turn_of(rows)
        made = emit(h, rows, torch.from_numpy(uniforms[draws[0]])[None])
        draws[0] += int(turn.draws & ~turn.forced)
        return made

    monkeypatch.setattr(model.language, "logits", steered)
    monkeypatch.setattr(model, "emit", counted)


@pytest.mark.parametrize("at_once", [False, True])
@pytest.mark.parametrize("name", LIVE)
def test_text_that_comes_while_the_model_speaks_gives_the_official_codes(
    tts: TTS, monkeypatch: pytest.MonkeyPatch, name: str, at_once: bool
):
    """However it comes: token by token, each when the model waits for it, or all of it but a token before it begins."""
    voice, count, last, asks_at = LIVE[name]
    tokens = [tiny.spelled(E["text"][i : i + 1]) for i in range(count)]
    steer(tts._model, monkeypatch, last, asks_at)
    monkeypatch.setattr(
        "stentor.models.cosyvoice3.live_text.settled", len
    )  # no two of these tokens merge
    first = "".join(tokens[:-1]) if at_once else tokens[0]
    stream = tts.submit(tts.request(first, voice=voice, seed=1, live=True))
    for token in tokens[count - 1 if at_once else 1 :]:
        until(lambda: all(s.idle for s in tts.engine.scheduler.live))
        stream.append(token)
    stream.append("", last=True)
    chunks = list(stream)
    frames = np.concatenate([c.frames for c in chunks])[:, 0]
    assert frames.tolist() == heard(E[name])
    assert sum(len(c.samples) for c in chunks) == 960 * len(frames)
    assert chunks[-1].finish == "stop"


@pytest.mark.parametrize(("likeliest", "count"), [("end", 0), ("unused", 0), ("start", 20)])
def test_special_codes_ask_for_text_as_long_as_it_goes_on_and_then_end(
    tts: TTS, monkeypatch: pytest.MonkeyPatch, likeliest: str, count: int
):
    """The start is not drawn meanwhile: five codes and then fifteen go before the rest of the text."""
    c, plain = tts._model.config.language, tts._model.language.logits

    def steered(h: Tensor) -> Tensor:
        z = torch.full_like(plain(h), -1e9)
        z[:, 7], z[:, {"start": c.start, "end": c.end, "unused": c.fill + 5}[likeliest]] = 0.0, 1e3
        return z

    monkeypatch.setattr(tts._model.language, "logits", steered)
    asked = {"voice": "words", "temperature": 0.0, "seed": 1, "live": True}
    stream = tts.submit(tts.request(tiny.spelled(E["text"]), **asked))
    stream.append("", last=True)
    chunks = list(stream)
    assert [code for c in chunks for code in c.frames[:, 0].tolist()] == [7] * count
    assert chunks[-1].finish == "stop"


def test_a_voice_without_words_takes_no_text_that_goes_on(tts: TTS):
    with pytest.raises(InvalidRequest, match="live: a voice whose words are known"):
        tts.submit(tts.request("Ab", voice="mute", live=True))


def test_a_text_that_goes_on_is_the_same_beside_others_and_preempted(
    folder, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("stentor.models.cosyvoice3.live_text.settled", len)
    kv = 2 * 2 * 2 * 12 * 16 * 4
    sizes = {"device": "cpu", "threads": 1, "policy": Policy(max_prefill_delay=0)}
    live = {"voice": "words", "seed": 4, "max_frames": 70, "live": True}
    frames = []
    for pages in (64, 12):
        with TTS(folder, max_num_seqs=3, memory_gb=pages * kv / 2**30, **sizes) as tts:
            texts = [] if pages == 64 else ["Ab", "Ac"]
            other = VOICE | {"max_frames": 90, "ignore_eos": True}
            with read_at_once(tts):
                others = [tts.submit(tts.request(**other | {"text": t}), False) for t in texts]
                stream = tts.submit(tts.request(tiny.spelled(E["text"]), **live))
            stream.append(tiny.spelled(E["text"][:5]), last=True)
            frames.append(np.concatenate([c.frames for c in stream])[:, 0].tolist())
            for whole in others:
                list(whole)
            preempted = tts.engine.health().preemptions
    assert frames[0] == frames[1]
    assert preempted > 0

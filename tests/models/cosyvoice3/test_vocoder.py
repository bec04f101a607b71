"""The vocoder meets the official values: whole, and in calls of fixed shape with state, at any place in a stream."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from stentor.models.cosyvoice3 import checkpoint, codec_noise
from stentor.models.cosyvoice3.codec_source import FRAME
from stentor.models.cosyvoice3.codec_vocoder import DELAY, Vocoder
from stentor.models.cosyvoice3.config import FlowConfig, VocoderConfig
from stentor.models.weights import load_weights, meta_init, read_pickle
from tests.fixtures.cosyvoice3 import tiny_cosyvoice3 as tiny

E = {name: torch.from_numpy(value) for name, value in tiny.expected().items() if value.ndim}
MEL = E["hift_mel"].T
FRAMES = len(MEL)
MOST = 3e-5  # of the largest; the issue allows 1e-3
UNKNOWN = 2**40


def error(got: Tensor, want: Tensor) -> float:
    assert got.shape == want.shape
    return float((got - want).abs().max() / want.abs().max())


@pytest.fixture(scope="module")
def vocoder() -> Vocoder:
    sizes = tiny.sizes()["hift"]
    with meta_init():
        made = Vocoder(VocoderConfig(sizes["base_channels"], sizes["f0_channels"]))
    load_weights(made, checkpoint.read_vocoder(tiny.FIXTURE), "hift.pt", torch.device("cpu"))
    made.process_weights_after_loading(tiny.source_noise(None, 10**6), torch.float32)
    return made.requires_grad_(False)


def streamed(
    vocoder: Vocoder, frames: int, size: int, rows: list[tuple[int, Tensor]]
) -> list[Tensor]:
    """Audio of streams in calls of `size` frames: each row has the frames before its stream, and its mel [n, 80]."""
    at = torch.tensor([-before for before, _ in rows])
    ends = torch.tensor([len(mel) for _, mel in rows])
    state = {n: c.rows(len(rows)) for n, c in vocoder.columns.items()}
    given = [F.pad(mel, (0, 0, before, frames + size), value=9.0) for before, mel in rows]
    parts = []
    for start in range(0, frames, size):
        known = torch.where(at + size >= ends, ends, UNKNOWN)
        mel = torch.stack([g[start : start + size] for g in given])
        samples, state = vocoder(mel, at, known, state)
        parts.append(samples)
        at = at + size
    joined = torch.cat(parts, dim=1)
    skip = [FRAME * before + DELAY for before, _ in rows]
    return [
        row[s : s + FRAME * len(mel)] for row, s, (_, mel) in zip(joined, skip, rows, strict=True)
    ]


def test_a_whole_mel_gives_the_official_audio(vocoder: Vocoder):
    assert error(tiny.audio_of(vocoder, MEL), E["hift_wav"]) < MOST


def test_frames_behind_the_end_change_nothing(vocoder: Vocoder):
    padded = F.pad(MEL, (0, 0, 0, 7), value=3.0)
    samples = tiny.audio_of(vocoder, padded, FRAMES)
    assert error(samples[: FRAME * FRAMES], E["hift_wav"]) < MOST


@pytest.mark.parametrize(("size", "before"), [(5, 0), (7, 3), (50, 0), (50, 26), (50, 54)])
def test_calls_joined_equal_the_whole_for_rows_of_other_places_and_ends(
    vocoder: Vocoder, size: int, before: int
):
    short = MEL[:73]
    a, b = streamed(vocoder, 56 + FRAMES + 10, size, [(before, MEL), (2, short)])
    assert error(a, E["hift_wav"]) < MOST
    assert error(b, tiny.audio_of(vocoder, short)) < MOST


@pytest.mark.parametrize("before", [0, 3, 50])
def test_frames_decoded_ahead_do_not_move_the_state(vocoder: Vocoder, before: int):
    """A stream's first call, with frames before it, and the next: samples and state of two calls in one."""
    state = {n: c.rows(1) for n, c in vocoder.columns.items()}
    for call in range(2):
        at, known = torch.tensor([50 * call - before]), torch.tensor([UNKNOWN])
        mel = F.pad(MEL, (0, 0, before, 0))[None, 50 * call : 50 * call + 50]
        samples, want = vocoder(mel, at, known, state)
        owed, _ = vocoder(torch.zeros(1, 5, 80), at + 50, known, want)
        together, state = vocoder(F.pad(mel, (0, 0, 0, 5)), at, known, state, torch.tensor([5]))
        assert error(together, torch.cat((samples, owed), dim=1)) < MOST
        assert state.keys() == want.keys()
        for name, value in want.items():
            torch.testing.assert_close(state[name], value, msg=name)


def test_rows_that_keep_other_numbers_of_frames_go_on_from_their_own(vocoder: Vocoder):
    """Rows of a call end at other frames, and what stands behind them has any values."""
    counts = [50, 38]
    state = {n: c.rows(2) for n, c in vocoder.columns.items()}
    mel = torch.stack([F.pad(MEL[:n], (0, 0, 0, 55 - n), value=2.0) for n in counts])
    zero = torch.zeros(2, dtype=torch.int64)
    unknown = torch.full((2,), UNKNOWN)
    _, together = vocoder(mel, zero, unknown, state, 55 - torch.tensor(counts))
    for row, count in enumerate(counts):
        first = {n: c.rows(1) for n, c in vocoder.columns.items()}
        _, alone = vocoder(MEL[None, :count], zero[:1], unknown[:1], first)
        for name, value in alone.items():
            torch.testing.assert_close(together[name][row], value[0], msg=name)


def pitch(vocoder: Vocoder, precision: torch.dtype) -> Tensor:
    from stentor.layers.conv import StreamingState

    mel = F.pad(MEL, (0, 0, 0, 3)).T[None]
    state = {n: c.rows(1) for n, c in vocoder.columns.items()}
    alive = torch.ones(1, FRAMES, dtype=torch.bool)
    return vocoder.pitch(mel.to(precision).double(), alive, StreamingState(state))[0]


def test_pitch_is_the_official_one_in_float64(vocoder: Vocoder):
    assert all(p.dtype == torch.float64 for p in vocoder.pitch.parameters())
    assert error(pitch(vocoder, torch.float32), E["hift_f0"]) < 1e-6


def test_the_source_is_the_official_one(vocoder: Vocoder):
    state = {n: c.rows(1) for n, c in vocoder.source.columns().items()}
    samples, _ = vocoder.source(E["hift_f0"][None], torch.tensor([0]), state)
    assert error(samples[0, : len(E["hift_source"])], E["hift_source"]) < MOST


def test_the_sines_stand_still_within_a_frame(vocoder: Vocoder):
    noise = vocoder.source.noise
    vocoder.source.noise = torch.zeros_like(noise)
    state = {n: c.rows(1) for n, c in vocoder.source.columns().items()}
    samples, _ = vocoder.source(E["hift_f0"][None], torch.tensor([0]), state)
    vocoder.source.noise = noise
    frames = samples[0].view(-1, FRAME)
    assert torch.equal(frames, frames[:, :1].expand_as(frames))


def test_names_may_have_the_prefix_of_a_trained_generator(tmp_path):
    tensors = {
        f"generator.{name}": value for name, value in read_pickle(tiny.FIXTURE / "hift.pt").items()
    }
    torch.save(tensors, tmp_path / "hift.pt")
    found, plain = checkpoint.read_vocoder(tmp_path), checkpoint.read_vocoder(tiny.FIXTURE)
    assert found.keys() == plain.keys()


def test_the_noise_of_the_source_is_what_the_official_constructors_leave():
    """In their order: the flow's noise, its layers, the pitch predictor, phases. No file holds it."""
    c = FakeConfig(FlowConfig(50, 8, 8, 1, 1, 8, 16, 0.7), VocoderConfig(32, 24))
    with torch.random.fork_rng():
        torch.manual_seed(0)
        torch.randn(1, 80, 15000)
        torch.nn.Embedding(50, 80), torch.nn.Linear(192, 80), torch.nn.Conv1d(80, 24, 4)
        for _ in range(4):
            torch.nn.Conv1d(24, 24, 3)
        torch.nn.Linear(24, 1)
        torch.rand(1, 9)
        table = torch.rand(100, 9)
    assert torch.equal(codec_noise.source_noise(c, 100), table)
    assert torch.equal(codec_noise.source_noise(c, 40), table[:40])


def test_the_tests_have_the_noise_of_the_official_run():
    assert torch.equal(tiny.source_noise(None, 100), E["source_noise"])


class FakeConfig:
    def __init__(self, flow: FlowConfig, vocoder: VocoderConfig) -> None:
        self.flow, self.vocoder = flow, vocoder

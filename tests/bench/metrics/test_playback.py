"""The playback figures as pure functions."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stentor.bench.metrics.measure import onset, play, played_at
from tests.bench.fake_server import silence, tone

RATE = 24000
streams = st.lists(
    st.tuples(st.floats(0, 0.5), st.integers(1, 12000)), min_size=1, max_size=30
).map(
    lambda rows: (
        np.cumsum([gap for gap, _ in rows]),
        np.array([n for _, n in rows], dtype=np.int64),
    )
)


def slow_play(times, counts):
    """The recursion of the definition: starts, stalls under the resetting rule, lateness under the other."""
    starts, stalls, late, received, free_at = [], [], 0.0, 0.0, times[0]
    for at, count in zip(times, counts, strict=True):
        if at > free_at + 1e-9:
            stalls.append(at - free_at)
        starts.append(max(at, free_at))
        free_at = starts[-1] + count / RATE
        late = max(late, at - times[0] - received)
        received += count / RATE
    return starts, stalls, late


@given(streams)
def test_playback_equals_the_recursion_that_defines_it(stream):
    times, counts = stream
    starts, stalls, late = slow_play(times, counts)
    played = play(times, counts, RATE)
    assert played.starts == pytest.approx(starts, abs=1e-9)
    assert played.stalls == pytest.approx(stalls, abs=1e-8)
    assert played.start_buffer == pytest.approx(late, abs=1e-9)


@given(streams)
def test_waiting_for_the_start_buffer_removes_every_stall_and_nothing_less_does(stream):
    times, counts = stream
    needed = play(times, counts, RATE).start_buffer
    delayed = times.copy()
    delayed[0] += needed
    late = delayed[1:] - (delayed[0] + np.cumsum(counts)[:-1] / RATE)
    assert late.max(initial=0.0) <= 1e-9
    if needed > 0.002:
        delayed[0] -= 0.001
        late = delayed[1:] - (delayed[0] + np.cumsum(counts)[:-1] / RATE)
        assert late.max() > 0


@given(streams)
def test_the_stalls_of_the_resetting_rule_add_up_to_the_start_buffer(stream):
    played = play(*stream, RATE)
    assert played.stalls.sum() == pytest.approx(played.start_buffer, abs=1e-7)


@pytest.mark.parametrize("rate", [8000, 16000, 22050, 24000, 44100, 48000])
@pytest.mark.parametrize("lead", [0.0, 0.05, 0.123, 0.4999, 1.7])
def test_the_onset_of_a_tone_after_silence_is_found_to_two_milliseconds(rate, lead):
    samples = np.concatenate([silence(lead, rate), tone(0.3, rate)])
    assert onset(samples, rate) / rate == pytest.approx(lead, abs=0.002)


@pytest.mark.parametrize(("level_dbfs", "audible"), [(-44.0, True), (-46.0, False)])
def test_minus_45_dbfs_rms_is_the_limit_of_audible(level_dbfs, audible):
    amplitude = 10 ** (level_dbfs / 20) * np.sqrt(2)  # a sine's RMS is its amplitude less 3 dB
    assert (onset(tone(0.5, level=amplitude), RATE) is not None) is audible


def test_one_loud_frame_is_a_click_and_not_an_onset():
    samples = silence(1.0)
    samples[round(0.3005 * RATE) : round(0.3015 * RATE)] = 0.02  # RMS over 20 ms: -47 dBFS
    samples[round(0.7 * RATE) :] = tone(0.3)
    assert onset(samples, RATE) / RATE == pytest.approx(0.7, abs=0.002)


def test_noise_below_the_limit_is_leading_silence():
    rng = np.random.default_rng(0)
    samples = np.concatenate([rng.normal(0, 0.001, RATE).astype(np.float32), tone(0.3)])
    assert onset(samples, RATE) / RATE == pytest.approx(1.0, abs=0.002)


@pytest.mark.parametrize("seconds", [0.0, 0.01, 0.029])
def test_audio_shorter_than_two_frames_is_not_audible(seconds):
    assert onset(tone(seconds), RATE) is None


def test_a_sample_is_heard_when_its_chunk_plays_plus_its_place_in_it():
    times, counts = np.array([1.0, 1.5]), np.array([2400, 2400])
    starts = play(times, counts, RATE).starts
    assert played_at(1200, starts, counts, RATE) == pytest.approx(1.05)
    assert played_at(2400, starts, counts, RATE) == pytest.approx(1.5)
    assert played_at(3600, starts, counts, RATE) == pytest.approx(1.55)

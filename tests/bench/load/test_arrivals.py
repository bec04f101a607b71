"""Arrivals have the distribution they claim, the load they were asked for, and depend on the seed alone."""

import numpy as np
import pytest
from scipy import stats

from stentor.bench.load.generator import Ramp, fixed_count, fixed_duration, ramped


@pytest.mark.parametrize("burstiness", [0.25, 0.5, 1.0, 2.0, 8.0])
def test_gaps_follow_the_gamma_distribution_of_that_burstiness(burstiness):
    gaps = np.diff(fixed_count(20_000, 10.0, burstiness, seed=1), prepend=0.0)
    law = stats.gamma(a=burstiness, scale=1 / (10.0 * burstiness))
    assert stats.kstest(gaps, law.cdf).pvalue > 0.01
    assert gaps.std() / gaps.mean() == pytest.approx(burstiness**-0.5, rel=0.05)


def test_burstiness_one_is_a_poisson_process():
    times = fixed_duration(2000.0, 10.0, 1.0, seed=2)
    assert stats.kstest(np.diff(times), stats.expon(scale=0.1).cdf).pvalue > 0.01
    # Counts in windows of one second: mean and variance are both the rate, and the whole law is Poisson's.
    counts = np.bincount(times.astype(int), minlength=2000)
    assert counts.mean() == pytest.approx(10, rel=0.03)
    assert counts.var() == pytest.approx(10, rel=0.12)
    edges = np.arange(4, 18)
    observed = [
        (counts <= 4).sum(),
        *[(counts == k).sum() for k in edges[1:-1]],
        (counts >= 17).sum(),
    ]
    law = stats.poisson(10)
    expected = [law.cdf(4), *law.pmf(edges[1:-1]), law.sf(16)]
    assert stats.chisquare(observed, np.array(expected) * 2000).pvalue > 0.01


def test_gaps_do_not_depend_on_each_other():
    gaps = np.diff(fixed_count(20_000, 5.0, 1.0, seed=3))
    assert abs(np.corrcoef(gaps[:-1], gaps[1:])[0, 1]) < 0.02


def test_another_distribution_would_be_noticed():
    gaps = np.diff(fixed_count(20_000, 10.0, 2.0, seed=1))
    assert stats.kstest(gaps, stats.expon(scale=0.1).cdf).pvalue < 1e-6


@pytest.mark.parametrize("count", [1, 7, 1000])
def test_a_fixed_count_offers_exactly_the_rate_asked_for(count):
    times = fixed_count(count, 4.0, 1.0, seed=5)
    assert times.size == count
    assert times[-1] == pytest.approx(count / 4.0)


def test_a_fixed_duration_fills_the_window_and_no_more():
    times = fixed_duration(30.0, 20.0, 0.5, seed=6)
    assert times[0] >= 0
    assert times[-1] < 30.0
    assert times.size == pytest.approx(600, rel=0.2)


def test_a_low_rate_may_give_no_request_at_all():
    assert all(fixed_duration(0.001, 0.1, 1.0, seed).size == 0 for seed in range(5))


def test_an_infinite_rate_sends_all_at_once():
    assert not fixed_count(5, float("inf"), 1.0, seed=0).any()


def test_the_same_seed_gives_the_same_schedule_and_another_seed_another():
    assert np.array_equal(fixed_count(50, 3.0, 1.0, 7), fixed_count(50, 3.0, 1.0, 7))
    assert not np.array_equal(fixed_count(50, 3.0, 1.0, 7), fixed_count(50, 3.0, 1.0, 8))


@pytest.mark.parametrize(("strategy", "middle"), [("linear", 50.5), ("exponential", 10.0)])
def test_a_ramp_moves_the_rate_from_start_to_end(strategy, middle):
    ramp = Ramp(strategy, 1.0, 100.0)
    assert (ramp.rate(0.0), ramp.rate(1.0)) == (1.0, pytest.approx(100.0))
    assert ramp.rate(0.5) == pytest.approx(middle)
    gaps = np.diff(ramped(4000, ramp, 1.0, seed=0), prepend=0.0)
    assert gaps[1900:2100].mean() == pytest.approx(1 / middle, rel=0.2)

"""When requests are sent: one seeded schedule, made before the run and kept with the result."""

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Times = NDArray[np.float64]


@dataclass(frozen=True)
class Ramp:
    """A request rate that moves from `start_rps` to `end_rps` over the run."""

    strategy: Literal["linear", "exponential"]
    start_rps: float
    end_rps: float

    def rate(self, progress: float) -> float:
        """Requests per second when `progress` (0 to 1) of the requests have been sent."""
        if self.strategy == "linear":
            return self.start_rps + (self.end_rps - self.start_rps) * progress
        return float(self.start_rps * (self.end_rps / self.start_rps) ** progress)


def fixed_count(count: int, rate: float, burstiness: float, seed: int) -> Times:
    """Send times in seconds from the start, shape [count], for exactly `count` requests.

    Gaps are gamma distributed with shape `burstiness` and mean `1 / rate`. A burstiness of
    1 is a Poisson process, less is burstier, more is more even. As in `vllm bench serve` they are rescaled so that the
    last request leaves at `count / rate`. The offered load is then exactly `rate`, not a sample of it.
    An infinite rate sends everything at once.
    """
    if np.isinf(rate):
        return np.zeros(count)
    times = np.cumsum(_gaps(np.random.default_rng(seed), np.full(count, rate), burstiness))
    return times * float(count / rate / times[-1])


def fixed_duration(duration: float, rate: float, burstiness: float, seed: int) -> Times:
    """Send times in [0, duration) of the same process, not rescaled: as many as chance gives."""
    rng = np.random.default_rng(seed)
    times = np.zeros(0)
    while times.size == 0 or times[-1] < duration:
        block = max(16, int(rate * duration))
        last = times[-1] if times.size else 0.0
        times = np.concatenate([times, last + np.cumsum(_gaps(rng, np.full(block, rate), burstiness))])
    return times[times < duration]


def ramped(count: int, ramp: Ramp, burstiness: float, seed: int) -> Times:
    """Send times, shape [count], while the rate follows `ramp`. Not rescaled, since no single rate is meant."""
    rates = np.array([ramp.rate(i / max(count - 1, 1)) for i in range(count)])
    return np.cumsum(_gaps(np.random.default_rng(seed), rates, burstiness))


def _gaps(rng: np.random.Generator, rates: Times, burstiness: float) -> Times:
    return rng.gamma(shape=burstiness, scale=1.0 / (rates * burstiness))

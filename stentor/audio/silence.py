"""Levels below which audio counts as silent: one table for engine, server and benchmark.

Peaks are amplitudes of float samples in [-1, 1]. Levels in dBFS are mean powers in dB relative to
full scale. The levels differ because the questions differ; each constant states its own.
"""

from __future__ import annotations

from collections.abc import Iterable

REFERENCE_PEAK = 1e-4
"""-80 dBFS. A reference whose peak is lower holds no speech. Quiet recordings are valid references,
so the level is just above the noise of 16-bit audio."""

QUIET_PEAK = 0.01
"""-40 dBFS. The server names a reference whose peak is lower in its answer: what is spoken with it
is as quiet."""

FRAME_PEAK = 1e-3
"""-60 dBFS. A first frame whose peak is not higher counts as silent and may be trimmed."""

GUARD_PEAK = 0.003
"""-50 dBFS. A frame whose peak is not higher counts as a pause for the server's guard, which ends
an utterance after some seconds of such frames. With a quiet reference the level is lower:
`guard_peak`."""

BELOW_VOICE = 0.03
"""-30 dB. Pauses of a quiet voice are at least so far below its peak."""

AUDIBLE_PEAK = 0.0056
"""-45 dBFS. The first sample above it is the first that a client can hear. The server's metrics use
it per sample."""

AUDIBLE_DBFS = -45.0
"""The benchmark's onset detector uses the same level for the power of a window (nari-labs'
tts_bench)."""

ANSWER_DBFS = -60.0
"""An answer whose power is lower is reported as silent, and a cell whose power is lower as a
pause."""


def guard_peak(reference_peaks: Iterable[float]) -> float:
    """The level of the guard for speech with these references, of which a clone has the level. None
    of them: its own voice."""
    return min([GUARD_PEAK, *(BELOW_VOICE * peak for peak in reference_peaks)])

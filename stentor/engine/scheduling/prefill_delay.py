"""When queued requests wait although they could be prefilled. Pure policy on plain data. It imports no torch.

A prefill is long, however few requests it has. It holds up the streams that run, and those that come during it wait for
the next one.
"""

from __future__ import annotations

from stentor.config import Policy
from stentor.engine.scheduling.audio_scheduler import AudioScheduler
from stentor.engine.scheduling.sequence import Phase, Sequence

MIN_LEAD_S = 0.04
"""Seconds of audio that a stream must still have buffered after 1.5 prefills."""

UNDERRUN = "a stream would underrun"
BATCHING = "many rows run, and another request may come"


def delay_reason(
    first: Sequence,
    running: list[Sequence],
    now: float,
    *,
    slots: int,
    prefill_seconds: float,
    in_flight: bool,
    audio: AudioScheduler,
    policy: Policy,
) -> str | None:
    """Say why the request `first`, whose prefill has begun or would begin, waits. None: it need not.

    While it waits, `running` rows are decoded.

    Args:
        slots: rows that may run at once.
        prefill_seconds: how long a prefill takes, by the last ones.
        in_flight: whether a prefill of others is on the device.
    """
    waited = now - first.arrival
    if running and waited < policy.max_prefill_delay:
        for seq in running:
            prefills = 2.5 if in_flight and seq.num_generated else 1.5
            if audio.plays(seq) and _lead(audio, seq, now) < MIN_LEAD_S + prefills * prefill_seconds:
                return UNDERRUN
        if first.phase is not Phase.PREFILLING and 2 * len(running) >= slots and waited < policy.batching_window:
            return BATCHING
    return None


def _lead(audio: AudioScheduler, seq: Sequence, now: float) -> float:
    """Return the seconds of audio that the client has left if no further frame is made."""
    return audio.seconds(seq, seq.num_scheduled - seq.num_unheard) - seq.played(now)

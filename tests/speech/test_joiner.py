"""Segments are joined without clicks, however their audio was cut."""

from __future__ import annotations

import numpy as np

from stentor.speech.speaking import SegmentJoiner

RATE = 24_000
T = np.arange(2 * RATE + 137) / RATE
TONE = (0.3 * np.sin(2 * np.pi * 220 * T)).astype(np.float32)


def test_joined_pieces_have_no_clicks_and_single_ones_are_untouched() -> None:
    joiner = SegmentJoiner(RATE)
    alone = np.concatenate([joiner.feed(TONE), joiner.end_segment(0.0, fade=False)])
    assert np.array_equal(alone, TONE)
    loud = np.ones(RATE, np.float32)
    joiner = SegmentJoiner(RATE)
    two = [
        joiner.feed(loud),
        joiner.end_segment(0.1, True),
        joiner.feed(loud[:7]),
        joiner.feed(loud),
        joiner.end_segment(0, False),
    ]
    joined = np.concatenate(two)
    assert len(joined) == len(loud) * 2 + 7 + round(0.1 * RATE)
    assert np.abs(np.diff(joined)).max() < 0.01
    assert np.abs(joined[len(loud) : len(loud) + round(0.1 * RATE)]).max() == 0

"""Recordings of any length need the shapes that a start captures, and no others."""

from __future__ import annotations

import numpy as np
import pytest

from stentor.engine.memory import ENCODER_COLUMNS
from stentor.engine.voice import warm_lengths
from stentor.layers.windows import COLUMNS, step_of, window_sizes
from stentor.models.fish_s2 import spec as fish_spec
from stentor.models.qwen3_tts import spec as qwen_spec
from stentor.models.voxcpm2 import spec as voxcpm2_spec

FAMILIES = {
    "fish_s2": (44100, 512, 2048, fish_spec.REFERENCE_SECONDS),
    "qwen3_tts": (24000, 960, 1, qwen_spec.REFERENCE_SECONDS),
    "voxcpm2": (16000, 640, 2560, voxcpm2_spec.REFERENCE_SECONDS),
}
"""Samples per second, of an output of the convolutions, and of which audio is padded to a multiple. Seconds."""


def shapes(count: int, hop: int, multiple: int, most: int) -> set[tuple[str, int]]:
    """Launches of encoding so many samples: windows, and steps of what sees all of it."""
    count = -(-count // multiple) * multiple
    columns = -(-count // hop)
    even = columns + columns % 2
    step = step_of(hop, max(2, multiple // hop))
    return {
        *(("window", size) for size in window_sizes(count, hop, most)),
        *(("steps", -(-n // step)) for n in (columns, even)),
    }


@pytest.mark.parametrize("most", ENCODER_COLUMNS)
@pytest.mark.parametrize("family", FAMILIES)
def test_no_length_of_a_reference_needs_a_shape_that_the_start_did_not_capture(
    family: str, most: int
) -> None:
    rate, hop, multiple, (shortest, longest) = FAMILIES[family]
    ends = int(shortest * rate), int(longest * rate)
    lengths = warm_lengths(*ends)
    captured = set().union(*(shapes(n, hop, multiple, most) for n in lengths))
    assert (lengths[0], lengths[-1]) == (ends[1], ends[0])
    assert len(lengths) <= 32  # each takes a few milliseconds of the start
    for count in {int(n) for n in np.geomspace(*ends, 2000)} | {
        n + d for n in lengths[:-1] for d in (-1, 0)
    }:
        assert shapes(count, hop, multiple, most) <= captured, count


@pytest.mark.parametrize("most", ENCODER_COLUMNS)
@pytest.mark.parametrize("hop", [512, 640, 960])
def test_windows_hold_a_recording_and_are_few(hop: int, most: int) -> None:
    for count in (1, hop, 64 * hop, 64 * hop + 1, 256 * hop, 448_000, 1_234_944):
        sizes = window_sizes(count, hop, most)
        assert {size // hop for size in sizes} <= {*COLUMNS}
        assert all(size % hop == 0 for size in sizes)
        assert sizes[:-1] == [most * hop] * (len(sizes) - 1)
        assert sum(sizes[:-1]) < count <= sum(sizes)
        assert sizes[-1] // hop == 64 or sum(sizes) - count < sizes[-1] // 2

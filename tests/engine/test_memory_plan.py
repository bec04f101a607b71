"""Memory plans of the released models, by the sizes on their pages (docs/models)."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest

from stentor.engine.sizes import (
    CODEC_FRAMES,
    ENOUGH_TOKENS,
    GIB,
    LEVELS,
    MIB,
    Needs,
    Shares,
    divide,
    fewer,
    fit,
    least_bytes,
)

CODEC_FRAME = 6 * MIB  # three times what a frame of a call was predicted to take at most


@dataclass(frozen=True)
class Model:
    """Weights in GiB, bytes of a token, MB of a slot, tokens of the longest request."""

    weights: float
    token: int
    slot: float
    tokens: int

    def needs(self, usable: int) -> Needs:
        """With a fifth of what is beside the weights for encoding references, which is the most."""
        encoder = int(0.2 * usable)
        return Needs(
            int(self.slot * 1e6),
            16 * self.token,
            CODEC_FRAME,
            encoder,
            16,
            self.tokens // 16,
            25,
            25,
        )


RELEASED = {
    "qwen3-tts 0.6B in 4": (Model(1.9, 114_688, 2.9, 8192), 4),
    "qwen3-tts 1.7B in 8": (Model(4.1, 114_688, 2.9, 8192), 8),
    "qwen3-tts 1.7B int8 in 6": (
        Model(4.1 - 1.31, 114_688, 2.9, 8192),
        6,
    ),  # what int8 saves: test_quantization.py
    "voxcpm2 in 8": (Model(4.5, 36_864, 4.5, 8192), 8),
    "fish s2 pro int8 in 10": (Model(9.7 - 3.38, 147_456, 4.8, 32_768), 10),
    "fish s2 pro in 16": (Model(9.7, 147_456, 4.8, 32_768), 16),
}


def taken(needs: Needs, found: Shares) -> int:
    """All that the shares are, beside the weights."""
    return (
        found.graph_bytes
        + found.codec_bytes
        + needs.encoder
        + found.slots * needs.slot
        + found.pages * needs.page
    )


@pytest.mark.parametrize("name", RELEASED)
def test_each_released_model_has_eight_slots_with_room_in_its_card(name: str) -> None:
    model, gib = RELEASED[name]
    usable = int((gib - model.weights) * GIB)
    needs = model.needs(usable)
    found = divide(needs, 8, usable, gib * GIB)
    assert found is not None
    assert found.pages * 16 >= 8 * ENOUGH_TOKENS
    assert taken(needs, found) <= usable
    assert found.codec_frames >= 25


@pytest.mark.parametrize("name", RELEASED)
def test_with_more_memory_nothing_gets_smaller(name: str) -> None:
    model, gib = RELEASED[name]
    held = None
    for more in (1, 1.5, 2, 4, 8):
        total = int(gib * more * GIB)
        usable = total - int(model.weights * GIB)
        found = divide(replace(model.needs(0), encoder=0), 8, usable, total)
        assert found is not None
        assert held is None or (found.prefill_tokens, found.codec_frames) >= (
            held.prefill_tokens,
            held.codec_frames,
        )
        held = found
    assert (held.prefill_tokens, held.codec_frames) == (LEVELS[0][0], min(CODEC_FRAMES, 8 * 25))


def test_slots_become_fewer_where_nobody_asked_for_a_number() -> None:
    model, _ = RELEASED["qwen3-tts 0.6B in 4"]
    usable = int(0.9 * GIB)
    needs = replace(model.needs(0), slot=100 * MIB)
    assert divide(needs, 64, usable, 3 * GIB) is None
    found = fit(needs, fewer(64), usable, 3 * GIB)
    assert found is not None
    assert 1 <= found.slots < 16
    assert fewer(64) == [64, 32, 16, 8, 4, 2, 1]


@pytest.mark.parametrize("name", RELEASED)
def test_slots_that_nobody_asked_for_have_enough_pages(name: str) -> None:
    model, gib = RELEASED[name]
    usable = int((gib - model.weights) * GIB)
    needs = model.needs(usable)
    found = fit(needs, fewer(64), usable, gib * GIB)
    assert found is not None
    assert found.slots >= 8
    assert found.pages * 16 >= found.slots * ENOUGH_TOKENS


def test_the_memory_that_an_error_names_is_enough_for_its_slots() -> None:
    model, _ = RELEASED["fish s2 pro in 16"]
    weights = int(model.weights * GIB)
    for slots in (1, 8, 64):
        needs = replace(model.needs(0), slot=150 * MIB)
        enough = least_bytes(needs, slots)
        assert divide(needs, slots, enough, weights + enough) is not None
        assert divide(needs, slots, enough - 2 * needs.page * slots, weights + enough) is None

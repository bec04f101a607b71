"""Mixes of voices as people write them."""

import pytest

from stentor.errors import InvalidRequest
from stentor.speech.client_names import own_voice
from stentor.text.voice_mix import parse_mix

VOICES = ("anna", "ben", "af_carla")


@pytest.mark.parametrize(
    ("given", "own"),
    [
        ("anna", "anna"),
        ("Anna(2)+BEN(1)", "anna(2)+ben(1)"),
        ("anna + ben", "anna(1)+ben(1)"),
        ("anna(0.5)+af_carla(1.25)+ben", "anna(0.5)+af_carla(1.25)+ben(1)"),
        ("af_anna+ben", "anna(1)+ben(1)"),
        ("anna+nobody", None),
        ("nobody", None),
    ],
)
def test_a_mix_of_own_voices_is_one(given, own):
    assert own_voice(given, VOICES, mixes=True) == own


@pytest.mark.parametrize(
    "given",
    ["anna+", "+", "anna(2)+(1)", "anna(-1)+ben", "anna(x)+ben", "anna(0)+ben", "+".join("a" * 17)],
)
def test_what_is_no_mix_is_refused_with_what_is(given):
    with pytest.raises(InvalidRequest) as refused:
        own_voice(given, VOICES, mixes=True)
    assert refused.value.param == "voice"


def test_a_model_that_mixes_none_has_no_such_voice():
    assert own_voice("anna+ben", VOICES) is None


def test_weights_are_ones_unless_they_are_written():
    assert parse_mix("a(2)+b") == [("a", 2.0), ("b", 1.0)]

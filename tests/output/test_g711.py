"""G.711: the codes of every sample by the tables of the recommendation, and what decoders make of them."""

from __future__ import annotations

import io

import numpy as np
import pytest
import soundfile

from stentor.output.effects import EffectChain
from stentor.output.encode import encoder
from stentor.output.g711 import codes
from tests.helpers.server_live import LAWS, decoded

# Where each segment begins, the step inside it, how many steps: tables 1 and 2 of ITU-T G.711 (11/88), for magnitudes
# of 13 bits with sign (A-law) and of 14 bits with sign (µ-law, whose first step is half as long).
SEGMENTS = {
    "alaw": [(0, 2, 32), (64, 4, 16), (128, 8, 16), (256, 16, 16), (512, 32, 16), (1024, 64, 16), (2048, 128, 16)],
    "ulaw": [
        (0, 1, 1), (1, 2, 15), (31, 4, 16), (95, 8, 16), (223, 16, 16), (479, 32, 16), (991, 64, 16), (2015, 128, 16),
        (4063, 256, 16),
    ],
}  # fmt: skip
DROPPED = {"ulaw": 2, "alaw": 3}  # bits of a 16-bit sample that the tables do not see
SAMPLES = np.arange(65536, dtype=np.uint16).view(np.int16)


def decisions(law: str) -> np.ndarray:
    """The lower end of each of the 128 intervals."""
    return np.array(
        [start + step * i for start, step, steps in SEGMENTS[law] for i in range(steps)]
    )


def values(law: str) -> np.ndarray:
    """The quantised value of each interval: its middle. That of µ-law's first one is 0."""
    edges = np.append(decisions(law), 4096 if law == "alaw" else 8159)
    middle = (edges[:-1] + edges[1:]) // 2
    if law == "ulaw":
        middle[0] = 0
    return middle


def intervals(law: str) -> np.ndarray:
    """The interval of every sample's magnitude. A-law's first decision value but 0 is 2 in 13 bits: 16 in 16 bits."""
    magnitudes = np.abs(SAMPLES.astype(int))
    reduced = magnitudes >> 2 if law == "ulaw" else magnitudes >> 4 << 1
    return np.searchsorted(decisions(law), reduced, side="right") - 1


def by_libsndfile(law: str) -> np.ndarray:
    out = io.BytesIO()
    soundfile.write(out, SAMPLES, 8000, format="RAW", subtype=law.upper())
    return np.frombuffer(out.getvalue(), np.uint8)


def heard(law: str, data: np.ndarray) -> np.ndarray:
    """Codes decoded by FFmpeg, as 16-bit samples."""
    return np.rint(decoded(data.tobytes(), law)[0] * 32768).astype(int)


@pytest.mark.parametrize("law", LAWS)
def test_every_sample_has_the_code_of_the_tables(law: str) -> None:
    """µ-law sends all bits inverted, A-law every other one, and the sign of a positive value as 1."""
    inverted = 0x7F if law == "ulaw" else 0x55
    sign = np.where(SAMPLES < 0, 0, 0x80)
    assert np.array_equal(codes(law), (intervals(law) ^ inverted) | sign)


@pytest.mark.parametrize("law", LAWS)
def test_ffmpeg_decodes_every_code_to_the_value_of_the_tables(law: str) -> None:
    expected = values(law)[intervals(law)] << DROPPED[law]
    assert np.array_equal(heard(law, codes(law)), np.where(SAMPLES < 0, -expected, expected))


@pytest.mark.parametrize("law", LAWS)
def test_every_sample_has_the_code_of_libsndfiles_tables(law: str) -> None:
    assert np.array_equal(codes(law), by_libsndfile(law))


@pytest.mark.parametrize("law", LAWS)
def test_negative_samples_have_the_codes_of_positive_ones_but_for_the_sign(law: str) -> None:
    positive = np.arange(1, 32768, dtype=np.int16)
    of = codes(law)
    assert np.array_equal(of[positive.view(np.uint16)] ^ 0x80, of[(-positive).view(np.uint16)])


@pytest.mark.parametrize("source", [11_025, 16_000, 22_050, 24_000, 44_100, 48_000])
def test_each_20_ms_become_20_ms_of_telephone_audio(source: int) -> None:
    chain = EffectChain(source, 8000, 1.0)
    received = returned = 0
    for count in (source // 50 for _ in range(50)):
        received += count
        returned += len(chain.feed(np.zeros(count, np.float32)))
        assert received / source - returned / 8000 < 0.006
    assert returned + len(chain.finish()) == round(received * 8000 / source)


@pytest.mark.parametrize("source", [24_000, 44_100])
def test_telephone_audio_has_the_same_samples_however_it_is_cut(source: int) -> None:
    samples = np.random.default_rng(0).uniform(-1, 1, source).astype(np.float32)
    chain = EffectChain(source, 8000, 1.0)
    want = np.concatenate((chain.feed(samples), chain.finish()))
    for step in (1, 7, 441, 5000):
        chain = EffectChain(source, 8000, 1.0)
        parts = [chain.feed(samples[i : i + step]) for i in range(0, source, step)]
        assert np.array_equal(np.concatenate((*parts, chain.finish())), want)


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize(
    ("hertz", "level"),
    [(300, 1.0), (1000, 1.0), (3300, 1.0), (4300, 0.0), (5000, 0.0), (9000, 0.0)],
)
def test_what_8_khz_cannot_carry_is_taken_out_and_not_folded_back(
    law: str, hertz: int, level: float
) -> None:
    rate = 24_000
    tone = (0.5 * np.sin(2 * np.pi * hertz * np.arange(rate) / rate)).astype(np.float32)
    chain, made = EffectChain(rate, 8000, 1.0), encoder(law, 8000, whole=False)
    data = b"".join(
        made.feed(chain.feed(tone[i : i + 480])) for i in range(0, rate, 480)
    ) + made.feed(chain.finish())
    assert len(data) == 8000
    samples = decoded(data, law)[0][500:-500]
    assert np.sqrt(np.mean(samples**2)) == pytest.approx(level * 0.5 / np.sqrt(2), abs=0.01)


@pytest.mark.parametrize(
    ("law", "silence", "loudest"), [("ulaw", 0xFF, (0x80, 0x00)), ("alaw", 0xD5, (0xAA, 0x2A))]
)
def test_silence_and_samples_beyond_full_scale(
    law: str, silence: int, loudest: tuple[int, int]
) -> None:
    made = encoder(law, 8000, whole=True)
    assert made.feed(np.array([0, 7, -7], np.float32)) == bytes([silence, *loudest])
    assert made.feed(np.zeros(0, np.float32)) + made.finish() == b""

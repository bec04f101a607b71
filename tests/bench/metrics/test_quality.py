"""Audio that cannot be speech is found in the measured answers themselves."""

import numpy as np
import pytest

from stentor.bench.metrics.decode import DecodedAudio
from stentor.bench.metrics.measure import RequestResult
from stentor.bench.metrics.quality import assess, speech_units, summarise
from tests.bench.fake_server import silence, tone

RATE = 24000


def heard(samples):
    samples = np.asarray(samples, np.float32)
    return DecodedAudio(
        samples, RATE, "x", np.zeros(1), np.array([samples.size]), samples.tobytes()
    )


def answers(*rows):
    """Results for (text, samples) rows."""
    results = []
    for index, (text, samples) in enumerate(rows):
        result = RequestResult(
            index, text, 0.0, samples=samples.size, sample_rate=RATE, audio_sha256=str(samples.size)
        )
        result.quality = assess(heard(samples), text)
        results.append(result)
    return results


def test_not_a_number_silence_clipping_and_long_pauses_are_counted_apart():
    broken = tone(1.0)
    broken[500] = np.nan
    paused = np.concatenate([tone(0.5), silence(2.5), tone(0.5)])
    rows = [
        ("good text", tone(1.0)),
        ("nan", broken),
        ("mute", silence(1.0)),
        ("loud", tone(1.0, level=4.0).clip(-1, 1)),
    ]
    quality = summarise(answers(*rows, ("paused", paused)))
    assert (quality.nonfinite, quality.silent, quality.clipped, quality.long_pause) == (1, 1, 1, 1)


def test_silence_around_the_speech_is_no_pause():
    samples = np.concatenate([silence(3.0), tone(0.5), silence(3.0)])
    assert assess(heard(samples), "text")["longest_pause_s"] == 0.0


def test_run_on_and_cut_short_answers_stand_out_from_the_runs_own_pace():
    sentence = "a sentence of thirty letters or so"
    rows = [(sentence, tone(2.0)) for _ in range(6)]
    quality = summarise(answers(*rows, (sentence, tone(9.0)), (sentence, tone(0.3))))
    assert quality.run_on == (6,)
    assert quality.cut_short == (7,)


def test_a_short_text_may_take_twice_its_share_without_an_alarm():
    rows = [("a sentence of thirty letters or so", tone(2.0)) for _ in range(6)]
    assert summarise(answers(*rows, ("Yes.", tone(0.6)))).run_on == ()


def test_languages_are_compared_by_what_there_is_to_say():
    assert speech_units("Hello, you!") == 8
    assert speech_units("你好，世界") == 12
    assert speech_units("...") == 1


def test_the_hash_tells_whether_a_repeated_text_sounded_the_same():
    same = summarise(answers(("x", tone(1.0)), ("x", tone(1.0)), ("y", tone(1.0))))
    differing = summarise(answers(("x", tone(1.0)), ("x", tone(1.1))))
    assert same.hashes == {"x": 1}
    assert differing.hashes == {"x": 2}


def test_an_answer_without_audio_has_no_quality():
    assert assess(heard([]), "text") == {}


@pytest.mark.parametrize("level", [-20.0, -59.0, -61.0])
def test_the_level_is_the_rms_in_dbfs_and_minus_60_is_silent(level):
    row = assess(heard(tone(1.0, level=10 ** (level / 20) * 2**0.5)), "text")
    assert row["level_dbfs"] == pytest.approx(level, abs=0.05)
    assert row["silent"] is (level < -60)

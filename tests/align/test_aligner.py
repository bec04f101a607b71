"""Aligners of other packages and the one for English: who times the words of a text."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from stentor import TTS, EngineError, InvalidRequest
from stentor.align.aligner import Aligners, looks_english
from tests.helpers import aligners

ASK: dict[str, Any] = {
    "max_frames": 24,
    "min_frames": 24,
    "retries": 1,
    "word_timestamps": True,
    "seed": 1,
}


def german(**options: Any) -> TTS:
    """A model that speaks German, and does not say when."""
    tts = TTS("dummy:toy", max_num_seqs=2, memory_gb=0.002, **options)
    tts._model.spec = replace(tts.spec, languages=("german",))
    return tts


@pytest.mark.parametrize(
    "text",
    [
        "The cat is on the table and watches the rain.",
        "Mr. Okonkwo met Señora Guadalupe Hernández in Popocatépetl.",
        "I ordered spaghetti alla carbonara in Trastevere.",
        "It's 5:30 pm, isn't it?",
        "Siobhan O’Reilly",
        "42",
    ],
)
def test_english_looks_english(text: str) -> None:
    assert looks_english(text)


@pytest.mark.parametrize(
    "text",
    [
        "Die Katze sitzt auf dem Tisch und schaut in den Regen.",
        "Le chat est sur la table et il regarde la pluie.",
        "El gato está en la mesa y mira la lluvia.",
        "Il gatto è sul tavolo e guarda la pioggia.",
        "O gato está na mesa e olha a chuva.",
        "今天天气很好。",
        "Кошка сидит на столе.",
    ],
)
def test_other_languages_do_not(text: str) -> None:
    assert not looks_english(text)


def test_a_language_that_the_request_names_counts_for_more_than_how_the_text_looks() -> None:
    with TTS("dummy:toy", max_num_seqs=1, memory_gb=0.002) as tts:
        speaks = replace(tts.spec, languages=("english", "german"))
        found = Aligners()
        assert found.missing(speaks, "english", "Die Katze sitzt auf dem Tisch.") is None
        assert found.missing(speaks, "auto", "The cat sits on the table.") is None
        assert "'german'" in str(found.missing(speaks, "german", "The cat sits on the table."))
        assert "does not look English" in str(
            found.missing(speaks, "auto", "Die Katze sitzt auf dem Tisch.")
        )
        assert found.segment(speaks, "german", "The cat.") is None


@pytest.mark.parametrize("own", ["tests.helpers.aligners:even", aligners.even])
def test_an_aligner_of_the_callers_own_comes_first(own: Any) -> None:
    text = "Eins zwei — drei vier"
    with german(aligner=own) as tts:
        whole, streamed = (
            tts.generate(text, **ASK),
            list(tts.stream(text, **{k: v for k, v in ASK.items() if k != "retries"})),
        )
    each = len(whole.samples) / whole.sample_rate / 5
    assert [w.text for w in whole.words] == text.split()
    assert [w.start for w in whole.words] == pytest.approx([i * each for i in range(5)])
    assert streamed[-1].words == whole.words


@pytest.mark.parametrize(
    ("own", "says"),
    [
        (aligners.broken, "the aligner failed: RuntimeError: no such file"),
        (aligners.missing, "the aligner failed: RuntimeError: no such file"),
        (aligners.short, "of as many words, got 1"),
    ],
)
def test_an_aligner_that_fails_ends_its_request_alone(own: Any, says: str) -> None:
    with german(aligner=own) as tts:
        with pytest.raises(EngineError, match=says):
            tts.generate("eins zwei", **ASK)
        assert len(tts.generate("eins zwei", max_frames=4).samples)


@pytest.mark.parametrize(
    ("own", "says"),
    [
        ("stentor", "must be package:function"),
        ("no.such.package:function", "cannot be imported"),
        ("tests.helpers.aligners:nothing", "cannot be imported"),
        ("tests.helpers.aligners:__name__", "must be package:function, or a function"),
        (3, "must be package:function, or a function"),
    ],
)
def test_what_is_no_aligner_is_refused_before_a_model_is_loaded(own: Any, says: str) -> None:
    with pytest.raises(InvalidRequest, match=f"aligner: .*{says}"):
        TTS("dummy:toy", aligner=own)

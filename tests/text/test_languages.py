"""Notations of other languages as words, where a request asks for them."""

from __future__ import annotations

from pathlib import Path

import pytest

from stentor import TTS
from stentor.errors import InvalidRequest
from stentor.text.cleanup import cleaned, steps

FORMS = Path(__file__).with_name("notation_forms.txt")
PAIRS = {
    "de": [
        ("Um 14:30 Uhr, 9.05 Uhr und 1:00 Uhr, von 8:00-9:30", "Um vierzehn Uhr dreißig, neun Uhr fünf und ein Uhr, von acht Uhr bis neun Uhr dreißig"),
        ("16:9 und 2:1", "sechzehn zu neun und zwei zu eins"),
       
        ("Es kostet 12,50 € am 15.03.2024.", "Es kostet zwölf Euro fünfzig am fünfzehnten März zweitausendvierundzwanzig."),
        ("1.234,5 km und 5 %, -3 °C", "eintausendzweihundertvierunddreißig Komma fünf Kilometer und fünf Prozent, minus drei Grad Celsius"),
        ("Version 1.2.3 in 80331 München", "Version 1.2.3 in achtzigtausenddreihunderteinunddreißig München"),
        ("Vorwahl 089", "Vorwahl null acht neun"),
    ],
    "fr": [
        ("À 14h30, 8h, 1h15 et 21:00.", "À quatorze heures trente, huit heures, une heure quinze et vingt-et-une heures."),
       
        ("Le 01/05/2024, 1 234 personnes à 3,5 km.", "Le premier mai deux mille vingt-quatre, mille deux cent trente-quatre personnes à trois virgule cinq kilomètres."),
        ("20 € ou 71 %", "vingt euros ou soixante-et-onze pour cent"),
    ],
    "es": [
        ("A las 14:30 h y a las 8:00.", "A las catorce y treinta y a las ocho."),
       ("El 3/4/2023 pagó 5,20 € por 2 kg.", "El tres de abril de dos mil veintitrés pagó cinco euros veinte por dos kilogramos.")],
    "it": [
        ("Alle 14:30 e 1:15", "Alle quattordici e trenta e una e quindici"),
       ("1.500 m e il 50%", "millecinquecento metri e il cinquanta per cento"), ("il 2/6/1946", "il due giugno millenovecentoquarantasei")],
    "pt": [
        ("Às 14h30 e 1:00", "Às catorze e trinta e uma hora"),
       ("Em 01/02/2020, 3,5 litros e 10%", "Em primeiro de fevereiro de dois mil e vinte, três vírgula cinco litros e dez por cento")],
    "ru": [
        ("В 14:30, 5:00 и 21:05", "В четырнадцать тридцать, пять часов и двадцать один ноль пять"),
       
        ("15.03.2024 было 25 %", "пятнадцатое марта две тысячи двадцать четвертого года было двадцать пять процентов"),
        ("3 км, 5 км за 100 ₽", "три километра, пять километров за сто рублей"),
    ],
    "zh": [
        ("下午2:05见，9:30-10:00", "下午两点零五分见，九点三十分到十点"),
       
        ("2024年3月15日，气温25°C，增长5%，共1,234人。", "二零二四年三月十五日，气温二十五摄氏度，增长百分之五，共一千二百三十四人。"),
        ("价格￥20，3.14", "价格二十元，三点一四"),
    ],
    "ja": [
        ("14:30に、9:05〜10:00", "十四時三十分に、九時五分から十時"),
       ("2024年3月15日に5%上がり、1,234円。", "二千二十四年三月十五日に五パーセント上がり、千二百三十四円。"), ("2024-01-02", "二千二十四年一月二日")],
    "ko": [
        ("오후 2:30, 14:30", "오후 두시삼십분, 십사시삼십분"),
       ("2024-03-15에 5% 올라 3km", "이천이십사년 삼월 십오일에 오퍼센트 올라 삼킬로미터"), ("1,234명", "천이백삼십사명")],
}  # fmt: skip


@pytest.mark.parametrize("code", PAIRS)
def test_notations_of_a_language_are_its_words(code: str) -> None:
    read = steps(f"notations:{code}")
    assert [(given, cleaned(given, read).text) for given, _ in PAIRS[code]] == PAIRS[code]


@pytest.mark.parametrize("code", PAIRS)
def test_words_keep_their_places(code: str) -> None:
    for given, _ in PAIRS[code]:
        draft = cleaned(given, steps(f"all,notations:{code}"))
        assert draft.starts == sorted(draft.starts)
        assert max(draft.ends) <= len(given)


def test_notations_run_where_they_are_asked_for_and_know_the_language() -> None:
    assert "notations" not in " ".join(steps("all"))
    assert steps("all,notations", "german")[-1] == steps("notations", "de")[0] == "notations:de"
    for wanted, language in (("notations:xx", None), ("notations", "dutch")):
        with pytest.raises(
            InvalidRequest, match="notations has de, es, fr, it, ja, ko, pt, ru, zh"
        ) as e:
            steps(wanted, language)
        assert e.value.param == "cleanup"


def test_a_request_may_ask_for_them(monkeypatch: pytest.MonkeyPatch) -> None:
    with TTS("dummy:toy", dtype="float64", max_num_seqs=1, memory_gb=0.002) as tts:
        plain, seen = tts._model.prompt, []
        monkeypatch.setattr(
            tts._model, "prompt", lambda r, e: (seen.append(r.text), plain(r, e))[1]
        )
        ask = {"voice": "low", "max_frames": 2, "min_frames": 2, "seed": 1}
        tts.generate("**5 km**", cleanup="all,notations:de", **ask)
        tts.generate("**5 km**", **ask)
        with pytest.raises(InvalidRequest, match="cleanup: must be a string"):
            tts.generate("x", cleanup=["html"], **ask)
    assert seen == ["fünf Kilometer", "5 km"]


def forms(code: str) -> list[list[str]]:
    """Written forms of a language and their words, of which the first are those of stentor."""
    lines = FORMS.read_text(encoding="utf-8").splitlines()
    rows = [line.split(" | ")[1:] for line in lines if line.startswith(f"{code} | ")]
    return [[written, words.split(" / ")[0]] for written, words in rows]


@pytest.mark.parametrize("code", PAIRS)
def test_a_form_is_read_as_a_native_reads_it(code: str) -> None:
    read = [
        [written, cleaned(f"{written}.", (f"notations:{code}",)).text.removesuffix(".")]
        for written, _ in forms(code)
    ]
    assert read == forms(code)
    assert len(read) >= 60

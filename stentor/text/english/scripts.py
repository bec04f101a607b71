"""Signs of other scripts: accents are dropped, letters become Latin ones or the names of them."""

from __future__ import annotations

import re
import unicodedata

from stentor.text.english.tables import TABLES
from stentor.text.patterns import lazy

SYMBOLS = TABLES["symbols"]
_CYRILLIC = TABLES["cyrillic"]
_LATIN = (
    TABLES["ligatures"]
    | _CYRILLIC
    | {c.upper(): latin.capitalize() for c, latin in _CYRILLIC.items()}
)
_NAMED = lazy(
    r"(?:LETTER|SYLLABLE|CHARACTER|LIGATURE|VOWEL SIGN|SIGN)\s+(?:SMALL |CAPITAL |FINAL )*(.+)"
)
_UNITS = "°ºµμΩ²³∆"
_SYLLABLES = ("HANGUL SYLLABLE", "HIRAGANA LETTER", "KATAKANA LETTER", "BOPOMOFO LETTER")
_IDEOGRAPH = r"\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff々〆"
_KANA = r"\u3040-\u30ff"
# letters of scripts that have no spelling in Latin letters here, and of which a reader knows no
# names
_FOREIGN = (
    r"(?![\d฿])[\u0530-\u10ff\u1200-\u1aff\u1b00-\u1cff\u2d00-\u2dff\ua000-\ua63f\ua6a0-\ua6ff\ua800-\ua95f"
    r"\ua980-\uab2f\uab70-\uabff\ufb07-\ufdff\ufe70-\ufefc\U00010000-\U0001cfff]"
)
_PICTURE = (  # emoji and other signs that have a look and no reading
    rf"(?![{''.join(SYMBOLS)}])[\u2190-\u21ff\u2300-\u23ff\u2600-\u27bf\u2900-\u297f\u2b00-\u2bff"
    r"\U0001f000-\U0001f0ff\U0001f170-\U0001f19a\U0001f1e6-\U0001faff\ue100-\uf8ff\U000f0000-\U0010fffd]"
)
UNREAD = (
    rf"[{_KANA}]{{0,40}}[{_IDEOGRAPH}][{_IDEOGRAPH}{_KANA}]*|(?:{_FOREIGN})+(?:[ \u200c\u200d\u060c]+(?:{_FOREIGN})+)*"
    rf"|(?:{_PICTURE}[\ufe0f\u200d]*)+"
)
"""Pattern of what is left out: Chinese and Japanese with Chinese characters, scripts other than
Latin, Greek, Cyrillic, kana and Hangul, and emoji."""
_UNREAD = lazy(UNREAD)
_READ = lazy(r"[^\W_]|[&@+%$£€¥°]")
_POWERS = lazy(
    r"(?:(?<=\b10)|(?<=\b[nxy]))[⁻⁰¹²³⁴-⁹]+"
    r"|(?<=\d)(?:⁻[⁰¹²³⁴-⁹]{1,9}|[⁰¹²³⁴-⁹]{2,9}|[⁰⁴-⁹])|(?<=[\w)])ⁿ"
)
_LOGARITHM = lazy(r"(?<!\w)log([₀-₉]{1,4})")
_INVERSE = lazy(r"[·⋅]?(?<![A-Za-zµ])([A-Za-zµ]{1,4})⁻([¹²³])")
_ION = lazy(r"(?<=[A-Za-z₀-₉])([²³⁴]?)([⁺⁻])(?![\w⁰-⁹])")
_INVERSE_POWERS = {"¹": "", "²": " squared", "³": " cubed"}
_CHARGES = {"⁺": " plus", "⁻": " minus"}
_OTHER_WORDS = frozenset(
    "résumé résumés rosé rosés pâté pâtés exposé exposés saké lamé maté niña niñas tomé".split()
)
"""Words that are others without their accents. They keep them, and `pronunciations.txt` has
them."""


def has_english(text: str) -> bool:
    """Whether a text has anything that is read as English: a letter or a digit, or a sign such as
    &."""
    return _READ.search(text if text.isascii() else _UNREAD.sub(" ", text)) is not None


def latin(text: str) -> str:
    """Letters of other scripts in Latin ones, without accents. Fractions and raised digits are
    written in plain ones.

    Words that are others without their accents keep them. Cyrillic is transliterated, kana and
    Hangul are read by syllables, Greek letters by their names. `UNREAD` is left out.
    """
    if text.isascii():
        return text
    text = _LOGARITHM.sub(lambda m: f"log base {_digits(m[1])} of ", text)
    text = _INVERSE.sub(_per_unit, text)
    text = _ION.sub(lambda m: f" {_digits(m[1])}{_CHARGES[m[2]]}", text)
    text = _POWERS.sub(lambda m: "^" + unicodedata.normalize("NFKC", m[0]).replace("−", "-"), text)
    text = _UNREAD.sub(" ", unicodedata.normalize("NFC", text))
    return "".join(_word(part) for part in re.findall(r"\w+|\W+", text))


def _digits(raised: str) -> str:
    return unicodedata.normalize("NFKC", raised)


def _per_unit(m: re.Match[str]) -> str:
    """ "mol⁻¹" -> "per mole"."""
    unit = TABLES["units"].get(m[1])
    if unit is None:
        return m[0]
    return f" per {unit}{_INVERSE_POWERS[m[2]]}"


def _word(part: str) -> str:
    if part.lower() in _OTHER_WORDS:
        return part.lower()
    return "".join(_sign(c) for c in part)


def _sign(sign: str) -> str:
    """One sign, in ASCII as far as it is a letter."""
    if sign.isascii() or sign in _UNITS:
        return sign
    if sign in _LATIN:
        return _LATIN[sign]
    kind = unicodedata.category(sign)
    if unicodedata.decomposition(sign).startswith("<sub>"):  # H₂O
        return unicodedata.normalize("NFKC", sign)
    if kind in ("No", "Nl") or unicodedata.decomposition(sign).startswith("<circle>"):  # ½, ①, Ⅳ, ⓐ
        return " " + unicodedata.normalize("NFKC", sign)
    if kind[0] not in "LM":
        return str(unicodedata.decimal(sign, sign))
    return _letter(sign, kind)


def _letter(sign: str, kind: str) -> str:
    plain = [c for c in unicodedata.normalize("NFKD", sign) if unicodedata.category(c)[0] != "M"]
    if plain and all(c.isascii() for c in plain):
        return "".join(plain)
    if (
        len(plain) == 1
        and plain[0] != sign
        and not unicodedata.name(sign, "").startswith(_SYLLABLES)
    ):
        return _sign(plain[0])
    if kind[0] == "M":
        return ""
    return _letter_name(sign)


def _letter_name(sign: str) -> str:
    name = unicodedata.name(sign, "")
    match = _NAMED.search(name)
    if match is None:
        return " letter "
    words = re.sub(r"\bWITH\b.*|\bSMALL\b", "", match[1]).strip().lower()
    if name.startswith(_SYLLABLES):
        return words
    return f" {words} "

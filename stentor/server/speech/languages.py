"""The language of a request by the name, code or tag that a client sends: "English", "en", "en-US", "eng"."""

from __future__ import annotations

from collections.abc import Sequence

# ISO 639 codes (one and three letters apart from their English names), for languages that speech models know
CODES = {
    "ar": "arabic",
    "bn": "bengali",
    "bg": "bulgarian",
    "ca": "catalan",
    "zh": "chinese",
    "cmn": "chinese",
    "zho": "chinese",
    "mandarin": "chinese",
    "yue": "cantonese",
    "hr": "croatian",
    "cs": "czech",
    "da": "danish",
    "nl": "dutch",
    "en": "english",
    "eng": "english",
    "et": "estonian",
    "fi": "finnish",
    "fr": "french",
    "fra": "french",
    "de": "german",
    "deu": "german",
    "el": "greek",
    "he": "hebrew",
    "hi": "hindi",
    "hu": "hungarian",
    "id": "indonesian",
    "it": "italian",
    "ita": "italian",
    "ja": "japanese",
    "jpn": "japanese",
    "kk": "kazakh",
    "ko": "korean",
    "kor": "korean",
    "lv": "latvian",
    "lt": "lithuanian",
    "ms": "malay",
    "no": "norwegian",
    "nb": "norwegian",
    "fa": "persian",
    "pl": "polish",
    "pt": "portuguese",
    "por": "portuguese",
    "ro": "romanian",
    "ru": "russian",
    "rus": "russian",
    "sr": "serbian",
    "sk": "slovak",
    "sl": "slovenian",
    "es": "spanish",
    "spa": "spanish",
    "sw": "swahili",
    "sv": "swedish",
    "tl": "tagalog",
    "ta": "tamil",
    "te": "telugu",
    "th": "thai",
    "tr": "turkish",
    "uk": "ukrainian",
    "ur": "urdu",
    "vi": "vietnamese",
    "cy": "welsh",
}


def known_language(given: str | None, languages: Sequence[str]) -> str | None:
    """The model's name of a language, "auto" where none is given, None where the model has no such language."""
    name = (given or "auto").strip().lower() or "auto"
    if name == "auto" or name in languages:
        return name
    first = name.replace("_", "-").replace(" ", "-").split("-")[0]  # "en-us", "english (uk)"
    found = CODES.get(first, first)
    return found if found in languages else None


def codes() -> list[str]:
    """The codes of two letters of all languages that are known here."""
    return sorted({code_of(name) for name in CODES.values()})


def code_of(language: str) -> str:
    """The shortest code of a language by its English name, in any case: "en". The name itself where none is known."""
    return min((code for code, name in CODES.items() if name == language.lower()), key=len, default=language)

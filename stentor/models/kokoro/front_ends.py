"""Text to the signs that Kokoro reads, by the language of a voice.

English is read by stentor's own front end, whose phonemes are misaki's, British English by misaki's
dictionaries where that package is installed. All other languages are read by `misaki`, where it is
installed with the extra of the language.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable
from functools import cache
from threading import Lock

from stentor import text as texts
from stentor.errors import InvalidRequest
from stentor.models.kokoro.tokenizer import IDS
from stentor.text.front_end import Check, FrontEnd, proceed
from stentor.text.marks import PHONEMES
from stentor.text.trace import Trace

ESPEAK = {
    "spanish": "es",
    "french": "fr-fr",
    "hindi": "hi",
    "italian": "it",
    "portuguese": "pt-br",
}
"""Names of languages in espeak, which reads these."""
EXTRAS = {**dict.fromkeys(ESPEAK, "en"), "japanese": "ja", "chinese": "zh"}
"""Extras of `misaki` that bring what reads a language."""

Read = Callable[[str], str]
_GIVEN = re.compile(PHONEMES)


@cache
def front_end(language: str) -> FrontEnd:
    """The front end of a language, loaded once. InvalidRequest names the extra that it needs."""
    if language == "english":
        return texts.front_end("english-phonemes")
    if language == "british english":
        return texts.british_phonemes()
    return Misaki(_reader(language))


class Misaki:
    """A front end over a reader of `misaki`. Words that bring their phonemes keep them."""

    def __init__(self, read: Read) -> None:
        self._read = read
        self._lock = Lock()  # the libraries behind it keep state between calls

    def __call__(self, text: str, check: Check = proceed) -> Trace:
        check()
        words = Trace.of(text)
        parts = []
        at = 0
        for m in _GIVEN.finditer(text):
            parts.append(self._signs(words[at : m.start()]))
            parts.append(words.rewritten(*m.span(), m["phonemes"]))
            at = m.end()
        parts.append(self._signs(words[at:]))
        joined = Trace.joined([part for part in parts if part.text])
        return joined.only(IDS.__contains__).spaced()

    def _signs(self, part: Trace) -> Trace:
        if not part.text.strip():
            return Trace.of("")
        with self._lock:
            signs = self._read(part.text)
        return part.rewritten(0, len(part.text), signs)


def _reader(language: str) -> Read:
    """The function of `misaki` that reads a language."""
    install = f"pip install 'misaki[{EXTRAS[language]}]'"
    if language == "japanese":
        install += " && python -m unidic download"
    try:
        if language in ESPEAK:
            g2p = importlib.import_module("misaki.espeak").EspeakG2P(language=ESPEAK[language])
        elif language == "japanese":
            g2p = importlib.import_module("misaki.ja").JAG2P()
        else:
            g2p = importlib.import_module("misaki.zh").ZHG2P()
    except ImportError as e:
        raise InvalidRequest(
            "language", f"{language} needs a package that is not installed ({e}): {install}"
        ) from None
    except RuntimeError:  # of MeCab: the package unidic comes without its dictionary
        raise InvalidRequest(
            "language", f"{language} needs a dictionary that is not installed: {install}"
        ) from None
    return lambda text: str(g2p(text)[0])

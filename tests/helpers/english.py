"""The English front end, loaded once for all tests."""

from stentor.text import front_end
from stentor.text.front_end import Check, proceed

FRONT_END = front_end("english-phonemes")


def PHONEMES(text: str, check: Check = proceed) -> str:
    """Text that the built-in voice reads."""
    return FRONT_END(text, check).text

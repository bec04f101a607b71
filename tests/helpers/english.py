"""The English front end, loaded once for all tests."""

from stentor.text import front_end

PHONEMES = front_end("english-phonemes")

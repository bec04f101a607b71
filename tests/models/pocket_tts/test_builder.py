"""Models of released sizes without files."""

from __future__ import annotations

import pytest

from stentor import TTS


@pytest.mark.parametrize("name", ["pocket-tts-7m", "pocket-tts-2m"])
def test_a_dummy_speaks_with_its_voice_and_clones(name: str):
    with TTS(f"dummy:{name}", device="cpu", max_num_seqs=2, threads=1) as tts:
        assert tts.voices == ("noise",)
        assert tts.spec.takes_reference
        made = tts.generate(
            "Some words of a text, and more.", ignore_eos=True, max_frames=4, seed=1
        )
        assert len(made.samples) == 4 * 1920
        prompt = tts.prompt(tts.request("Some words."))
        assert prompt.length == 126 + 3 + 1  # voice, words and mark, the beginning of audio

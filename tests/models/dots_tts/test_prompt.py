"""Prompts of dots.tts."""

from __future__ import annotations

from pathlib import Path

import numpy as np

import stentor
from tests.helpers.tiny import checkpoint


def test_the_noise_of_a_recording_does_not_depend_on_what_it_holds(tmp_path: Path) -> None:
    """A piece of a text may continue generated samples, which differ by rounding among other requests."""
    with stentor.TTS(checkpoint("dots_tts", tmp_path), device="cpu", max_num_seqs=1) as tts:
        tone = np.sin(np.arange(30_000) / 20).astype(np.float32) * 0.3
        near = tone.copy()
        near[1000] += 1e-6
        references = [
            tts.load_reference(stentor.Reference((samples, 24_000), "One two."))
            for samples in (tone, near)
        ]
        frames = [
            tts.prompt(tts.request("Three four.", reference=reference, seed=1)).frames
            for reference in references
        ]
    assert np.abs(frames[0] - frames[1]).max() < 1e-2 * np.abs(frames[0]).max()

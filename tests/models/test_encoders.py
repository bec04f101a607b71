"""The families' encoders of reference audio."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from stentor import registry
from stentor.layers import conv
from tests.fixtures.qwen3_tts import tiny_qwen3_tts
from tests.helpers.tiny import FAMILIES, checkpoint


def folder_of(family: str, tmp_path: Path) -> Path:
    if family != "qwen3_tts":
        return checkpoint(family, tmp_path)
    tiny_qwen3_tts.write("base", tmp_path)  # the kind that takes references
    return tmp_path


@pytest.mark.parametrize("family", FAMILIES)
def test_a_reference_encoded_a_window_at_a_time_gives_what_the_whole_gives(family, tmp_path, monkeypatch):
    model = registry.load(folder_of(family, tmp_path), torch.device("cpu"), torch.float64, {})
    wav = torch.randn(20_011, generator=torch.Generator().manual_seed(1)) * 0.1
    with torch.inference_mode():
        whole = model.encode(wav, "reference")
        monkeypatch.setattr(conv, "WINDOW_SAMPLES", 6_000)
        windows = model.encode(wav, "reference")
    for name, value in whole.items():
        torch.testing.assert_close(windows[name], value, rtol=1e-5, atol=1e-5)

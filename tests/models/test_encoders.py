"""The families' encoders of reference audio."""

from __future__ import annotations

import pytest
import torch

from stentor import registry
from stentor.layers import windows
from tests.helpers.tiny import FAMILIES, reference_checkpoint


@pytest.mark.parametrize("family", FAMILIES)
def test_a_reference_encoded_a_window_at_a_time_gives_what_the_whole_gives(
    family, tmp_path, monkeypatch
):
    model = registry.load(
        reference_checkpoint(family, tmp_path), torch.device("cpu"), torch.float64, {}
    )
    wav = torch.randn(20_011, generator=torch.Generator().manual_seed(1)) * 0.1
    with torch.inference_mode():
        whole = model.encode(wav, "reference")  # in one window, which zeros fill up
        monkeypatch.setattr(windows, "COLUMNS", (4, 2))
        found = model.encode(wav, "reference")
    for name, value in whole.items():
        torch.testing.assert_close(found[name], value, rtol=1e-5, atol=1e-5)

"""The codec's decoder for rows of several streams."""

from __future__ import annotations

import pytest
import torch

from stentor import registry
from stentor.models.calm_codec import CPU_FRAMES

CPU = torch.device("cpu")


@pytest.mark.parametrize("count", [1, CPU_FRAMES // 2, CPU_FRAMES + 1])
def test_rows_of_a_call_are_those_of_calls_of_their_own(count: int):
    codec = registry.load("dummy:pocket-tts-2m", CPU, torch.float32, {}).codec
    torch.manual_seed(1)
    state = {name: column.rows(5) for name, column in codec.columns.items()}
    frames = torch.randn(5, count, 32)
    with torch.inference_mode():
        for _ in range(2):  # from the beginning, and with a past
            together, new = codec.decode(frames, state)
            for row in range(5):
                alone, own = codec.decode(
                    frames[row : row + 1], {n: v[row : row + 1] for n, v in state.items()}
                )
                torch.testing.assert_close(together[row], alone[0], rtol=1e-4, atol=1e-6)
                for name in own:
                    torch.testing.assert_close(new[name][row], own[name][0], rtol=1e-4, atol=1e-5)
            state = {name: value.clone() for name, value in new.items()}

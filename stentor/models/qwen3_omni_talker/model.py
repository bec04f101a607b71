"""Qwen3-Omni's talker as a models.base.SpeechModel. One step is the talker and then the code predictor."""

from __future__ import annotations

from torch import Tensor

from stentor.layers.types import Launch, eager
from stentor.models.frame_talker import FrameTalker


class OmniTalker(FrameTalker):
    """A loaded checkpoint (implements models.base.SpeechModel)."""

    def encode(self, wav: Tensor, role: str, launch: Launch = eager) -> dict[str, Tensor]:
        """Refuse: voices are rows of a table, and no recording becomes one."""
        raise ValueError("this model has no reference encoder")

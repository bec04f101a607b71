"""Building a model of either kind, by config.json."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from stentor.models.source import Source
from stentor.models.vibevoice import dialogue_builder, realtime_builder
from stentor.models.vibevoice.model import VibeVoiceDialogue
from stentor.models.vibevoice.realtime_model import VibeVoiceRealtime

REALTIME = "vibevoice_streaming"


@torch.no_grad()
def build(
    source: Source, device: torch.device, dtype: torch.dtype | None, options: Mapping[str, Any]
) -> VibeVoiceRealtime | VibeVoiceDialogue:
    """`dtype` None: bfloat16 on a GPU, float32 on a CPU. Without files words take the place of
    tokens, and the voice of Realtime is noise.

    Load options: `codec_dtype`, `quantization` of the language model's weights, those of adapters
    (models/lora.py), and of a checkpoint `lora` (a PEFT folder to merge). Raises CheckpointError
    and InvalidRequest.
    """
    if source.config.get("model_type") == REALTIME:
        return realtime_builder.build(source, device, dtype, options)
    return dialogue_builder.build(source, device, dtype, options)

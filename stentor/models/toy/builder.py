"""Building a toy: toy.json or config.json holds its options, and there are no weight files."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from stentor.models.config_reader import ConfigReader
from stentor.models.source import MOST_SEED, Source
from stentor.models.toy import FILES
from stentor.models.toy.codec import LateCodec, ToyCodec, UtteranceCodec
from stentor.models.toy.frames import FramesToy
from stentor.models.toy.model import Toy

CODECS: Mapping[str, type[ToyCodec | UtteranceCodec]] = {
    "causal": ToyCodec,
    "utterance": UtteranceCodec,
    "late": LateCodec,
}


def build(
    source: Source, device: torch.device, dtype: torch.dtype | None, options: Mapping[str, Any]
) -> Toy:
    """`dtype` None: float32. There are no load options. Raises CheckpointError and InvalidRequest.

    Values of the file: `seed` of the weights, `codec`, `words` (it aligns them with frames),
    `window` (text that it sees behind and ahead of the last frame's place), and `frame_pages` (it
    has page sets by frame).
    """
    source.check_options(options, ())
    config = source.json(FILES[0], {})
    if config:
        reader = ConfigReader(config, FILES[0])
    else:
        reader = ConfigReader(source.config)
    codec = reader.choice("codec", CODECS, "causal")
    if reader.data.get("window") is not None:
        window = reader.integers("window")
    else:
        window = None
    return (FramesToy if reader.flag("frame_pages", False) else Toy)(
        reader.integer("seed", 0, low=0, high=MOST_SEED),
        dtype or torch.float32,
        device,
        CODECS[codec],
        reader.flag("words", False),
        (window[0], window[-1]) if window else None,
    )

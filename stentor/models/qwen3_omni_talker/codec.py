"""code2wav: the mean of 16 code rows, windowed attention, up-sampling. Its first 555 samples do not
exist."""

from __future__ import annotations

import torch
from torch import nn

from stentor.layers.configs import FrameDecoderConfig
from stentor.layers.frame_decoder import FrameDecoder, ScaledStack


class Decoder(FrameDecoder):
    """The decoder as the checkpoint names it. `process_weights_after_loading` must follow the
    loading of weights."""

    def __init__(self, c: FrameDecoderConfig) -> None:
        super().__init__(c)
        self.code_embedding = nn.Embedding(c.codebooks * c.codebook_size, c.latent)
        self.pre_transformer = ScaledStack(c.stack)
        self.add_convolutions()

    def process_weights_after_loading(self, dtype: torch.dtype | None = None) -> None:
        """Prepare for decoding: fold gains and the mean over codebooks into weights, and round
        these to `dtype` unless it is None. Call it once."""
        self.fold_gains()
        table = self.code_embedding.weight / self.shape.codebooks
        del self.code_embedding
        self.finish(table, dtype)

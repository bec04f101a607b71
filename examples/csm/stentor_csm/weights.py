"""The language models as the checkpoint names them."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from stentor.layers.transformer import Stack
from stentor_csm.config import Config


class DepthStack(Stack):
    """The depth decoder's transformer, with the embeddings of all codes, which the backbone reads too."""

    def __init__(self, c: Config) -> None:
        super().__init__(c.depth)
        self.embed_tokens = nn.Embedding(c.codebooks * c.vocab, c.backbone.hidden)
        self.inputs_embeds_projector = nn.Linear(c.backbone.hidden, c.depth.hidden, bias=False)


class Heads(nn.Module):
    def __init__(self, c: Config) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(c.codebooks - 1, c.depth.hidden, c.vocab))


class DepthDecoder(nn.Module):
    def __init__(self, c: Config) -> None:
        super().__init__()
        self.model = DepthStack(c)
        self.codebooks_head = Heads(c)


class Weights(nn.Module):
    """All but the codec."""

    def __init__(self, c: Config) -> None:
        super().__init__()
        self.embed_text_tokens = nn.Embedding(c.text_vocab, c.backbone.hidden)
        self.backbone_model = Stack(c.backbone)
        self.lm_head = nn.Linear(c.backbone.hidden, c.vocab, bias=False)
        self.depth_decoder = DepthDecoder(c)

    @torch.no_grad()
    def projected_codes(self) -> Tensor:
        """Inputs of the depth decoder [codebooks * vocab, depth hidden], so that no step projects them."""
        model = self.depth_decoder.model
        out: Tensor = model.inputs_embeds_projector(model.embed_tokens.weight)
        return out

"""The two language models as the checkpoint names them, and the tables that serving makes of their embeddings."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from stentor.layers.rope import Rope, angles
from stentor.layers.transformer import Stack
from stentor.models.qwen3_tts.config import Config, TransformerConfig
from stentor.models.qwen3_tts.ops import CodeTable
from stentor.models.qwen3_tts.speaker_encoder import SpeakerEncoder

ROWS_PER_PASS = 8192


class TextProjection(nn.Module):
    """Text width to talker width: linear, SiLU, linear."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.linear_fc1 = nn.Linear(inputs, inputs)
        self.linear_fc2 = nn.Linear(inputs, outputs)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.linear_fc2(F.silu(self.linear_fc1(x)))
        return out


class TalkerStack(Stack):
    def __init__(self, c: Config) -> None:
        super().__init__(c.talker.stack)
        self.codec_embedding = nn.Embedding(c.talker.vocab, c.talker.stack.hidden)
        self.text_embedding = nn.Embedding(c.text_vocab, c.text_hidden)


class PredictorStack(Stack):
    def __init__(self, c: Config) -> None:
        super().__init__(c.predictor.stack)
        size = (c.predictor.vocab, c.talker.stack.hidden)
        self.codec_embedding = nn.ModuleList(nn.Embedding(*size) for _ in range(c.codebooks - 1))


class Predictor(nn.Module):
    def __init__(self, c: Config) -> None:
        super().__init__()
        hidden = c.predictor.stack.hidden
        self.model = PredictorStack(c)
        self.lm_head = nn.ModuleList(nn.Linear(hidden, c.predictor.vocab, bias=False) for _ in range(c.codebooks - 1))
        self.small_to_mtp_projection = nn.Linear(c.talker.stack.hidden, hidden) if c.projects else nn.Identity()


class Talker(nn.Module):
    def __init__(self, c: Config) -> None:
        super().__init__()
        self.model = TalkerStack(c)
        self.text_projection = TextProjection(c.text_hidden, c.talker.stack.hidden)
        self.codec_head = nn.Linear(c.talker.stack.hidden, c.talker.vocab, bias=False)
        self.code_predictor = Predictor(c)


class Weights(nn.Module):
    """The main file of a checkpoint."""

    def __init__(self, c: Config) -> None:
        super().__init__()
        self.config = c
        self.talker = Talker(c)
        if c.speaker is not None:
            self.speaker_encoder = SpeakerEncoder(c.speaker)

    def process_weights_after_loading(self) -> Tables:
        """Project the embeddings into tables, and free them."""
        tables, talker = Tables(self), self.talker
        del talker.model.text_embedding, talker.model.codec_embedding, talker.text_projection
        del talker.code_predictor.model.codec_embedding
        return tables


class Tables:
    """Embeddings, projected once so that the projections disappear from serving.

    Code tables stack all codebooks. Row `i` of codebook `g` is `offset[g] + i`. Codebook 0 has the talker's whole
    vocabulary, so that special codec ids are rows too.
    """

    def __init__(self, weights: Weights) -> None:
        c, talker, predictor = weights.config, weights.talker, weights.talker.code_predictor
        self.text = _project(talker.text_projection, talker.model.text_embedding.weight)
        books = [
            talker.model.codec_embedding.weight,
            *(e.get_parameter("weight") for e in predictor.model.codec_embedding),
        ]
        rows = torch.cat(books).detach()
        self.depth = _project(predictor.small_to_mtp_projection, rows) if c.projects else rows
        """[talker vocab + 15 * vocab, predictor hidden]: inputs of the predictor."""
        self.starts = (0, *(c.talker.vocab + g * c.predictor.vocab for g in range(c.codebooks - 1)))
        self.code = CodeTable(torch.tensor(self.starts, device=rows.device), rows)
        """[talker vocab + 15 * vocab, talker hidden]: inputs of the talker."""


def _project(module: nn.Module, table: Tensor) -> Tensor:
    """module(table) row by row, in passes that bound the memory of the hidden layer."""
    with torch.no_grad():
        return torch.cat([module(table[at : at + ROWS_PER_PASS]) for at in range(0, len(table), ROWS_PER_PASS)])


def rope(c: TransformerConfig, positions: int, device: torch.device, dtype: torch.dtype) -> Rope:
    """cos and sin are rounded to the model's dtype and rotate in it, as in the reference."""
    table = angles(c.stack.head_dim, positions, c.theta)
    return Rope(table, dtype, interleaved=False, in_float32=False).to(device)

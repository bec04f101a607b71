"""The two language models as the checkpoint names them."""

from __future__ import annotations

from torch import nn

from stentor.layers.depth_loop import CodePredictor, Tables, TextProjection, project
from stentor.layers.transformer import Stack
from stentor.models.qwen3_tts.config import Config
from stentor.models.qwen3_tts.speaker_encoder import SpeakerEncoder


class TalkerStack(Stack):
    def __init__(self, c: Config) -> None:
        super().__init__(c.talker.stack)
        self.codec_embedding = nn.Embedding(c.talker.vocab, c.talker.stack.hidden)
        self.text_embedding = nn.Embedding(c.text_vocab, c.text_hidden)


class Talker(nn.Module):
    def __init__(self, c: Config) -> None:
        super().__init__()
        self.model = TalkerStack(c)
        self.text_projection = TextProjection(c.text_hidden, c.text_hidden, c.talker.stack.hidden)
        self.codec_head = nn.Linear(c.talker.stack.hidden, c.talker.vocab, bias=False)
        self.code_predictor = CodePredictor(c.predictor.stack, c.codebooks, c.predictor.vocab, c.talker.stack.hidden)


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
        talker = self.talker
        text = project(talker.text_projection, talker.model.text_embedding.weight)
        tables = Tables(text, talker.model.codec_embedding.weight, talker.code_predictor)
        del talker.model.text_embedding, talker.model.codec_embedding, talker.text_projection
        return tables

"""The two language models as the checkpoint names them, and the thinker's table of text rows."""

from __future__ import annotations

from torch import nn

from stentor.layers.depth_loop import CodePredictor, Tables, TextProjection, project
from stentor.layers.transformer import Stack
from stentor.models.qwen3_omni_talker.config import Config


class TalkerStack(Stack):
    """The backbone with the rows of its codes."""

    def __init__(self, c: Config) -> None:
        super().__init__(c.talker.stack)
        self.codec_embedding = nn.Embedding(c.talker.vocab, c.talker.stack.hidden)


class Talker(nn.Module):
    """Backbone, head of the first code, predictor of the others."""

    def __init__(self, c: Config) -> None:
        super().__init__()
        hidden = c.talker.stack.hidden
        self.model = TalkerStack(c)
        self.text_projection = TextProjection(c.text_hidden, c.text_inner, hidden)
        self.codec_head = nn.Linear(hidden, c.talker.vocab, bias=False)
        self.code_predictor = CodePredictor(c.predictor.stack, c.codebooks, c.predictor.vocab, hidden)


class ThinkerStack(nn.Module):
    """The thinker without its layers."""

    def __init__(self, c: Config) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(c.text_vocab, c.text_hidden)


class Thinker(nn.Module):
    """The only tensor of the thinker that speech needs, by its name."""

    def __init__(self, c: Config) -> None:
        super().__init__()
        self.model = ThinkerStack(c)


class Weights(nn.Module):
    """The tensors of a checkpoint that are no codec's."""

    def __init__(self, c: Config) -> None:
        super().__init__()
        self.talker = Talker(c)
        self.thinker = Thinker(c)

    def process_weights_after_loading(self) -> Tables:
        """Project the embeddings into tables, and free them."""
        talker = self.talker
        text = project(talker.text_projection, self.thinker.model.embed_tokens.weight)
        del self.thinker, talker.text_projection
        tables = Tables(text, talker.model.codec_embedding.weight, talker.code_predictor)
        del talker.model.codec_embedding
        return tables

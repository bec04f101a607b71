"""The two language models as the checkpoint names them, and the thinker's table of text rows."""

from __future__ import annotations

from torch import nn

from stentor.layers.depth_loop import Tables, project
from stentor.models.frame_talker import Talker
from stentor.models.qwen3_omni_talker.config import Config


class Weights(nn.Module):
    """The tensors of a checkpoint that are no codec's. Speech needs one of the thinker's, by its name."""

    def __init__(self, c: Config) -> None:
        super().__init__()
        self.talker = Talker(c, c.text_inner, own_text=False)
        self.thinker = nn.ModuleDict(
            {"model": nn.ModuleDict({"embed_tokens": nn.Embedding(c.text_vocab, c.text_hidden)})}
        )

    def process_weights_after_loading(self) -> Tables:
        """Project the embeddings into tables, and free them."""
        talker = self.talker
        text = project(talker.text_projection, self.thinker.get_parameter("model.embed_tokens.weight"))
        del self.thinker, talker.text_projection
        tables = Tables(text, talker.model.codec_embedding.weight, talker.code_predictor)
        del talker.model.codec_embedding
        return tables

"""Qwen3-Omni's talker as a models.base.SpeechModel. One step is the talker and then the code
predictor."""

from __future__ import annotations

from torch import Tensor, nn

from stentor.layers.depth_loop import DepthTables, project
from stentor.layers.types import Launch, eager
from stentor.models.frame_talker import FrameTalker, Talker
from stentor.models.qwen3_omni_talker.config import Config


class Weights(nn.Module):
    """The tensors of a checkpoint that are no codec's. Speech needs one of the thinker's, by its
    name."""

    def __init__(self, c: Config) -> None:
        super().__init__()
        self.talker = Talker(c, c.text_inner, own_text=False)
        self.thinker = nn.ModuleDict(
            {"model": nn.ModuleDict({"embed_tokens": nn.Embedding(c.text_vocab, c.text_hidden)})}
        )

    def process_weights_after_loading(self) -> DepthTables:
        """Project the embeddings into tables, and free them."""
        talker = self.talker
        text = project(
            talker.text_projection, self.thinker.get_parameter("model.embed_tokens.weight")
        )
        del self.thinker, talker.text_projection
        tables = DepthTables(text, talker.model.codec_embedding.weight, talker.code_predictor)
        del talker.model.codec_embedding
        return tables


class OmniTalker(FrameTalker):
    """A loaded checkpoint (implements models.base.SpeechModel)."""

    def encode(self, wav: Tensor, role: str, launch: Launch = eager) -> dict[str, Tensor]:
        """Refuse: voices are rows of a table, and no recording becomes one."""
        raise ValueError("this model has no reference encoder")

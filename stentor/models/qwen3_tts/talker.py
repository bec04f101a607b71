"""The two language models as the checkpoint names them."""

from __future__ import annotations

from torch import nn

from stentor.layers.depth_loop import Tables, project
from stentor.models.frame_talker import Talker
from stentor.models.qwen3_tts.config import Config
from stentor.models.qwen3_tts.speaker_encoder import SpeakerEncoder


class Weights(nn.Module):
    """The main file of a checkpoint."""

    def __init__(self, c: Config) -> None:
        super().__init__()
        self.config = c
        self.talker = Talker(c, c.text_hidden, own_text=True)
        if c.speaker is not None:
            self.speaker_encoder = SpeakerEncoder(c.speaker)

    def process_weights_after_loading(self) -> Tables:
        """Project the embeddings into tables, and free them."""
        talker = self.talker
        text = project(talker.text_projection, talker.model.get_parameter("text_embedding.weight"))
        tables = Tables(text, talker.model.codec_embedding.weight, talker.code_predictor)
        del talker.model.text_embedding, talker.model.codec_embedding, talker.text_projection
        return tables

"""The language model of 1.5B and 7B, and what stands before and behind it. Modules are named as in
the checkpoint."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from stentor.layers.configs import StackConfig
from stentor.layers.linear import linear
from stentor.layers.transformer import Stack
from stentor.models.vibevoice.config import DialogueConfig
from stentor.models.vibevoice.connector import Connector
from stentor.models.vibevoice.diffusion import DiffusionHead


class LanguageModel(Stack):
    """The layers with their embedding."""

    def __init__(self, c: StackConfig, vocab: int) -> None:
        super().__init__(c)
        self.embed_tokens = nn.Embedding(vocab, c.hidden)


class DialogueModel(nn.Module):
    """The parts that make latents."""

    def __init__(self, c: DialogueConfig) -> None:
        super().__init__()
        hidden = c.language.hidden
        self.language_model = LanguageModel(c.language, c.vocab)
        self.acoustic_connector = Connector(c.head.latent, hidden)
        self.semantic_connector = Connector(c.semantic.latent, hidden)
        self.prediction_head = DiffusionHead(c.head)


class DialogueNet(nn.Module):
    """All of a checkpoint but the codec. `process_weights_after_loading` must follow the
    loading."""

    choices: Tensor

    def __init__(self, c: DialogueConfig) -> None:
        super().__init__()
        self.model = DialogueModel(c)
        self.lm_head = None
        if not c.tied:
            self.lm_head = nn.Linear(
                c.language.hidden,
                c.vocab,
                bias=False,
            )

    def process_weights_after_loading(self, choices: Sequence[int]) -> None:
        """Keep the rows of the output layer that the tokens `choices` have. No other is read."""
        table = self.model.language_model.embed_tokens.weight
        if self.lm_head is not None:
            table = self.lm_head.weight
        rows = table[list(choices)].detach().clone()
        self.register_buffer("choices", rows, persistent=False)
        del self.lm_head

    def chosen(self, h: Tensor) -> Tensor:
        """h [B, hidden] -> the likeliest of the choices, as their number [B]."""
        logits = linear(h, self.choices)
        return logits.float().argmax(-1)

    def inputs(self, z: Tensor, semantic: Tensor) -> Tensor:
        """Latents [B, latent] and what the semantic encoder gave for their audio [B, semantic] as
        inputs [B, hidden]."""
        dtype = self.choices.dtype
        model = self.model
        acoustic: Tensor = model.acoustic_connector(z.to(dtype))
        spoken: Tensor = model.semantic_connector(semantic.to(dtype))
        return acoustic + spoken

"""Pocket-TTS as a models.base.SpeechModel: pure functions over rows."""

from __future__ import annotations

from torch import Tensor

from stentor.layers.types import Launch, eager
from stentor.models.calm_codec import Decoder
from stentor.models.calm_language_model import LanguageModel
from stentor.models.calm_model import CalmModel
from stentor.models.pocket_tts.config import PocketConfig
from stentor.models.pocket_tts.encoder import Encoder
from stentor.models.pocket_tts.prompt import PromptBuilder
from stentor.models.pocket_tts.spec import make_spec


class PocketTTS(CalmModel):
    """A loaded checkpoint (implements SpeechModel)."""

    def __init__(
        self,
        c: PocketConfig,
        net: LanguageModel,
        decoder: Decoder,
        encoder: Encoder,
        prompts: PromptBuilder,
        language: str,
        clones: bool,
    ) -> None:
        """clones: whether the encoder's weights are those of the release that may clone."""
        spec = make_spec(c, net.dtype, tuple(prompts.voices), language, clones)
        super().__init__(c, net, decoder, prompts, spec)
        self.encoder = encoder

    def encode(self, wav: Tensor, role: str, launch: Launch = eager) -> dict[str, Tensor]:
        """Audio [n] -> `voice` [V, voice], its latents as they are encoded."""
        return {"voice": self.encoder(wav, launch)}

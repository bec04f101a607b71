"""Qwen3-Omni's talker as a models.base.SpeechModel. One step is the talker and then the code predictor."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from stentor.layers.frame_decoder import FrameCodec
from stentor.layers.types import Launch, eager
from stentor.models.base import Prompt, Voice, VoiceSource
from stentor.models.frame_talker import FrameTalker
from stentor.models.info import SpeechRequest
from stentor.models.lora import NO_ADAPTERS, AdapterSlots
from stentor.models.qwen3_omni_talker.codec import Decoder
from stentor.models.qwen3_omni_talker.config import Config
from stentor.models.qwen3_omni_talker.prompt import PromptBuilder
from stentor.models.qwen3_omni_talker.spec import make_spec
from stentor.models.qwen3_omni_talker.talker import Weights
from stentor.models.qwen3_omni_talker.tokenizer import Tokenize
from stentor.text.front_end import Check
from stentor.text.marks import has_words


class OmniTalker(FrameTalker):
    """A loaded checkpoint (implements models.base.SpeechModel)."""

    def __init__(
        self,
        config: Config,
        weights: Weights,
        decoder: Decoder,
        tokenize: Tokenize,
        defaults: dict[str, object],
        adapters: AdapterSlots = NO_ADAPTERS,
    ) -> None:
        """`weights` and `decoder` are filled. Their embeddings are taken over and freed."""
        decoder.process_weights_after_loading()
        self.adapters = adapters
        self.spec = make_spec(config, defaults, weights.talker.codec_head.weight.dtype, adapters.columns)
        self.codec = FrameCodec(decoder)
        ids, positions = config.ids, self.spec.max_model_len
        super().__init__(weights, config.talker, config.predictor, config.codebooks, positions, ids.tts_pad, ids.eos)
        self._prompts = PromptBuilder(config, tokenize, positions)

    def encode(self, wav: Tensor, role: str, launch: Launch = eager) -> dict[str, Tensor]:
        """Refuse: voices are rows of a table, and no recording becomes one."""
        raise ValueError("this model has no reference encoder")

    def references(self, request: SpeechRequest) -> list[VoiceSource]:
        return []

    def prompt(self, request: SpeechRequest, voices: Sequence[Voice]) -> Prompt:
        return self._prompts.build(request)

    def speakable(self, text: str, check: Check) -> bool:
        return has_words(text, self.spec.marks)

"""Qwen3-TTS as a models.base.SpeechModel. One step is the talker and then the code predictor."""

from __future__ import annotations

from torch import Tensor, nn

from stentor.layers.depth_loop import Tables, project
from stentor.layers.types import Launch, eager
from stentor.models.frame_talker import FrameTalker, Talker
from stentor.models.lora import NO_ADAPTERS, AdapterSlots
from stentor.models.qwen3_tts.codec import Decoder, Encoder
from stentor.models.qwen3_tts.config import CodecConfig, Config
from stentor.models.qwen3_tts.prompt import PromptBuilder
from stentor.models.qwen3_tts.speaker_encoder import LogMel, SpeakerEncoder
from stentor.models.qwen3_tts.spec import make_spec
from stentor.models.qwen3_tts.tokenizer import Tokenizer


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


class CloneEncoder:
    """Base models: a reference's codes and speaker vector."""

    def __init__(self, encoder: Encoder, mel: LogMel, speaker: SpeakerEncoder) -> None:
        self._encoder, self._mel, self._speaker = encoder, mel, speaker

    def __call__(self, samples: Tensor, launch: Launch) -> dict[str, Tensor]:
        """samples [n] at 24 kHz -> codes [ceil(n / 1920), 16] int32 and speaker [dim] float32."""
        codes = self._encoder(samples, launch).int()  # first: a GPU computes it while the host launches the other
        return {"codes": codes, "speaker": self._speaker(self._mel(samples))[0].float()}


class Qwen3TTS(FrameTalker):
    """A loaded checkpoint (implements models.base.SpeechModel)."""

    def __init__(
        self,
        config: Config,
        codec_config: CodecConfig,
        weights: Weights,
        decoder: Decoder,
        clone: CloneEncoder | None,
        tokenizer: Tokenizer,
        defaults: dict[str, object],
        adapters: AdapterSlots = NO_ADAPTERS,
    ) -> None:
        """`weights` are filled. Their embeddings are taken over and freed. `decoder` is ready."""
        self._clone = clone
        spec = make_spec(config, codec_config, defaults, weights.talker.codec_head.weight.dtype, adapters.columns)
        prompts = PromptBuilder(config, tokenizer, spec.max_model_len)
        super().__init__(config, weights, decoder, spec, prompts, adapters)

    def encode(self, wav: Tensor, role: str, launch: Launch = eager) -> dict[str, Tensor]:
        """wav [n] at 24 kHz -> codes [T, 16] and speaker [dim]. `role` makes no difference."""
        if self._clone is None:
            raise ValueError("this checkpoint has no reference encoder")
        return self._clone(wav, launch)

"""Qwen3-TTS as a models.base.SpeechModel. One step is the talker and then the code predictor."""

from __future__ import annotations

from torch import Tensor, nn

from stentor.layers.depth_loop import DepthTables, project
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

    def process_weights_after_loading(self) -> DepthTables:
        """Project the embeddings into tables, and free them."""
        talker = self.talker
        text = project(talker.text_projection, talker.model.get_parameter("text_embedding.weight"))
        tables = DepthTables(text, talker.model.codec_embedding.weight, talker.code_predictor)
        del talker.model.text_embedding, talker.model.codec_embedding, talker.text_projection
        return tables


class Qwen3TTS(FrameTalker):
    """A loaded checkpoint (implements models.base.SpeechModel)."""

    def __init__(
        self,
        config: Config,
        codec_config: CodecConfig,
        weights: Weights,
        decoder: Decoder,
        clone: tuple[Encoder, LogMel, SpeakerEncoder] | None,
        tokenizer: Tokenizer,
        defaults: dict[str, object],
        adapters: AdapterSlots = NO_ADAPTERS,
    ) -> None:
        """`weights` are filled. Their embeddings are taken over and freed. `decoder` is ready.
        clone: encoders of a reference's codes and speaker, of Base models."""
        self._clone = clone
        spec = make_spec(
            config, codec_config, defaults, weights.talker.codec_head.weight.dtype, adapters.columns
        )
        prompts = PromptBuilder(config, tokenizer, spec.max_model_len)
        super().__init__(config, weights, decoder, spec, prompts, adapters)

    def encode(self, wav: Tensor, role: str, launch: Launch = eager) -> dict[str, Tensor]:
        """wav [n] at 24 kHz -> codes [ceil(n / 1920), 16] int32 and speaker [dim] float32, whatever
        its role."""
        if self._clone is None:
            raise ValueError("this checkpoint has no reference encoder")
        encoder, mel, speaker = self._clone
        # first: a GPU computes it while the host launches the other
        codes = encoder(wav, launch).int()
        return {"codes": codes, "speaker": speaker(mel(wav))[0].float()}

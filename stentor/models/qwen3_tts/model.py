"""Qwen3-TTS as a models.base.SpeechModel. One step is the talker and then the code predictor.

Codes, hidden states and text rows never leave the device between steps.
"""

from __future__ import annotations

import torch
from torch import Tensor

from stentor.kernels.types import MinFrames, SamplingParams
from stentor.layers.linear import linear
from stentor.layers.types import Launch, eager
from stentor.models.base import Emit, Encode, Hidden, KVView, Prompt, PromptRows, Rows, SpeechRequest
from stentor.models.lora import NO_ADAPTERS, AdapterSlots
from stentor.models.qwen3_tts.codec_decoder import Codec, Decoder
from stentor.models.qwen3_tts.codec_encoder import Encoder
from stentor.models.qwen3_tts.config import CodecConfig, Config
from stentor.models.qwen3_tts.ops import embed_codes_and_text, embed_prompt, sample_first_codebook
from stentor.models.qwen3_tts.predictor import DepthLoop
from stentor.models.qwen3_tts.prompt import PromptBuilder
from stentor.models.qwen3_tts.speaker_encoder import LogMel, SpeakerEncoder
from stentor.models.qwen3_tts.spec import make_spec
from stentor.models.qwen3_tts.talker import Weights, rope
from stentor.models.qwen3_tts.tokenizer import Tokenizer
from stentor.text.front_end import Check
from stentor.text.marks import has_words

SUPPRESSED = 1024
"""The talker never samples the last 1024 ids of its vocabulary, which are markers, except EOS."""

SAMPLING = ("temperature", "top_k", "top_p")


class CloneEncoder:
    """Base models: a reference's codes and speaker vector."""

    def __init__(self, encoder: Encoder, mel: LogMel, speaker: SpeakerEncoder) -> None:
        self._encoder, self._mel, self._speaker = encoder, mel, speaker

    def __call__(self, samples: Tensor, launch: Launch) -> dict[str, Tensor]:
        """samples [n] at 24 kHz -> codes [ceil(n / 1920), 16] int32 and speaker [dim] float32."""
        codes = self._encoder(samples, launch).int()  # first: a GPU computes it while the host launches the other
        return {"codes": codes, "speaker": self._speaker(self._mel(samples))[0].float()}


class Qwen3TTS:
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
        """`weights` and `decoder` are filled. Their embeddings are taken over and freed."""
        decoder.process_weights_after_loading()
        talker, predictor = weights.talker, weights.talker.code_predictor
        device, dtype = talker.codec_head.weight.device, talker.codec_head.weight.dtype
        self.adapters = adapters
        self.spec = make_spec(config, codec_config, defaults, dtype, adapters.columns)
        self.codec = Codec(decoder)
        self._ids, self._clone = config.ids, clone
        self._stack, self._head = talker.model, talker.codec_head
        self._rope = rope(config.talker, self.spec.max_model_len, device, dtype)
        depth_rope = rope(config.predictor, config.codebooks, device, dtype)
        heads = torch.stack([head.get_parameter("weight") for head in predictor.lm_head]).detach()
        del predictor.lm_head
        # The last to allocate: what lay in the memory of the embeddings that this frees would keep it from the driver.
        self._tables = weights.process_weights_after_loading()
        projection, stack = predictor.small_to_mtp_projection, config.predictor.stack
        self._predictor = DepthLoop(stack, predictor.model, heads, projection, self._tables, depth_rope)
        self._prompts = PromptBuilder(config, tokenizer, self.spec.max_model_len)

    def encode(self, wav: Tensor, role: str, launch: Launch = eager) -> dict[str, Tensor]:
        """wav [n] at 24 kHz -> codes [T, 16] and speaker [dim]. `role` makes no difference."""
        if self._clone is None:
            raise ValueError("this checkpoint has no reference encoder")
        return self._clone(wav, launch)

    def prompt(self, request: SpeechRequest, encode: Encode) -> Prompt:
        return self._prompts.build(request, encode)

    def speakable(self, text: str, check: Check) -> bool:
        return has_words(text, self.spec.marks)

    def embed_prompt(self, p: PromptRows) -> Hidden:
        """The sum of what each position has: a text row, a codec row, a frame, the speaker vector."""
        tables, rows = self._tables, p.rows
        text, code = (rows["text"], tables.text), (rows["code"], tables.code.rows)
        return (embed_prompt(text, code, rows.get("speaker"), (p.frames, p.frame_at), tables.code),)

    def embed_frame(self, rows: Rows) -> Hidden:
        """The last frame's codes and the text that stands beside it."""
        tables, tokens = self._tables, rows.column("text")
        x = embed_codes_and_text(rows["prev"], tables.code, rows["step"], tokens, tables.text, self._ids.tts_pad)
        return (x,)

    def backbone(self, x: Hidden, kv: KVView) -> Hidden:
        return (self._stack(x[0], kv.attend, self._rope, kv.pos),)

    def emit(self, h: Hidden, rows: Rows, u: Tensor) -> Emit:
        """Codebook 0 from the talker, then 1 to 15 from the predictor."""
        loop = self._predictor.start(h[0])
        stop, seen = sample_first_codebook(
            linear(h[0], self._head.weight),
            SamplingParams(u[:, 0], *(rows[name] for name in SAMPLING)),
            loop.first,
            rows.column("seen"),
            rows["repetition_penalty"],
            MinFrames(rows["step"], rows["min_frames"]),
            SUPPRESSED,
            self._ids.eos,
        )
        frame = self._predictor(loop, u[:, 1:], *(rows["subtalker_" + name] for name in SAMPLING))
        return Emit(frame, stop, {"seen": seen})

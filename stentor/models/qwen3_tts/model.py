"""The family behind models.base.SpeechModel: one step is the talker and then the code predictor.

Codes, hidden states and text rows never leave the device between steps.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from stentor import kernels
from stentor.kernels import Kernel
from stentor.kernels.types import MinFrames, SampleOut
from stentor.layers.linear import linear
from stentor.layers.sampling import penalize_seen
from stentor.models.base import Emit, Encode, Hidden, KVView, Prompt, PromptRows, Rows, SpeechRequest
from stentor.models.qwen3_tts.codec_decoder import Codec, Decoder
from stentor.models.qwen3_tts.codec_encoder import Encoder
from stentor.models.qwen3_tts.config import CodecConfig, Config
from stentor.models.qwen3_tts.predictor import DepthLoop, Sampling
from stentor.models.qwen3_tts.prompt import PromptBuilder
from stentor.models.qwen3_tts.speaker_encoder import LogMel, SpeakerEncoder
from stentor.models.qwen3_tts.spec import TEXT_CAPACITY, make_spec
from stentor.models.qwen3_tts.talker import Weights, rope
from stentor.models.qwen3_tts.tokenizer import Tokenizer

SUPPRESSED = 1024
"""The talker never draws from the last 1024 ids of its vocabulary, which are markers, but for EOS."""


SAMPLING = ("temperature", "top_k", "top_p")


class CloneEncoder:
    """Base models: a reference's codes and speaker vector."""

    def __init__(self, encoder: Encoder, mel: LogMel, speaker: SpeakerEncoder) -> None:
        self._encoder, self._mel, self._speaker = encoder, mel, speaker

    def __call__(self, samples: Tensor) -> dict[str, Tensor]:
        """samples [n] at 24 kHz -> codes [ceil(n / 1920), 16] int32 and speaker [dim] float32."""
        speaker = self._speaker(self._mel(samples))[0].float()
        return {"codes": self._encoder(samples).int(), "speaker": speaker}


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
    ) -> None:
        """`weights` and `decoder` are filled; their embeddings are taken over and freed."""
        decoder.process_weights_after_loading()
        talker = weights.talker
        self._tables = weights.process_weights_after_loading()
        device, dtype = self._tables.code.device, self._tables.code.dtype
        self.spec = make_spec(config, codec_config, defaults, dtype)
        self.codec = Codec(decoder)
        self._ids, self._clone = config.ids, clone
        self._stack, self._head = talker.model, talker.codec_head
        self._rope = rope(config.talker, self.spec.max_model_len, device, dtype)
        predictor = talker.code_predictor
        self._depth = DepthLoop(
            config.predictor.stack,
            predictor.model,
            torch.stack([head.get_parameter("weight") for head in predictor.lm_head]).detach(),
            predictor.small_to_mtp_projection,
            self._tables,
            rope(config.predictor, config.codebooks, device, dtype),
        )
        del predictor.lm_head
        self._vocab = torch.arange(config.talker.vocab, device=device)
        self._eos = self._vocab == config.ids.eos
        self._suppressed = (self._vocab >= config.talker.vocab - SUPPRESSED) & ~self._eos
        self._prompt = PromptBuilder(config, tokenizer, self.spec.max_model_len)

    def encode(self, wav: Tensor, role: str) -> dict[str, Tensor]:
        """wav [n] at 24 kHz -> codes [T, 16] and speaker [dim]; `role` makes no difference."""
        if self._clone is None:
            raise ValueError("this checkpoint has no reference encoder")
        return self._clone(wav)

    def prompt(self, request: SpeechRequest, encode: Encode) -> Prompt:
        return self._prompt(request, encode)

    def embed_prompt(self, p: PromptRows) -> Hidden:
        """The sum of what each position has: a text row, a codec row, a frame, the speaker vector."""
        table = self._tables
        if kernels.enabled(Kernel.EMBED, table.code):
            from stentor.models.qwen3_tts.kernels import embed_prompt

            spoken = (p.frames, table.offset, table.code, p.frame_at)
            text, code = ((p.rows[name], rows) for name, rows in (("text", table.text), ("code", table.code)))
            return (embed_prompt(text, code, p.rows.get("speaker"), spoken),)
        x = _rows(table.text, p.rows["text"]) + _rows(table.code, p.rows["code"])
        if "speaker" in p.rows:
            x = x + p.rows["speaker"].to(x.dtype)
        frames = self._frames(p.frames)
        given = x.new_zeros(len(x) + 1, x.shape[1]).index_copy(0, p.frame_at, frames)
        return (x + given[:-1],)

    def embed_frame(self, rows: Rows) -> Hidden:
        """The last frame's codes and the text that stands beside it."""
        table = self._tables
        if kernels.enabled(Kernel.EMBED, table.code):
            from stentor.models.qwen3_tts.kernels import embed_codes_and_text

            column, pad = rows.column("text"), self._ids.tts_pad
            x = embed_codes_and_text(rows["prev"], table.offset, table.code, rows["step"], column, table.text, pad)
            return (x,)
        at = rows["step"] - 1
        told = rows.lookup("text", at.clamp(0, TEXT_CAPACITY - 1)).long()
        text = torch.where(at < TEXT_CAPACITY, told, self._ids.tts_pad)
        return (self._frames(rows["prev"]) + F.embedding(text, table.text),)

    def backbone(self, x: Hidden, kv: KVView) -> Hidden:
        return (self._stack(x[0], kv.attend, self._rope, kv.pos),)

    def emit(self, h: Hidden, rows: Rows, u: Tensor) -> Emit:
        """Codebook 0 from the talker, then 1 to 15 from the predictor."""
        if kernels.enabled(Kernel.FUSED_SAMPLING, h[0]):
            return self._emit_fused(h[0], rows, u)
        logits = penalize_seen(linear(h[0], self._head.weight).float(), rows["seen"], rows["repetition_penalty"])
        early = (rows["step"] < rows["min_frames"])[:, None]
        logits = logits.masked_fill(self._suppressed | (early & self._eos), float("-inf"))
        first = Sampling(*(rows[name] for name in SAMPLING)).draw(logits, u[:, 0])
        frame = self._depth(h[0], first, u[:, 1:], Sampling(*(rows["subtalker_" + name] for name in SAMPLING)))
        seen = rows["seen"] | (first[:, None] == self._vocab)
        return Emit(frame.int(), first == self._ids.eos, {"seen": seen})

    def _emit_fused(self, h: Tensor, rows: Rows, u: Tensor) -> Emit:
        """The same with filters, draws and what follows from them in one launch each."""
        from stentor.models.qwen3_tts.kernels import sample_first_codebook

        logits = linear(h, self._head.weight)
        asked = Sampling(*(rows[name] for name in SAMPLING)).asked(u[:, 0])
        found: list[tuple[Tensor, Tensor]] = []

        def first(into: SampleOut) -> None:
            penalty, ending = rows["repetition_penalty"], MinFrames(rows["step"], rows["min_frames"])
            seen = rows.column("seen")
            drawn = sample_first_codebook(logits, asked, into, seen, penalty, ending, SUPPRESSED, self._ids.eos)
            found.append(drawn)

        sampling = Sampling(*(rows["subtalker_" + name] for name in SAMPLING))
        frame = self._depth.fused(h, first, u[:, 1:], sampling)
        stop, seen = found[0]
        return Emit(frame, stop, {"seen": seen})

    def _frames(self, codes: Tensor) -> Tensor:
        """codes [B, 16] -> the sum of their embeddings [B, H], rounded once."""
        return F.embedding(codes + self._tables.offset, self._tables.code).sum(1)


def _rows(table: Tensor, index: Tensor) -> Tensor:
    """Rows of `table` at index [N]; zeros where the index is negative."""
    return F.embedding(index.clamp_min(0).long(), table).masked_fill((index < 0)[:, None], 0)

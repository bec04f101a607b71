"""Models that speak in frames of codes while they read text: facts, language models and tensor
functions.

One step is a backbone, which draws the first code, and then a loop over the others. Codes, hidden
states and text rows never leave the device between steps.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from stentor.kernels.constants import NO_ID
from stentor.kernels.types import MinFrames, SamplingParams
from stentor.layers.depth_loop import (
    CodePredictor,
    DepthLoop,
    DepthTables,
    TextProjection,
    widened,
)
from stentor.layers.frame_codes import embed_codes_and_text, embed_prompt, sample_first_codebook
from stentor.layers.frame_decoder import FrameCodec, FrameDecoder
from stentor.layers.linear import linear
from stentor.layers.rope import Rope, angles
from stentor.layers.transformer import Stack
from stentor.layers.types import Column
from stentor.models.base import (
    Emit,
    Hidden,
    KVSpec,
    KVView,
    ModelSpec,
    Prompted,
    PromptRows,
    Prompts,
    Rows,
)
from stentor.models.frame_prompt import TEXT_CAPACITY
from stentor.models.info import Option
from stentor.models.load_options import model_dtype
from stentor.models.lora import ADAPTER_OPTIONS, AdapterSlots
from stentor.models.quantization import QUANTIZATION, EightBits, quantization
from stentor.models.talker_config import TalkerConfig, TransformerConfig

SUPPRESSED = 1024
"""The backbone never samples the last 1024 ids of its vocabulary, which are markers, except the
end's."""

SAMPLING = ("temperature", "top_k", "top_p")

LOAD_OPTIONS = (QUANTIZATION, *ADAPTER_OPTIONS)

PROMPT_ROWS = {name: Column(dtype=torch.int32, fill=NO_ID) for name in ("text", "code")}
"""Ids at each position of a prompt, -1 where it has none. VECTOR_ID as a code: there stands the
column `speaker`."""


def talker_options(
    c: TalkerConfig, top: float, defaults: Mapping[str, Any], family_options: Mapping[str, Option]
) -> dict[str, Option]:
    """Options of a request. top: frames at most. defaults: of those that all have. family_options:
    those that only this has."""
    shared: dict[str, tuple[float, float, type[Any], str]] = {
        "temperature": (0.0, 10.0, float, "randomness of the first codebook; 0: argmax everywhere"),
        "top_k": (0, c.talker.vocab, int, "draw from the k likeliest; 0: from all"),
        "top_p": (0.0, 1.0, float, "draw from the smallest set with this probability"),
        "repetition_penalty": (0.1, 10.0, float, "divides the logits of first codes already made"),
        "subtalker_temperature": (0.0, 10.0, float, "temperature of codebooks 1 to 15"),
        "subtalker_top_k": (0, c.predictor.vocab, int, "their top_k"),
        "subtalker_top_p": (0.0, 1.0, float, "their top_p"),
        "min_frames": (0, top, int, "frames made before a stop counts"),
        "max_frames": (1, top, int, "frames kept at most; 12.5 frames are one second"),
    }
    return {
        **{name: Option(defaults[name], *limits) for name, limits in shared.items()},
        **family_options,
        "trim_leading_silence": Option(
            False, 0, 1, bool, "leave out the first frame if it is silent (-60 dBFS)"
        ),
        "ignore_eos": Option(False, 0, 1, bool, "go on to max_frames whatever the model says"),
    }


def talker_spec(
    c: TalkerConfig,
    dtype: torch.dtype,
    adapters: Mapping[str, Column] | None,
    speaker: int = 0,
    **own: Any,
) -> ModelSpec:
    """Facts of one checkpoint, of which `own` are the others. dtype: of the language models.
    adapters: columns of LoRA adapters. speaker: numbers of the speaker vector, 0 without one."""
    stack = c.talker.stack
    columns = {
        **({"speaker": Column((speaker,))} if speaker else {}),
        # The pad stands beside frames after the text.
        "text": Column((TEXT_CAPACITY,), torch.int32, fill=c.ids.tts_pad),
        "seen": Column((c.talker.vocab,), torch.bool),
        "repetition_penalty": Column(fill=1.0),
        "subtalker_temperature": Column(),
        "subtalker_top_k": Column(dtype=torch.int64),
        "subtalker_top_p": Column(fill=1.0),
    }
    return ModelSpec(
        frame=Column((c.codebooks,), torch.int32),
        kv=KVSpec(stack.layers, stack.kv_heads, stack.head_dim, dtype),
        hidden=(Column((stack.hidden,), dtype),),
        max_model_len=c.talker.positions,
        draws=c.codebooks,
        columns={**columns, **(adapters or {})},
        prompt_rows=PROMPT_ROWS,
        stop_keeps_frame=False,
        voices=tuple(c.speakers),
        live_text=True,
        speaker_size=speaker,
        batch_invariant=True,
        **own,
    )


class TalkerStack(Stack):
    """The backbone with the rows of its codes."""

    def __init__(self, c: TransformerConfig) -> None:
        super().__init__(c.stack)
        self.codec_embedding = nn.Embedding(c.vocab, c.stack.hidden)


class Talker(nn.Module):
    """Backbone, head of the first code, and predictor of the others, by the checkpoints' names."""

    def __init__(self, c: TalkerConfig, inner: int, own_text: bool) -> None:
        """inner: width inside the projection of text rows. own_text: the backbone has the rows
        themselves too."""
        super().__init__()
        hidden = c.talker.stack.hidden
        self.model = TalkerStack(c.talker)
        if own_text:
            self.model.text_embedding = nn.Embedding(c.text_vocab, c.text_hidden)
        self.text_projection = TextProjection(c.text_hidden, inner, hidden)
        self.codec_head = nn.Linear(hidden, c.talker.vocab, bias=False)
        self.code_predictor = CodePredictor(
            c.predictor.stack, c.codebooks, c.predictor.vocab, hidden
        )


class TalkerWeights(Protocol):
    """The tensors of a checkpoint that are no codec's."""

    @property
    def talker(self) -> Talker: ...

    def process_weights_after_loading(self) -> DepthTables:
        """Project the embeddings into tables, and free them."""
        ...


def eight_bits(options: Mapping[str, object]) -> EightBits:
    """The layers that may have 8 bits, and those that load options select."""
    return EightBits(quantization(options), ("talker.model",), ("talker.code_predictor.model",))


def talker_dtype(
    tensors: Mapping[str, Tensor], dtype: torch.dtype | None, device: torch.device
) -> torch.dtype:
    """The dtype of the language models: `dtype`, or the dtype of the checkpoint's tensors."""
    norm = tensors.get("talker.model.norm.weight")  # never quantised
    return model_dtype(dtype, torch.bfloat16 if norm is None else norm.dtype, device)


def codec_part(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """The tensors below `prefix`, without the wrapper `.conv` of the reference's padded
    convolutions."""
    part = {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}
    return {
        k.replace(".conv.", ".") if not k.startswith("quantizer.") else k: v
        for k, v in part.items()
    }


class FrameTalker(Prompted):
    """The members of a models.base.SpeechModel but `encode`, for `talker_spec`."""

    def __init__(
        self,
        c: TalkerConfig,
        weights: TalkerWeights,
        decoder: FrameDecoder,
        spec: ModelSpec,
        prompts: Prompts,
        adapters: AdapterSlots,
    ) -> None:
        """`weights` are filled. Their embeddings are taken over and freed. `decoder` is ready."""
        self.spec = spec
        self.prompts = prompts
        self.adapters = adapters
        self.codec = FrameCodec(decoder)
        parts = weights.talker
        self._stack = parts.model
        self._head = parts.codec_head
        loop = parts.code_predictor
        device = self._head.weight.device
        dtype = self._head.weight.dtype
        self._rope = rope(c.talker, spec.max_model_len, device, dtype)
        depth_rope = rope(c.predictor, c.codebooks, device, dtype)
        heads = loop.take_heads()
        wide = widened(loop.model, c.predictor.stack)
        # The last to allocate: what lay in the memory of the embeddings that this frees would keep
        # it from the driver.
        self._tables = tables = weights.process_weights_after_loading()
        projection = loop.small_to_mtp_projection
        table = tables.depth
        starts = tables.starts
        self._predictor = DepthLoop(
            c.predictor.stack,
            loop.model,
            heads,
            projection,
            table,
            starts,
            depth_rope,
            wide=wide,
        )
        self._pad = c.ids.tts_pad
        self._eos = c.ids.eos

    def embed_prompt(self, p: PromptRows, rows: Rows) -> Hidden:
        """The sum of what each position has: a text row, a codec row, a frame, the speaker
        vector."""
        tables = self._tables
        if self.spec.speaker_size:
            vectors = rows.column("speaker")
        else:
            vectors = None
        text = (p.rows["text"], tables.text)
        code = (p.rows["code"], tables.code.rows)
        return (embed_prompt(text, code, vectors, (p.frames, p.frame_at), tables.code),)

    def embed_frame(self, rows: Rows) -> Hidden:
        """The last frame's codes and the text that stands beside it."""
        tables = self._tables
        tokens = rows.column("text")
        x = embed_codes_and_text(
            rows["prev"], tables.code, rows["step"], tokens, tables.text, self._pad
        )
        return (x,)

    def backbone(self, x: Hidden, kv: KVView) -> Hidden:
        return (self._stack(x[0], kv.attend, self._rope, kv.pos),)

    def emit(self, h: Hidden, rows: Rows, u: Tensor) -> Emit:
        """Codebook 0 from the backbone, then the others from the predictor."""
        loop = self._predictor.start(h[0])
        stop, history = sample_first_codebook(
            linear(h[0], self._head.weight),
            SamplingParams(u[:, 0], *(rows[name] for name in SAMPLING)),
            loop.first,
            rows.column("seen"),
            rows["repetition_penalty"],
            MinFrames(rows["step"], rows["min_frames"]),
            SUPPRESSED,
            self._eos,
        )
        frame = self._predictor(loop, u[:, 1:], *(rows["subtalker_" + name] for name in SAMPLING))
        return Emit(frame, stop, {"seen": history})


def rope(c: TransformerConfig, positions: int, device: torch.device, dtype: torch.dtype) -> Rope:
    """cos and sin are rounded to the model's dtype and rotate in it, as in the reference."""
    return Rope(
        angles(c.stack.head_dim, positions, c.theta), dtype, interleaved=False, in_float32=False
    ).to(device)

"""The family's `ModelSpec`: options with the checkpoint's defaults, the frame, keys and values,
references."""

from __future__ import annotations

from collections.abc import Mapping

from stentor.layers.types import Column, DType
from stentor.models.base import KVSpec, ModelSpec
from stentor.models.codec_timing import CodecTiming
from stentor.models.info import AlignmentHeads, Option
from stentor.models.voxcpm2.config import VoxCPM2Config
from stentor.models.voxcpm2.prompt import MARKS, MIN_LEN, PRIME
from stentor.models.voxcpm2.steps import MAX_STEPS, evaluations
from stentor.text import languages, unread
from stentor.text.marks import NO_MARKS

CAPTURED_STEPS = (4, 6, 16, 25)  # numbers of flow steps that are captured besides the default
REFERENCE_SECONDS = (0.3, 120.0)


def _options(defaults: Mapping[str, float]) -> dict[str, Option]:
    """Options of a request, with the checkpoint's own defaults."""
    return {
        "temperature": Option(
            defaults.get("temperature", 1.0), 0, 2, float, "scale of the initial noise; 0 is none"
        ),
        "cfg": Option(defaults.get("cfg", 2.0), 0.1, 10, float, "classifier-free guidance"),
        "flow_steps": Option(
            int(defaults.get("flow_steps", 10)), 1, MAX_STEPS, int, "Euler steps per frame"
        ),
        "min_frames": Option(
            int(defaults.get("min_frames", MIN_LEN + 1)),
            0,
            4096,
            int,
            "frames made before a stop counts",
        ),
        "max_frames": Option(
            int(defaults.get("max_frames", 4096)), 1, 8192, int, "frames kept at most"
        ),
        "ignore_eos": Option(False, 0, 1, bool, "never stop before the frame limit"),
    }


def _alignment(c: VoxCPM2Config) -> AlignmentHeads | None:
    if c.alignment is None:
        return None
    base = c.base
    heads = c.alignment
    group = base.heads // base.kv_heads
    scale = base.head_dim**-0.5
    return AlignmentHeads(heads.layers, heads.heads, group, scale, heads.lag, heads.window)


def _hidden(c: VoxCPM2Config, dtype: DType) -> tuple[Column, ...]:
    """Hidden states of both language models, and the queries of the heads that look at the text, if
    there are any."""
    plain = Column((c.base.hidden,), dtype)
    heads = c.alignment
    queries = (
        () if heads is None else (Column((len(heads.layers), heads.heads, c.base.head_dim), dtype),)
    )
    return plain, plain, *queries


def make_spec(c: VoxCPM2Config, dtype: DType, more_columns: Mapping[str, Column]) -> ModelSpec:
    """Facts about one checkpoint. more_columns: what its adapters need."""
    choices = _options(c.defaults)
    steps = choices["flow_steps"].default
    return ModelSpec(
        family="voxcpm2",
        sample_rate=c.vae.out_sample_rate,
        hop=c.patch * c.vae.upsampling,
        frame=Column((c.patch, c.feat)),
        kv=KVSpec(c.base.layers + c.residual.layers, c.base.kv_heads, c.base.head_dim, dtype),
        hidden=_hidden(c, dtype),
        max_model_len=c.max_length,
        draws=c.patch * c.feat,
        columns={
            "cfg": Column(fill=1.0),
            "flow_steps": Column(dtype="int64", fill=1),
            **more_columns,
        },
        prompt_rows={"token": Column(dtype="int64")},
        options=choices,
        stop_keeps_frame=True,
        reference_rate=c.vae.sample_rate,
        reference_seconds=REFERENCE_SECONDS,
        voices=c.voices,
        voice_descriptions=c.voice_descriptions,
        languages=languages(c.text_frontend),
        takes_instructions=c.takes_instructions,
        marks=MARKS if c.takes_instructions else NO_MARKS,
        instructs_prompt=False,
        takes_reference=c.takes_reference,
        voice_frames=bool(c.voices),
        takes_prompt=c.takes_reference,
        codec_prefix=PRIME if c.takes_reference else 0,
        codec_timing=CodecTiming(chunk=16),
        num_evals=evaluations(int(steps or 1)),
        captured_evals=tuple(evaluations(n) for n in CAPTURED_STEPS),
        threads=c.threads,
        unread=unread(c.text_frontend),
        phonemes=c.text_frontend == "english-phonemes",
        dashes=c.text_frontend == "english-phonemes",
        split_granularity=c.split_granularity,
        alignment=_alignment(c),
        batch_invariant=True,
    )

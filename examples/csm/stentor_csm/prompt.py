"""From a request to the rows of its prompt: the turn of a reference, with its frames, then that of the text."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from stentor.errors import InvalidRequest, too_long
from stentor.models.base import Prompt, Voice, VoiceSource, reference_of
from stentor.models.info import SpeechRequest
from stentor_csm.config import Config
from stentor_csm.spec import DEPTH_SAMPLING, SAMPLING, SPEAKERS
from stentor_csm.tokenizer import Tokens

FRAME = -1  # a position that has a frame and no token
RUN_ON_BASE, RUN_ON_PER_TOKEN = 60, 12  # frames


def references(request: SpeechRequest) -> list[VoiceSource]:
    """The recording that is continued in its voice. InvalidRequest if it is without its text."""
    if request.reference is not None and not request.reference.text:
        raise InvalidRequest(
            "reference", "needs its text (prompt_text, ref_text): the model reads both"
        )
    return reference_of(request)


def build(c: Config, tokens: Tokens, request: SpeechRequest, voices: Sequence[Voice]) -> Prompt:
    """Raises InvalidRequest for what the model cannot do."""
    speaker, o = request.voice or SPEAKERS[0], request.options
    said: list[int] = []
    frames = np.zeros((0, c.codebooks), np.int32)
    if request.reference is not None:
        codes = voices[0].features["codes"]
        frames = np.concatenate(
            (codes, np.full((1, c.codebooks), c.eos, codes.dtype))
        )  # the end of its audio
        said = tokens.turn(speaker, request.reference.text or "")
    turn = tokens.turn(speaker, request.text)
    row = np.array([*said, *[FRAME] * len(frames), *turn], np.int32)
    if len(row) >= c.positions:
        raise too_long(len(row), c.positions - 1, request.text, len(frames))
    columns = {name: o[name] for name in (*SAMPLING, *DEPTH_SAMPLING)}
    return Prompt(
        rows={"token": row},
        frames=frames,
        frame_at=np.arange(len(said), len(said) + len(frames)),
        columns=columns,
        max_frames=min(int(o["max_frames"]), c.positions - len(row)),
        min_frames=int(o["min_frames"]),
        codec_prefix=np.zeros((0, c.codebooks), np.int32),
        voice=voices[0].id if voices else "",
        runaway_frames=RUN_ON_BASE + RUN_ON_PER_TOKEN * len(turn) if o["temperature"] else None,
    )

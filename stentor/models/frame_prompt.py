"""Prompts of models that read text while they speak (models/frame_talker.py): what is the same in
all of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from stentor.errors import InvalidRequest, too_long
from stentor.models.base import Prompt
from stentor.models.byte_bpe import settled
from stentor.models.info import SpeechRequest

TEXT_CAPACITY = 4096
"""Text tokens that a request may still have to hear after its prompt."""

RUN_ON_BASE = 192
RUN_ON_PER_TOKEN = 12
"""A sampled result this much longer than its text has probably missed its end. Other engines use
the same budget."""

COLUMNS = (
    "temperature",
    "top_k",
    "top_p",
    "repetition_penalty",
    "subtalker_temperature",
    "subtalker_top_k",
    "subtalker_top_p",
)
"""Options that are columns. A temperature of 0 means the argmax everywhere."""


class LiveColumn:
    """Live text of one prompt, in ids. What could still change with the next letter is held
    back."""

    def __init__(
        self, encode: Callable[[str], list[int]], end: int, prompt: Prompt, pending: str
    ) -> None:
        """`end` follows the last text. `pending` is what the prompt has left."""
        self._encode = encode
        self._end = end
        self._prompt = prompt
        self._held = pending
        self._free = TEXT_CAPACITY - len(prompt.columns["text"])
        self._ended = False

    def __call__(self, text: str, last: bool) -> np.ndarray:
        """See models.base.LiveText."""
        if self._ended:
            raise InvalidRequest("text", "nothing may follow the last text")
        pending = self._held + text
        if last:
            cut = len(pending)
        else:
            cut = settled(pending)
        ids = self._encode(pending[:cut]) + [self._end] * last
        if len(ids) > self._free:
            raise InvalidRequest("text", "is too long for one request; go on in another")
        self._held = pending[cut:]
        self._free = self._free - len(ids)
        self._ended = last
        self._prompt.streamed_text_tokens += len(ids)
        if self._prompt.runaway_frames is not None:
            self._prompt.runaway_frames += RUN_ON_PER_TOKEN * len(ids)
        return np.array(ids, np.int32)


def frame_prompt(
    request: SpeechRequest,
    rows: Mapping[str, np.ndarray],
    frames: tuple[np.ndarray, np.ndarray],
    trailing: Sequence[int],
    text_tokens: int,
    max_model_len: int,
) -> Prompt:
    """The prompt of `rows`, after which each step takes one of the text ids `trailing`.

    frames: [M, codebooks] at positions [M], whose state the codec begins with. text_tokens:
    of the whole text. InvalidRequest if the text is too long. The rows are known to fit.
    """
    if len(trailing) > TEXT_CAPACITY:
        raise too_long(len(trailing), TEXT_CAPACITY, request.text)
    options = request.options
    length = len(rows["text"])
    max_frames = min(int(options["max_frames"]), max_model_len - length)
    if options["ignore_eos"]:
        minimum = max_frames
    else:
        minimum = min(int(options["min_frames"]), max_frames)
    run_on = RUN_ON_BASE + RUN_ON_PER_TOKEN * text_tokens
    greedy = options["temperature"] == 0
    columns = {name: options[name] for name in COLUMNS}
    if greedy:
        columns["subtalker_temperature"] = 0.0
    return Prompt(
        rows=dict(rows),
        frames=frames[0],
        frame_at=frames[1],
        columns={**columns, "text": np.array(trailing, np.int32)},
        max_frames=max_frames,
        min_frames=minimum,
        codec_prefix=frames[0],
        runaway_frames=None if greedy or minimum >= run_on else run_on,
        trim_silent_frames=1 if options["trim_leading_silence"] else 0,
        streamed_text_tokens=len(trailing),
    )

"""Mistakes of families against their own spec: the error says which field it is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from stentor import TTS, EngineError
from stentor.models.base import Prompt


def _column(prompt: Prompt) -> Prompt:
    prompt.columns["mod"] = 1
    return prompt


def _rows(prompt: Prompt) -> Prompt:
    name = sorted(prompt.rows)[-1]
    prompt.rows = {**prompt.rows, name: np.asarray(prompt.rows[name])[1:]}
    return prompt


def _voice(prompt: Prompt) -> Prompt:
    prompt.codec_prefix = np.zeros((1, *prompt.frames.shape[1:]), np.float32)
    return prompt


MISTAKES: dict[str, tuple[str, Callable[[Any], Any], str]] = {
    "a column of a prompt": (
        "prompt",
        _column,
        "the prompt gives the column 'mod', which is not in spec.columns",
    ),
    "rows of a prompt": ("prompt", _rows, r"the prompt has \d+ positions, and \d+ rows of '\w+'"),
    "a voice without a name": (
        "prompt",
        _voice,
        "the prompt holds a voice, and `voice` does not name it",
    ),
    "a frame": (
        "emit",
        lambda out: out._replace(frame=out.frame[:, 1:]),
        r"emit gives frames of shape \(\d+,\), and spec.frame says \(\d+,\)",
    ),
    "a column of a step": (
        "emit",
        lambda out: out._replace(columns={**out.columns, "mod": out.stop}),
        "emit gives the column 'mod', which is not in spec.columns",
    ),
    "samples": (
        "decode",
        lambda given: (given[0][:, 1:], given[1]),
        r"codec.decode gives samples \(1, \d+\), and by spec.hop they are \(1, \d+\)",
    ),
    "state that is left out": (
        "decode",
        lambda given: (given[0], dict(list(given[1].items())[1:])),
        r"codec.decode must give the columns of codec.columns: '[\w.]+' is in one of them only",
    ),
    "state that is no column": (
        "decode",
        lambda given: (given[0], {**given[1], "mod": given[0]}),
        "'mod' is in one of them only",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_the_error_names_the_field_and_the_next_request_is_served(
    mistake: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    member, change, says = MISTAKES[mistake]
    with TTS("dummy:toy", max_num_seqs=1, memory_gb=0.002) as tts:
        owner = tts.engine.model.codec if member == "decode" else tts.engine.model
        right = getattr(owner, member)
        monkeypatch.setattr(owner, member, lambda *args: change(right(*args)))
        with pytest.raises(EngineError, match=says):
            tts.generate("Hello.", seed=1, max_frames=3)
        monkeypatch.setattr(owner, member, right)
        assert len(tts.generate("Hello.", seed=1, max_frames=3, min_frames=3).frames) == 3

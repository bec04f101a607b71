"""Over HTTP, the pieces of a long text with one voice compute their own tokens, and what they have in common once."""

from __future__ import annotations

import base64
from itertools import takewhile
from operator import eq
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

import stentor
from stentor.config import Policy
from stentor.engine.scheduling.sequence import Sequence
from stentor.engine.sequence_maker import SequenceMaker, prefix_keys
from stentor.models.base import Prompt
from tests.helpers.server_live import Live, count, serving, tone_wav
from tests.helpers.tiny import FAMILIES, checkpoint

PAGE = 4
PIECES = (
    "The first sentence is here.",
    "Then there is another one.",
    "And this is the last of all.",
)
CLONED = {"ref_audio": "data:audio/wav;base64," + base64.b64encode(tone_wav(2.0, 16000)).decode()}
ASKED: dict[str, dict[str, Any]] = {
    "qwen3_tts": {"voice": "serena"},
    "voxcpm2": CLONED,
    "fish_s2": {**CLONED, "ref_text": "the words of the recording"},
}
SHARED = {"qwen3_tts": 8, "voxcpm2": 12, "fish_s2": 40}
"""Tokens that prompts begin with in common, at least: role, language and voice (Qwen3-TTS), or the recording."""


class Prompts:
    """The prompts of a text, in the order in which they were made."""

    def __init__(self) -> None:
        self.made: list[tuple[Sequence, Prompt]] = []
        self._new = SequenceMaker.new

    def new(self, maker: SequenceMaker, prompt: Prompt, *args: Any) -> Sequence:
        seq = self._new(maker, prompt, *args)
        self.made.append((seq, prompt))
        return seq

    def rows(self) -> list[dict[str, int]]:
        """Count the tokens of each prompt, its own, and those that were computed.

        Its own are those that no prompt before it begins with, and that it does not repeat of the turn before it.
        """
        seen: list[tuple[bytes, ...]] = []
        found = []
        for seq, prompt in self.made:
            keys = prefix_keys(prompt, 1)
            known = max(
                (sum(1 for _ in takewhile(bool, map(eq, keys, other))) for other in seen), default=0
            )
            own = prompt.length - max(known, prompt.repeats)
            found.append(
                {"tokens": prompt.length, "own": own, "computed": prompt.length - seq.num_cached}
            )
            seen.append(keys)
        return found


def counted(live: Live) -> float:
    """Prompt tokens computed so far, from /metrics."""
    return count(live, "engine_prompt_tokens_total") - count(
        live, "engine_cached_prompt_tokens_total"
    )


@pytest.mark.parametrize("family", FAMILIES)
def test_each_piece_of_a_text_computes_its_own_tokens_and_at_most_a_page_more(
    family: str, tmp_path: Path
) -> None:
    path, prompts = checkpoint(family, tmp_path / "checkpoint"), Prompts()

    def load(name: str, model: str | None) -> object:
        policy = Policy(min_cached_tokens=PAGE)
        sizes = {"memory_gb": 0.05, "max_num_seqs": 2, "max_frames": 4, "page_size": PAGE}
        return lambda: stentor.TTS(path, device="cpu", threads=1, policy=policy, **sizes)

    def new(maker: SequenceMaker, *args: Any) -> Any:
        return prompts.new(maker, *args)

    with (
        serving(tmp_path / "voices", load, model="tiny") as live,
        mock.patch.object(SequenceMaker, "new", new),
    ):
        before = counted(live)  # a server speaks before it is ready
        body = {
            "input": " ".join(PIECES),
            "split_granularity": "sentence",
            "seed": 5,
            **ASKED[family],
        }
        answer = live.speech(**body, response_format="pcm")
        assert answer.status_code == 200, answer.text
        assert live.idle()
        computed = counted(live) - before
        assert (
            count(live, "engine_preemptions_total")
            == count(live, "engine_prefix_evictions_total")
            == 0
        )
    rows = prompts.rows()
    assert len(rows) == len(PIECES)
    assert computed == sum(row["computed"] for row in rows)
    assert [row for row in rows if row["computed"] > row["own"] + PAGE] == []
    assert all(row["tokens"] - row["own"] >= SHARED[family] for row in rows[1:])

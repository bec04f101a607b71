"""Loop lengths of `emit`: captured ones serve the rows that need no more, and nobody pays for another's choice."""

from __future__ import annotations

import numpy as np
import pytest

from stentor import TTS, InvalidRequest


def test_a_row_takes_the_next_captured_length_and_more_than_all_is_refused() -> None:
    with TTS("dummy:toy", memory_gb=0.01, threads=1) as tts:
        ask = {"max_frames": 8, "min_frames": 8, "seed": 1}
        alone = tts.generate("hello", flow_steps=4, **ask)
        tts.engine.runner.evals = {3, 6}
        prompt = tts.prompt(tts.request("hello", flow_steps=4, **ask))
        padded = tts.speech(list(tts.engine.submit(prompt, 1, streaming=False)), 1)
        assert prompt.num_evals == 6
        np.testing.assert_allclose(
            padded.samples, alone.samples, atol=1e-6
        )  # padding changes no audio
        with pytest.raises(InvalidRequest) as e:
            tts.submit(tts.request("hello", flow_steps=7, **ask))
        assert e.value.param == "flow_steps"
        assert tts.engine.health().queued == 0


def test_rows_of_other_step_counts_are_launched_by_themselves() -> None:
    with TTS("dummy:toy", memory_gb=0.01, threads=1) as tts:
        launched: list[set[int]] = []
        decode = tts.engine.runner.decode
        tts.engine.runner.decode = lambda rows: (
            launched.append({s.num_evals for s in rows}) or decode(rows)
        )
        ask = {"max_frames": 20, "min_frames": 20, "seed": 1}
        streams = [tts.submit(tts.request("hello", flow_steps=n, **ask)) for n in (3, 8, 3)]
        assert [sum(len(c.frames) for c in stream) for stream in streams] == [20] * 3
        assert all(len(counts) == 1 for counts in launched)
        assert {3} in launched
        assert {8} in launched

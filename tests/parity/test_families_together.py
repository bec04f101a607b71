"""Three families in one process, each in its own engine, speak at the same time what they speak alone."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stentor import TTS, Speech
from tests.fixtures.qwen3_tts import tiny_qwen3_tts as tiny
from tests.helpers.patience import STUCK_S

FIXTURES = Path(__file__).parents[1] / "fixtures"

ROUNDS = 2
Expected = Callable[[Speech], bool]


def fish() -> tuple[dict[str, Any], Expected]:
    case = json.loads((FIXTURES / "fish_s2" / "cases.json").read_text(encoding="utf-8"))[0]
    frames = np.load(FIXTURES / "fish_s2" / "expected.npz")[f"{case['name']}_frames"]
    return {"text": case["text"], "temperature": 0, **case["arguments"]}, lambda s: np.array_equal(
        s.frames, frames
    )


def qwen() -> tuple[dict[str, Any], Expected]:
    case = json.loads((FIXTURES / "qwen3_tts" / "codes.json").read_text(encoding="utf-8"))[0]
    request = case["request"]
    options = {k: case[k] for k in ("max_frames", "non_streaming_mode")}
    voice = {"voice": request["speaker"], "language": request["language"]}
    return {
        "text": request["text"],
        "temperature": 0.0,
        **voice,
        **options,
    }, lambda s: s.frames.tolist() == case["codes"]


def voxcpm() -> tuple[dict[str, Any], Expected]:
    case = json.loads((FIXTURES / "voxcpm2" / "cases.json").read_text(encoding="utf-8"))[
        "zero shot"
    ]
    patches = np.load(FIXTURES / "voxcpm2" / "expected.npz")["zero shot/patches"]
    arguments = {
        "text": case["text"],
        "seed": case["seed"],
        "max_frames": case["frames"],
        "ignore_eos": True,
    }
    return (
        arguments,
        lambda s: s.frames.shape == patches.shape and bool(np.abs(s.frames - patches).max() < 1e-4),
    )


@pytest.fixture
def engines(tmp_path: Path) -> Iterator[dict[str, TTS]]:
    tiny.write(tiny.KINDS[0], tmp_path / "qwen")
    paths = {
        "fish": FIXTURES / "fish_s2" / "checkpoint",
        "qwen": tmp_path / "qwen",
        "voxcpm": FIXTURES / "voxcpm2",
    }
    with ExitStack() as stack:
        yield {
            name: stack.enter_context(TTS(path, device="cpu", max_num_seqs=2))
            for name, path in paths.items()
        }


def test_the_three_families_speak_at_once_each_in_its_engine(engines: dict[str, TTS]) -> None:
    cases = {"fish": fish(), "qwen": qwen(), "voxcpm": voxcpm()}
    together = threading.Barrier(len(cases))
    wrong: list[str] = []

    def speak(name: str) -> None:
        tts, (arguments, expected) = engines[name], cases[name]
        for _ in range(ROUNDS):
            together.wait(timeout=STUCK_S)
            chunks = list(tts.stream(**arguments))
            frames = np.concatenate([c.frames for c in chunks])
            samples = np.concatenate([c.samples for c in chunks])
            speech = Speech(samples, tts.sample_rate, frames, chunks[-1].finish_reason, 0)
            if not expected(speech) or len(samples) != len(frames) * tts.spec.hop:
                wrong.append(name)

    threads = [threading.Thread(target=speak, args=(name,)) for name in cases]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=STUCK_S)
    assert not any(thread.is_alive() for thread in threads)
    assert wrong == []
    assert [tts.engine.health().stats.finished for tts in engines.values()] == [ROUNDS] * 3

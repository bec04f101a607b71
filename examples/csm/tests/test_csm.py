"""CSM gives what transformers gave for the same tiny checkpoint, in every mode of the engine.

tests/make_fixture.py makes the expected values.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from make_fixture import REFERENCE_TEXT, recording
from stentor_csm import builder
from stentor_csm.config import parse
from stentor_csm.weights import Weights

from stentor import TTS, InvalidRequest, Reference
from stentor.models.source import random_weights
from stentor.models.weights import on_meta
from stentor.testing import MODES, Given, Parity

FIXTURE = Path(__file__).parent / "fixture"
CHECKPOINT = FIXTURE / "checkpoint"
CASES: dict[str, dict[str, Any]] = json.loads((FIXTURE / "cases.json").read_text(encoding="utf-8"))[
    "cases"
]
GREEDY = {"temperature": 0.0, "depth_temperature": 0.0}


def given(folder: Path, kind: str) -> list[Given]:
    """Output of the reference, with float weights or with those in int8."""
    expected = np.load(folder / "expected.npz")
    return [
        Given(
            c["text"], expected[f"{kind}/{n}/frames"], expected[f"{kind}/{n}/samples"], options(c)
        )
        for n, c in CASES.items()
    ]


def options(case: dict[str, Any]) -> dict[str, Any]:
    reference = (
        {"reference": Reference((recording(), 2400), REFERENCE_TEXT)}
        if case.get("reference")
        else {}
    )
    return {"voice": case["voice"], "max_frames": case["max_frames"], **GREEDY, **reference}


@pytest.mark.parametrize("mode", MODES)
def test_codes_are_the_references_and_audio_is_within_a_thousandth_of_its_peak(mode: str) -> None:
    float_values, int8_values = given(FIXTURE, "float"), given(FIXTURE, "int8")
    Parity(CHECKPOINT, float_values, quantised=int8_values, load={"device": "cpu"}).check(mode)


def test_codes_of_a_recording_are_the_references() -> None:
    with TTS(CHECKPOINT, device="cpu", memory_gb=0.05, max_num_seqs=1) as tts:
        prompt = tts.prompt(tts.request("Hello.", **options({**CASES["reference"]})))
    codes = np.load(FIXTURE / "expected.npz")["codes"]
    assert prompt.frames[:-1].tolist() == codes.tolist()
    assert len(set(prompt.frames[-1])) == 1


def test_one_case_ends_by_itself_and_the_others_do_not() -> None:
    with TTS(CHECKPOINT, device="cpu", memory_gb=0.05, max_num_seqs=1) as tts:
        ends = {
            n: tts.generate(c["text"], retries=1, **options(c)).finish_reason
            for n, c in CASES.items()
        }
    assert ends == {name: "stop" if name == "ends" else "length" for name in CASES}


def test_a_reference_without_its_text_is_refused() -> None:
    with (
        TTS(CHECKPOINT, device="cpu", memory_gb=0.05, max_num_seqs=1) as tts,
        pytest.raises(InvalidRequest, match="reference: needs its text"),
    ):
        tts.generate("Hello.", reference=Reference((recording(), 2400)))


def test_special_tokens_in_a_text_are_spelled_out() -> None:
    with TTS(CHECKPOINT, device="cpu", memory_gb=0.05, max_num_seqs=1) as tts:
        token = tts.prompt(tts.request("a<|end_of_text|>b")).rows["token"]
    assert list(token).count(257) == 1


def test_the_dummy_has_the_sizes_of_the_released_model() -> None:
    """The count is of transformers' CsmConfig, whose defaults are those of csm-1b, without the codec."""
    source = random_weights(Path(builder.__file__).parent, "csm-1b")
    weights = on_meta(lambda: Weights(parse(source.config, source.name)), torch.float32)
    assert sum(p.numel() for p in weights.parameters()) == 1_552_791_552


def test_the_fixture_is_what_the_installed_reference_gives(tmp_path: Path) -> None:
    pytest.importorskip(
        "transformers", reason="transformers is not installed: the stored values were compared"
    )
    from make_fixture import write

    write(tmp_path)
    for kind in ("float", "int8"):
        for stored, fresh in zip(given(FIXTURE, kind), given(tmp_path, kind), strict=True):
            assert stored.frames.tolist() == fresh.frames.tolist()
            np.testing.assert_allclose(stored.samples, fresh.samples, atol=1e-5)

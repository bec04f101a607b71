"""Kokoro by torch equals the package kokoro 0.9.4 (tests/fixtures/kokoro/reference.py), batched and alone."""

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

import stentor
from stentor.errors import CheckpointError
from stentor.models.kokoro import checkpoint
from stentor.models.kokoro.checkpoint import IGNORED, by_module, fold_affine, module_name
from stentor.models.kokoro.model import Kokoro
from stentor.models.piece_model import PieceRow
from stentor.models.weights import fold_weight_norm
from tests.fixtures.kokoro.reference import KEPT, TEXTS, vary

FIXTURE = Path(__file__).parents[2] / "fixtures" / "kokoro"
VALUES = np.load(FIXTURE / "values.npz")


@pytest.fixture(scope="module")
def model() -> Iterator[Kokoro]:
    with stentor.TTS("dummy:kokoro-82m", device="cpu", threads=1) as tts:
        vary(tts._model.net)
        yield tts._model


def row(model: Kokoro, name: str) -> PieceRow:
    """A piece of these tokens, whose phonemes do not matter."""
    tokens, speed = TEXTS[name]
    prompt = model.prompts.build(stentor.request.build(model.spec, "Hello there.", options={}), [])
    prompt.rows["token"] = np.array([0, *tokens, 0])
    prompt.columns |= {"style": model.prompts.voices.style("af_heart", len(tokens)), "speed": speed}
    prompt.words = (range(1, 1 + len(tokens)),)
    return PieceRow(prompt, 1)


@pytest.mark.parametrize("names", [["low"], ["long", "low"]])
def test_it_equals_the_package_batched_and_alone(model, names, monkeypatch):
    monkeypatch.setattr(
        model,
        "noise",
        lambda seeds, frames: torch.zeros(len(seeds), *model.net.noise_shape(frames)),
    )
    rows = [row(model, name) for name in names]
    for one, planned in zip(rows, model.plan(rows), strict=True):
        one.planned = planned
    for name, one, samples in zip(names, rows, model.speak(rows), strict=True):
        expected = VALUES[f"{name}.frames"]
        assert np.array_equal(np.bincount(one.planned.frames), expected)
        assert len(samples) == expected.sum() * 600
        wanted = VALUES[f"{name}.samples"]
        peak = np.abs(wanted).max()
        assert 0.01 < peak < 1
        np.testing.assert_allclose(samples[::KEPT], wanted, atol=1e-3 * peak)


def test_noise_is_that_of_the_seed_whatever_runs_beside_it(model):
    alone = model.noise([7], 20)
    beside = model.noise([3, 7], 21)
    assert torch.equal(beside[1, : alone.shape[1]], alone[0])
    assert not torch.equal(beside[0], beside[1])
    assert abs(float(beside.mean())) < 0.02
    assert abs(float(beside.std()) - 1) < 0.02


def test_names_of_the_release_are_those_of_the_modules(model):
    shapes = json.loads((FIXTURE / "names.json").read_text())
    released = {name: torch.zeros(shape) for name, shape in shapes.items()}
    mine = by_module(fold_weight_norm(released))
    modules = {name: tuple(value.shape) for name, value in model.net.state_dict().items()}
    extra = {n for n in mine if n not in modules}
    assert all(name.startswith(IGNORED) for name in extra)
    assert {n: tuple(v.shape) for n, v in mine.items() if n not in extra} == modules
    assert len({module_name(name) for name in shapes}) == len(shapes)


def test_gains_of_instance_norms_go_into_those_by_the_style():
    x = torch.randn(4)
    style = torch.randn(3)
    weight = torch.randn(4)
    bias = torch.randn(4)
    tensors = {"n.fc.weight": torch.randn(8, 3), "n.fc.bias": torch.randn(8)}
    gain, shift = (tensors["n.fc.weight"] @ style + tensors["n.fc.bias"]).chunk(2)
    expected = (1 + gain) * (x * weight + bias) + shift
    fold_affine(tensors, "n.fc", weight, bias)
    gain, shift = (tensors["n.fc.weight"] @ style + tensors["n.fc.bias"]).chunk(2)
    torch.testing.assert_close((1 + gain) * x + shift, expected)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"vocoder": {}}, "'vocoder' is none of bert, bert_encoder"),
        ({"bert": {"x": 3}}, "bert.x is no plain tensor"),
        ({"bert": torch.zeros(2)}, "'bert' is none of"),
        ({"decoder": {"a.weight_v": torch.zeros(2, 2)}}, "a.weight_g is missing"),
        ({"decoder": {"norm1.norm.weight": torch.zeros(2)}}, "go together"),
    ],
)
def test_a_file_that_is_no_checkpoint_is_refused(content, message, tmp_path):
    torch.save(content, tmp_path / checkpoint.WEIGHTS)
    with pytest.raises(CheckpointError, match=message):
        checkpoint.read(tmp_path)


def test_code_in_a_table_of_styles_is_not_run(tmp_path):
    file = tmp_path / "af_heart.pt"
    torch.save(Path, file)
    with pytest.raises(CheckpointError, match="no plain tensor"):
        checkpoint.read_table(file)

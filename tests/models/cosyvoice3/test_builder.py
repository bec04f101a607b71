"""A directory in the released layout, and what is said about one that is not whole."""

from __future__ import annotations

import shutil

import pytest
import torch

from stentor import registry
from stentor.errors import CheckpointError, InvalidRequest
from stentor.models.cosyvoice3 import config
from stentor.models.cosyvoice3.checkpoint import FLOW, LANGUAGE, VOCODER, released_name
from stentor.models.cosyvoice3.codec import CosyVoice3Codec
from stentor.models.cosyvoice3.language_model import Language
from stentor.models.weights import renamed
from tests.fixtures.cosyvoice3 import tiny_cosyvoice3 as tiny
from tests.helpers.released import released

TEXT_MODEL = released("cosyvoice3", "cosyvoice3").json("CosyVoice-BlankEN/config.json")
CPU = torch.device("cpu")


@pytest.fixture(scope="module", autouse=True)
def short_noise():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("stentor.models.cosyvoice3.codec_noise.source_noise", tiny.source_noise)
        yield


@pytest.fixture
def folder(tmp_path):
    return tiny.write(tmp_path)


def load(folder):
    return registry.load(folder, CPU, None, {})


@pytest.mark.parametrize("config_json", [True, False])
def test_a_directory_is_recognised_by_its_yaml(folder, config_json):
    if not config_json:
        (folder / "config.json").unlink()
    model = load(folder)
    assert model.spec.family == "cosyvoice3"
    assert model.spec.voices == ("flow", "mute", "words", "words37", "words45")
    assert (model.spec.sample_rate, model.spec.hop) == (24000, 960)


def test_the_window_of_earlier_releases_has_no_effect_but_a_warning(folder, caplog):
    registry.load(folder, CPU, None, {"stream_window": 20})
    assert "stream_window has no effect" in caplog.text


def changed(folder, name, change):
    """Replace a linked weight file by one that `change` has edited."""
    tensors = torch.load(folder / name, weights_only=True)
    (folder / name).unlink()
    change(tensors)
    torch.save(tensors, folder / name)


CASES = [
    ("llm.pt", "llm.model.model.layers.1.self_attn.k_proj.bias"),
    ("flow.pt", "decoder.estimator.transformer_blocks.1.attn.to_out.0.weight"),
    ("flow.pt", "decoder.estimator.time_embed.time_mlp.2.bias"),
    ("flow.pt", "pre_lookahead_layer.conv2.weight"),
    ("hift.pt", "source_resblocks.1.activations2.2.alpha"),
]


@pytest.mark.parametrize(("file", "name"), CASES)
def test_a_missing_tensor_is_named_as_in_its_file(folder, file, name):
    changed(folder, file, lambda tensors: tensors.pop(name))
    with pytest.raises(CheckpointError, match=f"{file}: tensor {name} is missing"):
        load(folder)


@pytest.mark.parametrize("file", ["llm.pt", "flow.pt", "hift.pt"])
def test_a_tensor_too_many_is_named(folder, file):
    changed(folder, file, lambda tensors: tensors.update(strange=torch.zeros(1)))
    with pytest.raises(CheckpointError, match=f"{file}: tensor strange is not part"):
        load(folder)


@pytest.mark.parametrize(("file", "name"), CASES[:2])
def test_a_tensor_of_another_shape_is_named(folder, file, name):
    changed(folder, file, lambda tensors: tensors.update({name: torch.zeros(3)}))
    with pytest.raises(CheckpointError, match=rf"{file}: tensor .*{name}.* has shape"):
        load(folder)


@pytest.mark.parametrize(
    "name", ["llm.pt", "CosyVoice-BlankEN/vocab.json", "CosyVoice-BlankEN/config.json"]
)
def test_a_missing_file_is_named(folder, name):
    (folder / name).unlink()
    with pytest.raises(CheckpointError, match=name):
        load(folder)


def test_weights_are_read_without_running_code(folder):
    (folder / "flow.pt").unlink()
    torch.save({"input_embedding.weight": shutil.rmtree}, folder / "flow.pt")
    with pytest.raises(CheckpointError, match="not a plain tensor file"):
        load(folder)


def test_an_unknown_load_option_is_refused(folder):
    with pytest.raises(InvalidRequest, match="flow_steps"):
        registry.load(folder, CPU, None, {"flow_steps": 3})


def test_the_released_sizes_have_the_released_numbers_of_parameters():
    """506,148,480, 332,257,088 and 20,779,887 less one number for each weight norm, which is folded."""
    c = config.parse({}, TEXT_MODEL)
    language, codec = Language(c.language, torch.float32), CosyVoice3Codec(c)
    norms = sum(
        len(p)
        for n, p in codec.vocoder.named_parameters()
        if n.endswith("weight") and _is_normed(n)
    )

    def count(module):
        return sum(p.numel() for p in module.parameters())

    assert (count(language), count(codec.flow), count(codec.vocoder) + norms) == (
        506_148_480,
        332_257_088,
        20_779_887,
    )


def _is_normed(name):
    return not name.startswith(("source_downs.", "source.", "pitch.out."))


@pytest.mark.parametrize(
    ("rules", "name"),
    [
        (LANGUAGE, "llm.model.model.layers.3.mlp.up_proj.weight"),
        (FLOW, "decoder.estimator.transformer_blocks.3.ff.ff.2.bias"),
        (FLOW, "decoder.estimator.input_embed.conv_pos_embed.conv2.0.weight"),
        (VOCODER, "m_source.l_linear.weight"),
    ],
)
def test_names_are_told_as_the_file_has_them(rules, name):
    assert released_name(rules)(renamed(name, rules)) == name

"""Tensors of a checkpoint by their names here: the release's layout, without the wrappers of
convolutions. The layout of transformers is renamed to it first."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from torch import Tensor

from stentor.models.weights import renamed

DECODER = "model.acoustic_tokenizer.decoder."
ACOUSTIC = "model.acoustic_tokenizer.encoder."
SEMANTIC = "model.semantic_tokenizer.encoder."
SCALE = "model.speech_scaling_factor"
BIAS = "model.speech_bias_factor"
FACTORS = {SCALE: "scale", BIAS: "bias"}
"""Factors of latents, which the decoder holds."""
WRAPPERS = {
    ".0.conv.conv.": ".",
    ".0.convtr.convtr.": ".",
    "mixer.conv.conv.conv.": "mixer.",
    "head.conv.conv.": "head.",
}
"""Parts of the codec's names in a file, and the same here."""
NEWER = {
    "model.multi_modal_projector.linear_1.": "model.acoustic_connector.fc1.",
    "model.multi_modal_projector.act.": "model.acoustic_connector.norm.",
    "model.multi_modal_projector.linear_2.": "model.acoustic_connector.fc2.",
    "model.semantic_connector.linear_1.": "model.semantic_connector.fc1.",
    "model.semantic_connector.act.": "model.semantic_connector.norm.",
    "model.semantic_connector.linear_2.": "model.semantic_connector.fc2.",
    "model.diffusion_head.": "model.prediction_head.",
    "timestep_proj.fc1.": "t_embedder.mlp.0.",
    "timestep_proj.fc2.": "t_embedder.mlp.2.",
    "final_layer.linear_1.": "final_layer.adaLN_modulation.1.",
    "final_layer.linear_2.": "final_layer.linear.",
    "model.audio_tower.": "model.acoustic_tokenizer.",
    "model.semantic_tokenizer_encoder.": SEMANTIC,
    "model.latent_scaling_factor": SCALE,
    "model.latent_bias_factor": BIAS,
}
"""Parts of names in transformers' layout, and in the release's."""
_HEAD_LAYER = re.compile(r"(prediction_head\.layers\.\d+)\.linear\.")
_STEM = re.compile(r"\.stem\.conv\.conv\.")
_STEM_STAGE = re.compile(r"\.stem\.stage\.")
_STAGE = re.compile(r"\.conv_layers\.(\d+)\.stage\.")
_RESAMPLER = re.compile(r"\.conv_layers\.(\d+)\.conv(?:tr)?\.conv(?:tr)?\.")


def release_name(name: str) -> str:
    """The name in the release's layout of a tensor in transformers', the wrappers of convolutions
    left out."""
    name = renamed(name, NEWER)
    name = _HEAD_LAYER.sub(r"\1.adaLN_modulation.1.", name)
    if not name.startswith((DECODER, ACOUSTIC, SEMANTIC)):
        return name
    resamplers = "upsample_layers" if name.startswith(DECODER) else "downsample_layers"
    name = _STEM.sub(f".{resamplers}.0.", name)
    name = _STEM_STAGE.sub(".stages.0.", name)
    name = _STAGE.sub(lambda m: f".stages.{int(m[1]) + 1}.", name)
    name = _RESAMPLER.sub(lambda m: f".{resamplers}.{int(m[1]) + 1}.", name)
    return name.replace(".mixer.conv.", ".mixer.").replace(".head.conv.", ".head.")


def in_release_layout(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors of either layout by the release's names."""
    if not any(
        name.startswith(("model.audio_tower.", "model.diffusion_head.")) for name in tensors
    ):
        return dict(tensors)
    return {release_name(name): tensor for name, tensor in tensors.items()}


def of_network(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Tensors of all but the codec."""
    codec = (DECODER, ACOUSTIC, SEMANTIC)
    return {
        name: tensor
        for name, tensor in tensors.items()
        if not name.startswith(codec) and name not in FACTORS
    }


def of_half(
    tensors: Mapping[str, Tensor], prefix: str, factors: Iterable[str] = ()
) -> dict[str, Tensor]:
    """Tensors of a half of the codec whose names begin with `prefix`, and these factors, by their
    names here."""
    weights = {
        renamed(name.removeprefix(prefix), WRAPPERS): tensor
        for name, tensor in tensors.items()
        if name.startswith(prefix)
    }
    return weights | {FACTORS[name]: tensors[name] for name in factors if name in tensors}


def file_name(prefix: str, name: str) -> str:
    """The name in a file of the release of a half's tensor."""
    for in_file, here in FACTORS.items():
        if name == here:
            return in_file
    layer, _, kind = name.rpartition(".")
    if layer.startswith("upsample_layers.") and layer != "upsample_layers.0":
        layer += ".0.convtr.convtr"
    elif layer.startswith(("upsample_layers.", "downsample_layers.")):
        layer += ".0.conv.conv"
    elif layer.endswith("mixer"):
        layer += ".conv.conv.conv"
    elif layer == "head":
        layer += ".conv.conv"
    return f"{prefix}{layer}.{kind}"

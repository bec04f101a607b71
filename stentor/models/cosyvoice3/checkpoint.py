"""Files of a checkpoint: HyperPyYAML as plain data, and released tensor names as those of stentor's
modules.

Nothing in YAML is executed: a tag that would make an object yields its arguments.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml
from torch import Tensor

from stentor.arguments.untrusted import Unreadable, read_bytes
from stentor.arguments.untrusted_yaml import parse_yaml
from stentor.errors import CheckpointError
from stentor.models.weights import WEIGHT_NORM, errors_name, fold_weight_norm, read_pickle, renamed

MAX_BYTES = 1 << 20
_NAME = re.compile(r"<(\w+)>")


class _Reference(str):
    """The text of a `!ref`: one top-level key in angle brackets, or a product of several."""


class _Loader(yaml.SafeLoader):
    """Safe YAML with HyperPyYAML's tags (`!new:`, `!name:`, `!apply:`, `!ref`) read as data."""


def _plain(loader: _Loader, suffix: str, node: yaml.Node) -> Any:
    if isinstance(node, yaml.MappingNode):
        return loader.construct_mapping(node, deep=True)
    if isinstance(node, yaml.SequenceNode):
        return loader.construct_sequence(node, deep=True)
    assert isinstance(node, yaml.ScalarNode)
    value = loader.construct_scalar(node)
    if suffix == "ref":
        return _Reference(value)
    return value


_Loader.add_multi_constructor("!", _plain)


def read_hyper_yaml(file: Path) -> dict[str, Any]:
    """The file's top-level mapping, with references replaced. Raises CheckpointError for anything
    else."""
    try:
        data = parse_yaml(read_bytes(file, MAX_BYTES), _Loader)
    except Unreadable as e:
        raise CheckpointError(f"{file} {e}") from None
    if not isinstance(data, dict):
        raise CheckpointError(f"{file} must hold a mapping, got {type(data).__name__}")
    return {key: _resolved(value, data) for key, value in data.items()}


def _resolved(value: Any, top: dict[str, Any]) -> Any:
    """`value` with its references to keys of `top` replaced."""
    if isinstance(value, _Reference):
        return _referred(value, top)
    if isinstance(value, dict):
        return {k: _resolved(v, top) for k, v in value.items()}
    if isinstance(value, list):
        return [_resolved(v, top) for v in value]
    return value


def _referred(reference: _Reference, top: dict[str, Any]) -> Any:
    """One key's value, a product of numbers, or the text where it is neither."""
    factors = [part.strip() for part in reference.split("*")]
    values = [top.get(m.group(1)) if (m := _NAME.fullmatch(f)) else None for f in factors]
    if len(values) == 1:
        if isinstance(values[0], _Reference):
            return None
        return values[0]
    if all(isinstance(v, int | float) and not isinstance(v, bool) for v in values):
        return math.prod(v for v in values if isinstance(v, int | float))
    return str(reference)


Rules = dict[str, str]
"""Parts of released names and what stands for them here, in this order."""

LANGUAGE: Rules = {"llm.model.model.embed_tokens.": "embed_tokens.", "llm.model.model.": "stack."}
FLOW: Rules = {
    "pre_lookahead_layer.": "look.",
    "decoder.estimator.time_embed.time_mlp.0.": "dit.time_in.",
    "decoder.estimator.time_embed.time_mlp.2.": "dit.time_out.",
    "decoder.estimator.input_embed.conv_pos_embed.conv1.0.": "dit.positions.0.",
    "decoder.estimator.input_embed.conv_pos_embed.conv2.0.": "dit.positions.1.",
    "decoder.estimator.input_embed.proj.": "dit.input.",
    "decoder.estimator.norm_out.linear.": "dit.last_modulation.",
    "decoder.estimator.proj_out.": "dit.output.",
    "decoder.estimator.transformer_blocks.": "dit.blocks.",
    ".attn_norm.linear.": ".modulation.",
    ".attn.to_out.0.": ".o_proj.",
    ".attn.to_q.": ".q_proj.",
    ".attn.to_k.": ".k_proj.",
    ".attn.to_v.": ".v_proj.",
    ".ff.ff.0.0.": ".up.",
    ".ff.ff.2.": ".down.",
}
VOCODER: Rules = {
    "m_source.l_linear.": "source.mix.",
    "f0_predictor.condnet.": "pitch.convs.",
    "f0_predictor.classifier.": "pitch.out.",
}
UNUSED_LANGUAGE = ("llm.model.lm_head.",)  # tied to the text embeddings, and never read
UNUSED_FLOW = ("decoder.estimator.rotary_embed.inv_freq",)  # a buffer, which follows from the sizes


def released_name(rules: Rules) -> Callable[[str], str]:
    """The function from a module's name to that of the file."""
    return lambda name: renamed(
        name, {ours: released for released, ours in reversed(rules.items())}
    )


def read_language(path: Path) -> dict[str, Tensor]:
    """llm.pt under stentor's names."""
    return _read(path / "llm.pt", LANGUAGE, UNUSED_LANGUAGE)


def read_flow(path: Path) -> dict[str, Tensor]:
    """flow.pt under stentor's names."""
    return _read(path / "flow.pt", FLOW, UNUSED_FLOW)


def read_vocoder(path: Path) -> dict[str, Tensor]:
    """hift.pt under stentor's names, weight norms folded: those of the pitch predictor in
    float64."""
    tensors = {
        name.removeprefix("generator."): value
        for name, value in read_pickle(path / "hift.pt").items()
    }
    one_style = {renamed(name, WEIGHT_NORM): value for name, value in tensors.items()}
    precise = {
        name: v.double() if name.startswith("f0_predictor.") else v for name, v in one_style.items()
    }
    with errors_name(path / "hift.pt"):
        weights = fold_weight_norm(precise)
    folded = {_numbered(renamed(name, VOCODER)): value for name, value in weights.items()}
    return {name: v[None, :, None] if _is_rate(name, v) else v for name, v in folded.items()}


def _read(file: Path, rules: Rules, unused: tuple[str, ...]) -> dict[str, Tensor]:
    tensors = read_pickle(file)
    return {
        renamed(name, rules): value
        for name, value in tensors.items()
        if not name.startswith(unused)
    }


def _is_rate(name: str, value: Tensor) -> bool:
    """Whether it holds the frequencies of a Snake activation, which the modules have as [1, C,
    1]."""
    return name.endswith(".alpha") and value.ndim == 1


def _numbered(name: str) -> str:
    """The pitch predictor numbers its activations too: layers 0, 2, 4, ... are convolutions."""
    return re.sub(r"^pitch\.convs\.(\d+)\.", lambda m: f"pitch.convs.{int(m.group(1)) // 2}.", name)

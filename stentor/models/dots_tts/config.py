"""config.json and llm_config.json of a checkpoint as frozen values, and how its flow is solved."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import pi, prod, tan
from typing import Any

from stentor.arguments import shown, whole
from stentor.errors import InvalidRequest
from stentor.layers.configs import StackConfig
from stentor.models.config_reader import ConfigReader
from stentor.models.stack_config import read_stack

EPS32 = 1.1920928955078125e-07
"""Resolution of float32: the epsilon of an nn.RMSNorm that was given none."""
EULER = "euler"
MIDPOINT = "midpoint"
MEANFLOW = "meanflow"
SCM = "scm"
STEPS = {EULER: 10, MIDPOINT: 10, MEANFLOW: 4}
"""Default steps of solvers that the checkpoint does not lock. The package takes 10 for MeanFlow
too, which was not trained for it."""
GUIDANCE = 1.2
MAX_STEPS = 32
LOOKAHEAD = 2
"""Latents behind one that its audio depends on, and that an encoded one depends on."""


@dataclass(frozen=True)
class LayersConfig:
    """Sizes of the semantic encoder or of the flow head."""

    hidden: int
    ffn: int
    layers: int
    heads: int
    theta: float

    @property
    def head_dim(self) -> int:
        return self.hidden // self.heads


@dataclass(frozen=True)
class VocoderConfig:
    """Sizes of the AudioVAE."""

    sample_rate: int
    latent: int
    up_rates: tuple[int, ...]
    channels: int
    kernels: tuple[int, ...]
    dilations: tuple[tuple[int, ...], ...]
    down_rates: tuple[int, ...]
    down_channels: tuple[int, ...]
    lstm_layers: int
    last_bias: bool
    tanh: bool

    @property
    def hop(self) -> int:
        """Samples of one latent."""
        return prod(self.up_rates)


@dataclass(frozen=True)
class Solver:
    """How a patch is made of noise: the method, its steps, and the guidance (0: without an
    unconditioned branch)."""

    method: str
    steps: int
    guidance: float
    renoise: float = 0.0  # sCM: the time of the second evaluation
    locked: bool = False  # the checkpoint allows no other

    @property
    def branches(self) -> int:
        if self.guidance:
            return 2
        return 1

    @property
    def evaluations(self) -> int:
        if self.method == MIDPOINT:
            return 2 * self.steps
        return self.steps

    @property
    def times(self) -> list[tuple[float, float]]:
        """(time, duration) of each evaluation. Only MeanFlow embeds the duration."""
        n = self.steps
        if self.method == SCM:
            return [(0.0, 0.0), (self.renoise, 0.0)]
        if self.method == MIDPOINT:
            return [(i / (2 * n), 0.0) for i in range(2 * n)]
        return [(i / n, 1 / n) for i in range(n)]

    @property
    def noises(self) -> int:
        """Patches of noise that one patch takes."""
        if self.method == SCM:
            return 2
        return 1


@dataclass(frozen=True)
class Quotas:
    """How many text tokens must have come before each patch, where text arrives while it is
    spoken."""

    first: int = 1
    warm_up: int = 0
    singles: int = 0  # patches with one token between patches with two. 0: all have one

    def of(self, patch: int) -> int:
        """Tokens for audible patch number `patch`."""
        if patch == 0:
            return self.first
        at = patch - 1 - self.warm_up
        if self.singles and at >= 0 and at % (self.singles + 1) == self.singles:
            return 2
        return 1


@dataclass(frozen=True)
class DotsConfig:
    """Sizes and habits of one checkpoint."""

    language: StackConfig
    vocab: int
    theta: float
    positions: int
    latent: int
    patch: int
    encoder: LayersConfig
    flow: LayersConfig
    vocoder: VocoderConfig
    speaker: int
    speaker_seconds: float
    duration: bool  # the flow head has an embedding of durations
    solver: Solver
    quotas: Quotas | None  # None: text does not arrive while it speaks

    @property
    def hop(self) -> int:
        """Samples of one patch."""
        return self.patch * self.vocoder.hop


def parse(raw: Mapping[str, Any], language: Mapping[str, Any]) -> DotsConfig:
    """`raw` is config.json, language is llm_config.json. CheckpointError names what is missing,
    wrong or other."""
    top = ConfigReader(raw)
    stack, vocab, theta, positions = _language(ConfigReader(language, "llm_config.json"))
    flow = top.section("DiT")
    _same(flow, {"qk_norm": True, "norm_layer": "RMSNorm", "qkv_bias": False, "rotary_bias": True})
    latent = top.integer("latent_dim")
    patch = top.integer("patch_size", low=4)
    if patch % 2:
        raise top.error("patch_size", f"must be even, got {patch}")
    if top.number("fm_sigma", 0.0):
        raise top.error("fm_sigma", f"must be 0, got {raw['fm_sigma']!r}")
    vocoder = _vocoder(top.section("vocoder"), latent)
    meanflow = top.section("meanflow", {})
    duration = meanflow.flag("enabled", False) and meanflow.flag("use_duration_embedding", True)
    return DotsConfig(
        language=stack,
        vocab=vocab,
        theta=theta,
        positions=positions,
        latent=latent,
        patch=patch,
        encoder=_layers(top.section("PatchEncoder")),
        flow=_layers(flow),
        vocoder=vocoder,
        speaker=top.integer("campplus_embedding_size"),
        speaker_seconds=top.number("xvec_max_audio_seconds", 10.0, above=0),
        duration=duration,
        solver=_solver(top, meanflow.flag("enabled", False)),
        quotas=_quotas(top),
    )


def with_solver(c: DotsConfig, options: Mapping[str, object]) -> DotsConfig:
    """`c` with the solver that load options request. InvalidRequest names one that is malformed or
    locked."""
    solver = c.solver
    values = {
        name: options[name] for name in ("flow_steps", "ode_method", "cfg") if name in options
    }
    if values and solver.locked:
        name = next(iter(values))
        raise InvalidRequest(
            name, "is fixed by this checkpoint, which was distilled for its own solver"
        )
    if "ode_method" in values:
        method = values["ode_method"]
        if solver.method == MEANFLOW or method not in (EULER, MIDPOINT):
            if solver.method == MEANFLOW:
                allowed = MEANFLOW
            else:
                allowed = f"{EULER} or {MIDPOINT}"
            raise InvalidRequest("ode_method", f"must be {allowed}, got {shown(method)}")
        solver = replace(solver, method=str(method))
    if "flow_steps" in values:
        steps = whole(values["flow_steps"])
        if steps is None or not 1 <= steps <= MAX_STEPS:
            raise InvalidRequest("flow_steps", f"must be a whole number from 1 to {MAX_STEPS}")
        solver = replace(solver, steps=steps)
    if "cfg" in values:
        cfg = values["cfg"]
        if (
            solver.method == MEANFLOW
            or isinstance(cfg, bool)
            or not isinstance(cfg, int | float)
            or not 0 <= cfg <= 10
        ):
            raise InvalidRequest("cfg", "must be a number from 0 to 10, and MeanFlow has none")
        solver = replace(solver, guidance=float(cfg))
    return replace(c, solver=solver)


def _same(reader: ConfigReader, expected: Mapping[str, object]) -> None:
    for name, value in expected.items():
        if reader.data.get(name) != value:
            raise reader.error(name, f"must be {value!r}, got {reader.data.get(name)!r}")


def _language(s: ConfigReader) -> tuple[StackConfig, int, float, int]:
    hidden = s.integer("hidden_size")
    heads = s.count("num_attention_heads")
    kv_heads = s.count("num_key_value_heads")
    if hidden % heads or heads % kv_heads:
        raise s.error(
            "num_attention_heads",
            f"must divide {hidden} and be a multiple of {kv_heads}, got {heads}",
        )
    if s.flag("use_sliding_window", False) or s.data.get("rope_scaling") is not None:
        raise s.error("rope_scaling", "and a sliding window are not supported")
    eps = s.number("rms_norm_eps", above=0)
    head_dim = s.integer("head_dim", hidden // heads)
    stack = read_stack(s, eps, head_dim, qkv_bias=True)
    return (
        stack,
        s.integer("vocab_size"),
        s.number("rope_theta", above=0),
        s.integer("max_position_embeddings"),
    )


def _layers(s: ConfigReader) -> LayersConfig:
    hidden = s.integer("hidden_size")
    heads = s.count("num_heads")
    if hidden % heads:
        raise s.error("num_heads", f"must divide hidden_size ({hidden}), got {heads}")
    theta = s.number("rotary_theta", 10000.0, above=0)
    return LayersConfig(hidden, s.integer("ffn_hidden_size"), s.count("num_layers"), heads, theta)


def _vocoder(s: ConfigReader, latent: int) -> VocoderConfig:
    expected = {
        "resblock": "1",
        "activation": "snakebeta",
        "snake_logscale": True,
        "causal": True,
        "causal_encoder": True,
    }
    _same(s, expected)
    if s.integer("latent_dim") != latent:
        raise s.error("latent_dim", f"must be {latent}, as that of the model")
    for name in ("num_encoder_lookahead", "num_decoder_lookahead"):
        if s.integer(name, LOOKAHEAD, low=0) != LOOKAHEAD:
            raise s.error(name, f"must be {LOOKAHEAD}, got {s.data[name]!r}")
    up = s.integers("upsample_rates")
    down = s.integers("downsample_rates")
    if s.integers("upsample_kernel_sizes") != tuple(2 * r for r in up):
        raise s.error("upsample_kernel_sizes", "must be twice upsample_rates")
    channels = s.integers("downsample_channels")
    if prod(up) != prod(down) or len(channels) != len(down) + 1:
        raise s.error(
            "downsample_rates", f"must have the product {prod(up)} and {len(channels) - 1} numbers"
        )
    kernels = s.integers("resblock_kernel_sizes")
    listed = s.data.get("resblock_dilation_sizes")
    if not isinstance(listed, list) or len(listed) != len(kernels):
        raise s.error(
            "resblock_dilation_sizes", f"must be {len(kernels)} lists, got {shown(listed)}"
        )
    dilations = tuple(
        ConfigReader({"resblock_dilation_sizes": d}).integers("resblock_dilation_sizes")
        for d in listed
    )
    return VocoderConfig(
        sample_rate=s.integer("sample_rate"),
        latent=latent,
        up_rates=up,
        channels=s.integer("upsample_initial_channel"),
        kernels=kernels,
        dilations=dilations,
        down_rates=down,
        down_channels=channels,
        lstm_layers=s.count("mi_num_layers"),
        last_bias=s.flag("use_bias_at_final", True),
        tanh=s.flag("use_tanh_at_final", True),
    )


def _solver(top: ConfigReader, meanflow: bool) -> Solver:
    if top.data.get("sampling") is None:
        if meanflow:
            method = MEANFLOW
        else:
            method = EULER
        return Solver(method, STEPS[method], 0.0 if meanflow else GUIDANCE)
    s = top.section("sampling")
    kind = s.text("solver")
    steps = s.count("num_steps")
    guidance = s.number("guidance_scale", 0.0)
    if kind == SCM:
        tau = s.number("tau_mid", 1.3, above=0)
        if tau >= pi / 2 or steps != 2 or guidance:
            raise s.error("tau_mid", "must be below pi / 2, with num_steps 2 and guidance_scale 0")
        return Solver(SCM, 2, 0.0, 1 / (1 + tan(tau)), True)
    method = s.text("ode_method", EULER)
    if kind != "flow_matching" or method not in (EULER, MIDPOINT):
        raise s.error(
            "solver",
            f"must be {SCM} or flow_matching by {EULER} or {MIDPOINT}, got {kind!r}, {method!r}",
        )
    return Solver(method, steps, guidance, locked=True)


def _quotas(top: ConfigReader) -> Quotas | None:
    if top.data.get("streaming") is None:
        return None
    s = top.section("streaming")
    mode = s.text("interleave_mode", "one_to_one")
    if mode == "one_to_one":
        return Quotas()
    if mode != "buffered_ratio":
        raise s.error("interleave_mode", f"must be one_to_one or buffered_ratio, got {mode!r}")
    return Quotas(
        s.integer("initial_lookahead", 3),
        s.integer("warmup_ta", 1, low=0),
        s.integer("ta_per_tta", 2),
    )

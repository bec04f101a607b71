"""config.json of a VoxCPM2 checkpoint, checked once and turned into plain dataclasses."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from stentor.arguments import shown, whole
from stentor.errors import CheckpointError, InvalidRequest
from stentor.layers.configs import StackConfig
from stentor.models.config_reader import ConfigReader
from stentor.models.stack_config import even_heads, read_stack
from stentor.models.voxcpm2.steps import MAX_STEPS
from stentor.text.sentences import GRANULARITIES

OWN_DEFAULTS = ("temperature", "cfg", "flow_steps", "min_frames", "max_frames")


@dataclass(frozen=True)
class VAEConfig:
    """AudioVAE V2. Rates in samples per second. Strides multiply to the samples of one latent.

    With `samples_per_column` above 1 the outermost convolutions take and return that many samples
    as channels, so that no layer runs at the sample rate (WaveNeXt's linear head, Okamoto et al.,
    2023).
    """

    encoder_dim: int = 128
    encoder_rates: tuple[int, ...] = (2, 5, 8, 8)
    latent_dim: int = 64
    decoder_dim: int = 2048
    decoder_rates: tuple[int, ...] = (8, 6, 5, 2, 2, 2)
    depthwise: bool = True
    sample_rate: int = 16000  # of the encoder's input
    out_sample_rate: int = 48000  # of the decoder's output
    sr_bin_boundaries: tuple[int, ...] | None = (20000, 30000, 40000)
    samples_per_column: int = 1
    # channels before and after each block. (): decoder_dim, halved by each
    decoder_widths: tuple[int, ...] = ()

    @property
    def widths(self) -> tuple[int, ...]:
        """Channels of the decoder before its first block and after each one."""
        return self.decoder_widths or tuple(
            self.decoder_dim // 2**i for i in range(len(self.decoder_rates) + 1)
        )

    @property
    def hop(self) -> int:
        """Samples at `sample_rate` that become one latent."""
        return self.samples_per_column * math.prod(self.encoder_rates)

    @property
    def upsampling(self) -> int:
        """Samples at `out_sample_rate` that one latent becomes."""
        return self.samples_per_column * math.prod(self.decoder_rates)

    @property
    def rate_bucket(self) -> int:
        """Row of the sample-rate tables that `out_sample_rate` selects (torch.bucketize,
        right=False)."""
        return sum(b < self.out_sample_rate for b in self.sr_bin_boundaries or ())


@dataclass(frozen=True)
class AlignmentConfig:
    """The base language model's heads that were trained to look at the text of the patch that is
    made: the first `heads` of each of `layers`. lag: seconds by which they pass a word late, as
    training measures it. window: positions of the text behind and ahead of the last frame's place
    that these layers see. None: all."""

    layers: tuple[int, ...]
    heads: int
    lag: float
    window: tuple[int, int] | None = None


@dataclass(frozen=True)
class VoxCPM2Config:
    """Sizes of one checkpoint. The four stacks share heads, epsilon and RoPE settings as the
    release does."""

    base: StackConfig
    residual: StackConfig
    encoder: StackConfig
    dit: StackConfig
    vae: VAEConfig
    vocab: int
    patch: int
    feat: int
    fsq_dim: int
    fsq_scale: int
    residual_rope: bool
    rope_theta: float
    rope_factors: tuple[float, ...] | None
    max_length: int
    dtype: str
    defaults: Mapping[str, float] = field(default_factory=dict)  # of request options
    text_frontend: str | None = None
    takes_instructions: bool = True
    takes_reference: bool = True
    voices: tuple[str, ...] = ()  # of voices.safetensors. The first one speaks where none is named
    voice_descriptions: Mapping[str, str] = field(default_factory=dict)
    # text embeddings carry their position, so that equal phonemes differ
    counts_positions: bool = False
    # weights of 8 bits are stored so for their size: they are widened if 8 bits are not asked for
    widens: bool = False
    threads: int | None = None  # of a CPU, where more are no faster
    # more than that, and `patches_around`, is suspect: the utterance may run on
    patches_per_token: float = 6.0
    patches_around: float = 0.0  # silence before and after
    # of the noise of every request's first patch, which decides when speech begins
    first_patch_seed: int | None = None
    split_granularity: str = "auto"  # how text is cut by default
    alignment: AlignmentConfig | None = None


def parse_vae(data: object) -> VAEConfig:
    """audio_vae_config, with the class defaults of the reference for missing keys."""
    s = ConfigReader(data, section="audio_vae_config")
    d = VAEConfig()
    if s.flag("use_noise_block", False):
        raise s.error("use_noise_block", "is not supported")
    if s.flag("cond_out_layer", False) or s.text("cond_type", "scale_bias") not in (
        "scale_bias",
        "scale_bias_init",
    ):
        raise CheckpointError(
            "config.json: audio_vae_config supports only cond_type 'scale_bias' without out layer"
        )
    rates = s.integers("decoder_rates", d.decoder_rates)
    if s.data.get("decoder_widths"):
        widths = s.integers("decoder_widths")
    else:
        widths = ()
    if widths and len(widths) != len(rates) + 1:
        raise s.error(
            "decoder_widths", f"must have {len(rates) + 1} values, one more than decoder_rates"
        )
    # null: no such tables
    plain = "sr_bin_boundaries" in s.data and s.data["sr_bin_boundaries"] is None
    return VAEConfig(
        encoder_dim=s.integer("encoder_dim", d.encoder_dim),
        encoder_rates=s.integers("encoder_rates", d.encoder_rates),
        latent_dim=s.integer("latent_dim", d.latent_dim),
        decoder_dim=s.integer("decoder_dim", d.decoder_dim),
        decoder_rates=rates,
        depthwise=s.flag("depthwise", d.depthwise),
        sample_rate=s.integer("sample_rate", d.sample_rate),
        out_sample_rate=s.integer("out_sample_rate", d.out_sample_rate),
        sr_bin_boundaries=None
        if plain
        else s.integers("sr_bin_boundaries", d.sr_bin_boundaries or ()),
        samples_per_column=s.integer("samples_per_column", 1),
        decoder_widths=widths,
    )


def parse(config: Mapping[str, object]) -> VoxCPM2Config:
    """The whole config.json. CheckpointError names a field that is missing, malformed or not
    supported."""
    top = ConfigReader(config)
    lm = top.section("lm_config")
    if lm.flag("use_mup", False):
        raise lm.error("use_mup", "true is not supported (the release has false)")
    base = read_stack(lm, lm.number("rms_norm_eps", 1e-5), lm.count("kv_channels", even_heads(lm)))
    vae = parse_vae(config.get("audio_vae_config") or {})
    patch = top.integer("patch_size", 4)
    feat = top.integer("feat_dim", 64)
    if vae.latent_dim != feat:
        raise CheckpointError(
            f"config.json: audio_vae_config.latent_dim {vae.latent_dim} must equal feat_dim {feat}"
        )
    if patch * feat % 2:
        raise CheckpointError(f"config.json: patch_size {patch} times feat_dim {feat} must be even")
    stentor = top.section("stentor", {})
    return VoxCPM2Config(
        base=base,
        residual=_like(
            base,
            base.hidden,
            base.ffn,
            base.heads,
            top.count("residual_lm_num_layers", 8),
            base.head_dim,
        ),
        encoder=_local_stack(base, top.section("encoder_config")),
        dit=_local_stack(base, top.section("dit_config")),
        vae=vae,
        vocab=lm.integer("vocab_size"),
        patch=patch,
        feat=feat,
        fsq_dim=top.integer("scalar_quantization_latent_dim", 512),
        fsq_scale=top.integer("scalar_quantization_scale", 9),
        residual_rope=not top.flag("residual_lm_no_rope", False),
        rope_theta=lm.number("rope_theta", 10000),
        rope_factors=_rope_factors(lm, base.head_dim),
        max_length=top.integer("max_length", 8192),
        dtype=_dtype_name(top),
        defaults=_defaults(stentor),
        text_frontend=stentor.text("text_frontend", "") or None,
        takes_instructions=stentor.flag("takes_instructions", True),
        takes_reference=stentor.flag("takes_reference", True),
        voices=stentor.texts("voices", ()),
        voice_descriptions=stentor.words("voice_descriptions"),
        counts_positions=stentor.flag("counts_positions", False),
        widens=stentor.flag("widens", False),
        threads=stentor.integer("threads") if stentor.data.get("threads") is not None else None,
        patches_per_token=stentor.number("patches_per_token", 6.0),
        patches_around=stentor.number("patches_around", 0.0),
        first_patch_seed=stentor.integer("first_patch_seed")
        if "first_patch_seed" in stentor.data
        else None,
        split_granularity=stentor.choice("split_granularity", GRANULARITIES, "auto"),
        alignment=_alignment(stentor, base),
    )


def _alignment(stentor: ConfigReader, base: StackConfig) -> AlignmentConfig | None:
    """stentor.alignment: {"layers": [1, 2, 3], "heads": 2, "lag": 0.05, "behind": 1, "ahead":
    8}."""
    if stentor.data.get("alignment") is None:
        return None
    section = stentor.section("alignment")
    if stentor.data.get("text_frontend") is None or stentor.flag("takes_instructions", True):
        raise stentor.error("alignment", "needs a text_frontend, and takes_instructions false")
    layers = section.integers("layers", low=0)
    heads = section.count("heads")
    if max(layers) >= base.layers or len(set(layers)) < len(layers):
        raise section.error(
            "layers", f"must be different numbers below {base.layers}, got {list(layers)}"
        )
    if heads > base.heads:
        raise section.error("heads", f"must be at most {base.heads}, got {heads}")
    return AlignmentConfig(
        tuple(sorted(layers)), heads, section.number("lag", 0.0), _window(section)
    )


def _window(alignment: ConfigReader) -> tuple[int, int] | None:
    """`behind` and `ahead` of stentor.alignment, both or neither."""
    if alignment.data.get("behind") is None and alignment.data.get("ahead") is None:
        return None
    return alignment.integer("behind", low=0), alignment.integer("ahead", low=1)


def _defaults(stentor: ConfigReader) -> dict[str, float]:
    """stentor.defaults: request options whose defaults differ from the release's."""
    section = stentor.section("defaults", {})
    for key in section.data:
        if key not in OWN_DEFAULTS:
            raise section.error(key, f"is not one of {', '.join(OWN_DEFAULTS)}")
    return {key: section.number(key) for key in section.data}


def _like(
    base: StackConfig, hidden: int, ffn: int, heads: int, layers: int, head_dim: int
) -> StackConfig:
    return StackConfig(hidden, ffn, layers, heads, base.kv_heads, head_dim, base.eps)


def _local_stack(base: StackConfig, s: ConfigReader) -> StackConfig:
    hidden = s.integer("hidden_dim", 1024)
    heads = s.count("num_heads", 16)
    head_dim = s.count("kv_channels", hidden // heads)
    if head_dim != base.head_dim:
        raise s.error(
            "kv_channels",
            f"{head_dim} differs from lm_config's {base.head_dim}: the rotary factors are shared",
        )
    return _like(
        base, hidden, s.integer("ffn_dim", 4096), heads, s.count("num_layers", 4), head_dim
    )


def _rope_factors(lm: ConfigReader, head_dim: int) -> tuple[float, ...] | None:
    """LongRoPE's short factors. With max == original positions the amplitude factor is 1."""
    if lm.data.get("rope_scaling") is None:
        return None
    scaling = lm.section("rope_scaling")
    longest = lm.integer("max_position_embeddings", 32768)
    original = scaling.integer("original_max_position_embeddings")
    if longest != original:
        raise scaling.error(
            "original_max_position_embeddings",
            f"{original} must equal lm_config.max_position_embeddings {longest}",
        )
    factors = scaling.numbers("short_factor")
    if len(factors) != head_dim // 2:
        raise scaling.error("short_factor", f"has {len(factors)} values, not {head_dim // 2}")
    return factors


def _dtype_name(top: ConfigReader) -> str:
    names = {
        "bfloat16": "bfloat16",
        "bf16": "bfloat16",
        "float16": "float16",
        "fp16": "float16",
        "float32": "float32",
    }
    name = top.text("dtype", "bfloat16")
    if name not in names:
        raise top.error("dtype", f"{name!r} is not one of {', '.join(names)}")
    return names[name]


def with_steps(c: VoxCPM2Config, steps: object) -> VoxCPM2Config:
    """`c` with another default of flow_steps, for which the engine prepares too."""
    if steps is None:
        return c
    number = whole(steps)
    if number is None or not 1 <= number <= MAX_STEPS:
        raise InvalidRequest(
            "flow_steps", f"must be a whole number from 1 to {MAX_STEPS}, got {shown(steps)}"
        )
    return replace(c, defaults={**c.defaults, "flow_steps": number})

"""cosyvoice3.yaml and the text model's config.json as typed sizes. A key that is left out has its
released value."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from stentor.layers.configs import StackConfig
from stentor.models.config_reader import ConfigReader
from stentor.models.stack_config import even_heads, read_stack

YAML = "cosyvoice3.yaml"
TEXT_MODEL = "CosyVoice-BlankEN"
SAMPLE_RATE = 24_000
CODE_RATE = 25
MELS = 80
SPEAKER = 192
SPECIAL_CODES = (
    200  # rows of the code tables past the codes: start, end, task, fill, and unused ones
)
RELEASED_CODES = 6561
REFERENCE_SECONDS = (0.5, 30.0)
MARK = 1 << 16  # frames from here on are no codes
FEED = 4096  # tokens and codes that a row may be fed before it draws
MAX_SILENT = 5  # codes of silence in a row that are emitted
MIX = (5, 15)  # tokens of text, and codes, of a block where text comes while the model speaks
TAIL = 30  # mel frames that the position convolutions of the flow's transformer see again
DIT_EPS = 1e-6
MAX_PROMPT = 750  # codes of the longest reference
MAX_MODEL_LEN = (
    4096  # positions of a sequence: 20 codes per token of text, beside prompts of 30 seconds
)


@dataclass(frozen=True)
class RasConfig:
    """Repetition-aware sampling (RAS): an id that has `share` of the last `window` frames is drawn
    again."""

    top_p: float = 0.8
    top_k: int = 25
    window: int = 10
    share: float = 0.1


@dataclass(frozen=True)
class LanguageConfig:
    """Sizes of the language model. Codes from `codes` on are special: start, end, task and fill, in
    this order."""

    stack: StackConfig
    theta: float
    text_vocab: int
    codes: int
    ras: RasConfig

    @property
    def start(self) -> int:
        return self.codes

    @property
    def end(self) -> int:
        return self.codes + 1

    @property
    def task(self) -> int:
        return self.codes + 2

    @property
    def fill(self) -> int:
        return self.codes + 3


@dataclass(frozen=True)
class FlowConfig:
    """Sizes of the flow: the convolutions that look ahead, and the diffusion transformer (DiT)."""

    codes: int
    look_channels: int
    dim: int
    depth: int
    heads: int
    head_dim: int
    ff: int
    guidance: float
    look: int = 3  # codes ahead
    chunk: int = 25  # codes that see each other in a stream's chunks
    ratio: int = 2  # mel frames per code


@dataclass(frozen=True)
class VocoderConfig:
    """Sizes of the vocoder: channels before the first upsampling, and of the pitch predictor."""

    base: int
    pitch: int


@dataclass(frozen=True)
class Config:
    language: LanguageConfig
    flow: FlowConfig
    vocoder: VocoderConfig


FIXED: Mapping[tuple[str, ...], Mapping[str, object]] = {
    (): {
        "sample_rate": SAMPLE_RATE,
        "token_frame_rate": CODE_RATE,
        "token_mel_ratio": 2,
        "chunk_size": 25,
    },
    ("llm",): {"mix_ratio": list(MIX)},
    ("flow",): {
        "input_size": MELS,
        "output_size": MELS,
        "spk_embed_dim": SPEAKER,
        "pre_lookahead_len": 3,
    },
    ("flow", "decoder", "cfm_params", "content"): {"solver": "euler", "t_scheduler": "cosine"},
    ("flow", "decoder", "estimator"): {"static_chunk_size": 50, "num_decoding_left_chunks": -1},
    ("hift",): {
        "sampling_rate": SAMPLE_RATE,
        "nb_harmonics": 8,
        "upsample_rates": [8, 5, 3],
        "upsample_kernel_sizes": [16, 11, 7],
        "resblock_kernel_sizes": [3, 7, 11],
        "source_resblock_kernel_sizes": [7, 7, 11],
        "conv_pre_look_right": 4,
        "istft_params": {"n_fft": 16, "hop_len": 4},
    },
}
"""Values that this implementation is built for. A file with others is another model."""


def parse(data: Mapping[str, Any], text_model: Mapping[str, Any]) -> Config:
    """`data` of cosyvoice3.yaml and `text_model` of CosyVoice-BlankEN/config.json.

    Raises CheckpointError, naming the first key whose value is wrong or unsupported.
    """
    top = ConfigReader(data, YAML)
    for path, values in FIXED.items():
        section = _section(top, *path)
        for key, value in values.items():
            if section.data.get(key, value) != value:
                raise section.error(key, f"is {section.data[key]!r}; this family has {value!r}")
    llm, flow, hift = (_section(top, name) for name in ("llm", "flow", "hift"))
    codes = llm.integer("speech_token_size", RELEASED_CODES)
    language = _language(llm, codes, ConfigReader(text_model, f"{TEXT_MODEL}/config.json"))
    vocab_size = _section(flow).integer("vocab_size", codes)
    if vocab_size != codes:
        raise flow.error("vocab_size", f"{vocab_size} differs from llm.speech_token_size {codes}")
    return Config(language, _flow(flow, codes), _vocoder(hift))


def _section(reader: ConfigReader, *path: str) -> ConfigReader:
    for name in path:
        reader = reader.section(name, {})
    return reader


def _language(llm: ConfigReader, codes: int, text: ConfigReader) -> LanguageConfig:
    hidden = text.integer("hidden_size")
    if llm.integer("llm_input_size", hidden) != hidden:
        raise llm.error(
            "llm_input_size", f"differs from hidden_size {hidden} of {TEXT_MODEL}/config.json"
        )
    sampling = _section(llm, "sampling")
    released = RasConfig()
    return LanguageConfig(
        stack=read_stack(
            text, text.number("rms_norm_eps", above=0), even_heads(text), qkv_bias=True
        ),
        theta=text.number("rope_theta", 1e6, above=0),
        text_vocab=text.integer("vocab_size"),
        codes=codes,
        ras=RasConfig(
            top_p=sampling.number("top_p", released.top_p, above=0),
            top_k=sampling.integer("top_k", released.top_k),
            window=sampling.integer("win_size", released.window),
            share=sampling.number("tau_r", released.share, above=0),
        ),
    )


def _flow(flow: ConfigReader, codes: int) -> FlowConfig:
    dit = _section(flow, "decoder", "estimator")
    look = _section(flow, "pre_lookahead_layer")
    dim = dit.integer("dim", 1024)
    heads = dit.count("heads", 16)
    head_dim = dit.integer("dim_head", 64)
    if heads * head_dim != dim:
        raise dit.error("heads", f"{heads} times dim_head {head_dim} is not dim {dim}")
    return FlowConfig(
        codes=codes,
        look_channels=look.integer("channels", 1024),
        dim=dim,
        depth=dit.count("depth", 22),
        heads=heads,
        head_dim=head_dim,
        ff=dim * dit.integer("ff_mult", 2),
        guidance=_section(flow, "decoder", "cfm_params", "content").number(
            "inference_cfg_rate", 0.7
        ),
    )


def _vocoder(hift: ConfigReader) -> VocoderConfig:
    base = hift.integer("base_channels", 512)
    if base % 8:
        raise hift.error("base_channels", f"must be divisible by 8, got {base}")
    return VocoderConfig(base, _section(hift, "f0_predictor").integer("cond_channels", 512))

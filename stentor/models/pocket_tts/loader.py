"""Loading a checkpoint: weights, a tokenizer, voices, and a description in YAML or of a released name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
import yaml

from stentor.errors import CheckpointError
from stentor.layers.conv import cast_codec
from stentor.layers.packed_conv import pack_convolutions
from stentor.layers.packed_linear import pack_linears, packs
from stentor.models.base import Voice
from stentor.models.load_options import CODEC_DTYPE, check_load_options, codec_dtype, encoder_dtype, model_dtype
from stentor.models.pocket_tts import released
from stentor.models.pocket_tts.codec import Decoder
from stentor.models.pocket_tts.codec_encoder import Encoder
from stentor.models.pocket_tts.config import RATE, PocketConfig, parse
from stentor.models.pocket_tts.language_model import LanguageModel
from stentor.models.pocket_tts.model import PocketTTS
from stentor.models.pocket_tts.prompt import PromptBuilder
from stentor.models.pocket_tts.spec import MAX_MODEL_LEN, REFERENCE_SECONDS
from stentor.models.pocket_tts.tokenizer import Tokenizer, read_tokenizer
from stentor.models.pocket_tts.voice import VoiceFiles
from stentor.models.quantization import QUANTIZATION, place_quantized, quantization
from stentor.models.weights import load_weights, meta_init, read_safetensors

WORKERS = 2
"""Threads that pack weights."""
LOAD_OPTIONS = (CODEC_DTYPE, QUANTIZATION)
QUANTIZED = ("transformer",)
"""The stack whose weights may have 8 bits."""
VOICES = "embeddings"
LM = "flow_lm."
DECODER = {
    "mimi.quantizer.output_proj.weight": "output_proj",
    "mimi.upsample.convtr.convtr.": "upsample.",
    "mimi.decoder_transformer.transformer.": "transformer.",
    "mimi.decoder.": "decoder.",
    "flow_lm.emb_": "emb_",
}
ENCODER = {
    "mimi.encoder.": "encoder.",
    "mimi.encoder_transformer.transformer.": "transformer.",
    "mimi.downsample.conv.conv.": "downsample.",
}
"""How names in a checkpoint begin, and the same here."""


def load(
    path: Path, raw: Mapping[str, Any], device: torch.device, dtype: torch.dtype | None, options: Mapping[str, Any]
) -> PocketTTS:
    """`raw` is config.json, of which there is none. `dtype` None: bfloat16 on a GPU, and on a CPU float32 with weights
    in 16 bits where the file has them so.

    Load options: `codec_dtype`, and `quantization` of the backbone. Raises CheckpointError and InvalidRequest.
    """
    check_load_options(options, LOAD_OPTIONS)
    checkpoint = Checkpoint(path)
    c, eight = checkpoint.config, quantization(options)
    net, decoder, encoder = make_modules(c, device, dtype)
    source, tensors = str(checkpoint.weights), read_safetensors(checkpoint.weights)
    rest = {name: t for name, t in tensors.items() if name.startswith(LM) and not _renamed(name, DECODER)}
    rest = {name.removeprefix(LM): t for name, t in rest.items()}
    packed = dtype is None and all(t.element_size() == 2 for t in tensors.values() if t.ndim > 1)
    load_weights(net, place_quantized(net, QUANTIZED, rest, eight, source, device), source, device, file_name=_of_lm)
    for module, names in ((decoder, DECODER), (encoder, ENCODER)):
        own = {new: t for name, t in tensors.items() if (new := _renamed(name, names))}
        load_weights(module, own, source, device, file_name=_file_name(names))
    voices = VoiceFiles(checkpoint.voices, c.backbone)
    return build_model(
        c,
        (net, decoder, encoder),
        codec_dtype(options, device, dtype),
        read_tokenizer(checkpoint.tokenizer),
        voices,
        checkpoint.language,
        checkpoint.clones,
        packed,
    )


def make_modules(
    c: PocketConfig, device: torch.device, dtype: torch.dtype | None
) -> tuple[LanguageModel, Decoder, Encoder]:
    """Modules on the meta device. Both halves of the codec are loaded in float32 whatever the language model is."""
    with meta_init():
        net = LanguageModel(c).to(model_dtype(dtype, torch.bfloat16, device))
        return net, Decoder(c), Encoder(c)


@torch.no_grad()
def build_model(
    c: PocketConfig,
    modules: tuple[LanguageModel, Decoder, Encoder],
    audio_dtype: torch.dtype,
    tokens: Tokenizer,
    voices: Mapping[str, Voice],
    language: str,
    clones: bool,
    packed: bool,
) -> PocketTTS:
    """A model of loaded parts, all on one device. Audio is decoded in `audio_dtype`. packed: a CPU that can holds
    weights in 16 bits, which those of releases have."""
    net, decoder, encoder = modules
    device = net.bos_emb.device
    for module in modules:
        module.eval().requires_grad_(False)
    net.process_weights_after_loading()
    cast_codec(decoder, audio_dtype)
    cast_codec(encoder, encoder_dtype(audio_dtype, device))
    if packed and packs(device, net.dtype):
        pack_linears(net)
    if packed and packs(device, audio_dtype):
        with ThreadPoolExecutor(WORKERS) as pool:
            for module in (decoder, encoder):
                pack_linears(module)
                pack_convolutions(module, pool, taps=True)
    decoder.process_weights_after_loading(MAX_MODEL_LEN)
    encoder.process_weights_after_loading(int(REFERENCE_SECONDS[1] * RATE) + RATE)
    return PocketTTS(c, net, decoder, encoder, PromptBuilder(c, tokens, voices), language, clones)


class Checkpoint:
    """Where the parts of a checkpoint are. What a folder of the Hub lacks comes from the open repository."""

    def __init__(self, path: Path) -> None:
        self.path = path
        described = _described(path)
        if described is None and path.name not in released.NAMES:
            names = ", ".join(released.NAMES)
            raise CheckpointError(f"{path} has no YAML with flow_lm and mimi, and its name is none of {names}")
        self._released = path.name if described is None else None
        file, data = described or (path / f"{path.name}.yaml", released.description(path.name))
        self.config = parse(data, str(file))
        name = file.stem if described is None or file.stem in released.NAMES else path.name
        self.language = next((lang for lang in released.LANGUAGES if name.startswith(lang)), "english")

    @property
    def weights(self) -> Path:
        """The file of weights."""
        file, other = self._local(self.config.weights), self.config.weights_without_cloning
        return file if file.is_file() or other is None else self._local(other)

    @property
    def clones(self) -> bool:
        """Whether the weights are those with which recordings may be cloned. The others have an encoder that does not
        work, and only the place that they are from says so."""
        own = self.weights == self._local(self.config.weights)
        return own and "without-voice-cloning" not in str(self.path.resolve())

    @property
    def tokenizer(self) -> Path:
        """The tokenizer's file."""
        file = self._local(self.config.tokenizer)
        if file.is_file() or self._released is None:
            return file
        name = released.TOKENIZERS.get(self._released, f"languages/{self._released}/{file.name}")
        return _open_files(name) / name

    @property
    def voices(self) -> Path:
        """The folder of its voices, which may not exist."""
        folder = self.path / VOICES
        if folder.is_dir() or self._released is None or not _is_download(self.path):
            return folder
        name = f"languages/{self._released}/{VOICES}"
        return _open_files(f"{name}/*") / name

    def _local(self, name: str) -> Path:
        """A file that the description names, beside it. Of an address only the last part counts."""
        return self.path / (Path(name.partition("@")[0]).name if "://" in name else name)


def _described(path: Path) -> tuple[Path, Any] | None:
    """The YAML of a folder that describes a model, and what it says. None if there is no such. CheckpointError if there
    are several."""
    found = []
    for file in sorted(path.glob("*.yaml")):
        try:
            data = yaml.safe_load(file.read_text(encoding="utf-8"))
        except (yaml.YAMLError, UnicodeDecodeError, OSError) as e:
            raise CheckpointError(f"{file} is not valid YAML: {e}") from e
        if isinstance(data, Mapping) and {"flow_lm", "mimi"} <= data.keys():
            found.append((file, data))
    if len(found) > 1:
        raise CheckpointError(f"{path} describes several models: {', '.join(file.name for file, _ in found)}")
    return found[0] if found else None


def _is_download(path: Path) -> bool:
    """Whether a folder is one of the gated repository in the cache of the Hub's library."""
    return f"models--{released.REPOSITORY.replace('/', '--')}" in path.parts


def _open_files(pattern: str) -> Path:
    """The open repository with files that match, downloaded or found in the cache."""
    from huggingface_hub import errors, snapshot_download

    try:
        return Path(snapshot_download(released.OPEN_REPOSITORY, allow_patterns=[pattern]))
    except (errors.HfHubHTTPError, errors.LocalEntryNotFoundError, OSError) as e:
        raise CheckpointError(f"{released.OPEN_REPOSITORY}: {pattern} could not be downloaded: {e}") from e


def _renamed(name: str, names: Mapping[str, str]) -> str:
    """The name of a checkpoint's tensor here, or ""."""
    return next((new + name.removeprefix(old) for old, new in names.items() if name.startswith(old)), "")


def _of_lm(name: str) -> str:
    return LM + name


def _file_name(names: Mapping[str, str]) -> Callable[[str], str]:
    return lambda name: next((old + name.removeprefix(new) for old, new in names.items() if name.startswith(new)), name)

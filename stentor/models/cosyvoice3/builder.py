"""Building a model: the language model, the codec's flow and vocoder, the text tokenizer and the
voices."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from stentor.models.cosyvoice3 import checkpoint, codec_noise, config
from stentor.models.cosyvoice3.codec import HOP, CosyVoice3Codec
from stentor.models.cosyvoice3.language_model import Language
from stentor.models.cosyvoice3.model import CosyVoice3
from stentor.models.cosyvoice3.reference_encoder import VoiceEncoder
from stentor.models.cosyvoice3.tokenizer import Tokens, read_tokens, special_tokens
from stentor.models.cosyvoice3.voice import StoredVoice, load_voices
from stentor.models.dummy import DummyTokenizer
from stentor.models.load_options import CODEC_DTYPE, codec_dtype, model_dtype
from stentor.models.source import Checkpoint, RandomWeights, Source

log = logging.getLogger("stentor.models")

STREAM_WINDOW = "stream_window"  # of earlier releases
LOAD_OPTIONS = (STREAM_WINDOW,)
FILE_OPTIONS = (CODEC_DTYPE,)
"""Load options of a checkpoint."""
FIRST_SPECIAL = 151646  # id of the released tokenizer
DUMMY_PROMPT = 100  # codes of the voice beside random weights: 4 seconds


def build(
    source: Source, device: torch.device, dtype: torch.dtype | None, options: Mapping[str, Any]
) -> CosyVoice3:
    """`dtype` None: bfloat16 on a GPU, float32 on a CPU. Beside random weights there is one voice,
    `dummy`.

    Load option of a checkpoint: `codec_dtype` of the vocoder's stages. `stream_window` of earlier
    releases is taken with a warning. Raises CheckpointError and InvalidRequest.
    """
    source.check_options(options, LOAD_OPTIONS, FILE_OPTIONS)
    if STREAM_WINDOW in options:
        log.warning(
            "%s has no effect: each chunk is decoded over the whole utterance", STREAM_WINDOW
        )
    stages = codec_dtype(options, device, dtype)
    text_model = source.json(f"{config.TEXT_MODEL}/config.json")
    if isinstance(source, Checkpoint):
        c = config.parse(checkpoint.read_hyper_yaml(source.path / config.YAML), text_model)
        encoder = VoiceEncoder(source.path)
        tokens = read_tokens(source.path, c.language.text_vocab)
        voices = load_voices(source.path, c.language.codes)
    else:
        c = config.parse(source.json(config.YAML), text_model)
        encoder = VoiceEncoder(None)
        tokens = dummy_ids(source.words)
        voices = {"dummy": _noise(c.language.codes)}
    language = Language(c.language, model_dtype(dtype, torch.bfloat16, device))
    codec = CosyVoice3Codec(c)
    _fill(source, language, codec, device)
    for module in (language, codec):
        module.requires_grad_(False).eval()
    language.process_weights_after_loading()
    noise = (codec_noise.flow_noise(), codec_noise.source_noise(c, config.MAX_MODEL_LEN * HOP))
    codec.process_weights_after_loading(noise, language.table.dtype, stages)
    for module in (language, codec):
        module.to(language.table.device)
    return CosyVoice3(c, language, codec, tokens, voices, encoder)


def _fill(source: Source, language: Language, codec: CosyVoice3Codec, device: torch.device) -> None:
    """Fill each module from its file."""
    parts = (
        (language, checkpoint.read_language, "llm.pt", checkpoint.LANGUAGE),
        (codec.flow, checkpoint.read_flow, "flow.pt", checkpoint.FLOW),
        (codec.vocoder, checkpoint.read_vocoder, "hift.pt", checkpoint.VOCODER),
    )
    if isinstance(source, RandomWeights):  # flow and vocoder are drawn in one row
        source.fill(language, {}, source.name, device)
        source.fill(codec, {}, source.name, device, 1)
        return
    for module, read, name, rules in parts:
        file_name = checkpoint.released_name(rules)
        source.fill(
            module, source.tensors(read), f"{source.name}/{name}", device, file_name=file_name
        )


def dummy_ids(words: int) -> Tokens:
    """The released special ids, and one id per word of text."""
    special = {name: FIRST_SPECIAL + i for i, name in enumerate(special_tokens())}
    return Tokens(DummyTokenizer(words, special).encode, FIRST_SPECIAL)


def _noise(codes: int) -> StoredVoice:
    """A voice of noise, with a transcript."""
    g = np.random.default_rng(0)
    mel = g.standard_normal((2 * DUMMY_PROMPT, config.MELS)).astype(np.float32)
    speaker = g.standard_normal(config.SPEAKER).astype(np.float32)
    return StoredVoice(
        g.integers(0, codes, DUMMY_PROMPT), mel, speaker, "what the dummy said", "dummy"
    )

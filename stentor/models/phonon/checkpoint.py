"""Parts of a checkpoint: the names of its tensors, its tokenizer and its voices."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from tokenizers import Tokenizer as Library
from torch import Tensor

from stentor.errors import CheckpointError
from stentor.models.base import Voice
from stentor.models.calm_tokenizer import Tokenizer
from stentor.models.calm_weights import DECODER, LM, named, renamed
from stentor.models.config_files import read_json
from stentor.models.phonon.spec import DEFAULT_VOICE
from stentor.models.voice_files import VoiceFiles, voice_files
from stentor.models.weights import read_safetensors

CONDITIONERS = f"{LM}condition_provider.conditioners."
NAMES = {
    f"{CONDITIONERS}transcript_in_segment.embed.": "conditioner.embed.",
    f"{CONDITIONERS}transcript_in_segment.output_proj.": "conditioner.proj.",
    f"{CONDITIONERS}speaker_wavs.output_proj.weight": "speaker_proj_weight",
    f"{CONDITIONERS}num_speakers.": "num_speakers.",
    f"{CONDITIONERS}duration_delta.": "duration_delta.",
    LM: "",
}
"""How names in a checkpoint begin, and the same here."""
TRAINING = (f"{LM}flow.w_s_t.", ".learnt_padding")
"""Parts of names of tensors that only training uses."""
LATENTS = "speaker_wavs"


def language_model(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors of the language model, by their names here."""
    of_speech = {
        name: t
        for name, t in tensors.items()
        if not renamed(name, DECODER) and not any(part in name for part in TRAINING)
    }
    return named(of_speech, NAMES)


def read_tokenizer(file: Path, ids: int) -> Tokenizer:
    """Read tokenizer.json, without the tokens that only a prompt's own parts may have.
    CheckpointError for more than `ids` tokens, which the model has no embeddings for."""
    plain = {**read_json(file), "added_tokens": [], "post_processor": None}
    try:
        library = Library.from_str(json.dumps(plain))
    except Exception as e:  # the library raises bare exceptions
        raise CheckpointError(f"{file} is not a valid tokenizer: {e}") from e
    size = library.get_vocab_size()
    if size > ids:
        raise CheckpointError(f"{file} has {size} tokens, and the model {ids}")
    library.no_truncation()
    library.no_padding()
    return Tokenizer(lambda text: list(library.encode(text).ids), library.decode)


def read_voices(path: Path, width: int) -> VoiceFiles:
    """The voices of a checkpoint: files in `voices` and `embeddings`, and its default voice."""
    usual = path / f"{DEFAULT_VOICE}-voice.safetensors"
    files = {**voice_files(path / "embeddings"), **voice_files(path / "voices")}
    if usual.is_file():
        files[DEFAULT_VOICE] = usual
    return VoiceFiles(files, lambda file: read_voice(file, width))


def read_voice(file: Path, width: int) -> Voice:
    """A voice as latents [n, width] of the codec that encoded it. CheckpointError for another
    file."""
    tensors = read_safetensors(file)
    latents = tensors.get(LATENTS)
    if latents is None:
        names = ", ".join(tensors) or "none"
        raise CheckpointError(
            f"{file}: tensor {LATENTS} is missing, it has {names}. Voices for one checkpoint only,"
            " which hold `emb`, are not supported"
        )
    if latents.ndim == 3 and latents.shape[0] == 1:
        latents = latents[0]
    if latents.ndim != 2 or latents.shape[0] != width or not latents.shape[1]:
        raise CheckpointError(
            f"{file}: tensor {LATENTS} has shape {list(latents.shape)}, not [{width}, frames]"
        )
    return Voice(file.name, {"voice": latents.T.float().contiguous().numpy()})

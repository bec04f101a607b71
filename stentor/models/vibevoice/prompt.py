"""A script as a sequence: instructions, voices, lines of text (docs/models/vibevoice.md)."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from stentor.errors import InvalidRequest, too_long
from stentor.layers.rng import normal, uniform
from stentor.models.base import Prompt, Voice, VoiceSource
from stentor.models.info import ReferenceAudio, SpeechRequest
from stentor.models.vibevoice.codec import Decoder
from stentor.models.vibevoice.config import DialogueConfig
from stentor.models.vibevoice.spec import MAX_MODEL_LEN
from stentor.text.marks import TextMarks, has_words

SYSTEM = (
    " Transform the text provided by various speakers into speech output, utilizing the distinct"
    " voice of each respective speaker.\n"
)
SUSPECT_PER_TOKEN = 5
SUSPECT_MORE = 20
"""A result of so many latents for each token of the script, and more, has probably run on."""
SPREAD = 0.625
"""Standard deviation of the factor by which the latents of a recording are drawn."""
VOICE_SEED = 0
"""Seed of the noise by which latents of recordings are drawn."""
NOBODY = "no voice"
"""Names the voices of a prompt that has none."""
_LABEL = r"^[^\S\n]*(?i:speaker)[^\S\n]+\d{1,2}[^\S\n]*:[^\S\n]*"
MARKS = TextMarks(
    speaker=rf"(?m:{_LABEL})", unfinished=r"(?:^|\n)[^\S\n]*(?i:s[a-z]{0,6})[^\S\n]*\d{0,2}$"
)
"""Labels of a script's turns, such as `Speaker 1:`."""
_LINE = re.compile(_LABEL, re.MULTILINE)


@dataclass(frozen=True)
class Tokens:
    """Text to ids, and the ids of tokens that no text has."""

    encode: Callable[[str], list[int]]
    begin: int
    finish: int
    audio: int
    end: int

    @property
    def choices(self) -> tuple[int, ...]:
        """Tokens among which the next one is chosen. The first of them makes a latent."""
        return (self.audio, self.begin, self.finish, self.end)


def turns_of(text: str) -> list[tuple[int, str]]:
    """The turns of a script: the number of the speaker, from 0 on, and what is spoken.

    Words before the first label, or a text without labels, are a turn of the first speaker. If no
    speaker has the number 0, all numbers are lowered by 1, as in the original.
    """
    labels = list(_LINE.finditer(text))
    ends = [*(label.start() for label in labels[1:]), len(text)]
    turns = [
        (int(re.sub(r"\D", "", label[0])), text[label.end() : end].strip())
        for label, end in zip(labels, ends, strict=False)
    ]
    turns = [(speaker, words) for speaker, words in turns if words]
    least = min((speaker for speaker, _ in turns), default=0)
    turns = [(speaker - min(least, 1), words) for speaker, words in turns]
    opening = text[: labels[0].start()] if labels else text
    if opening.strip():
        first = turns[0][0] if turns else 0
        turns.insert(0, (first, opening.strip()))
    return turns


class DialoguePrompts:
    """Requests to prompts for one checkpoint. Host only, any thread."""

    def __init__(self, c: DialogueConfig, tokens: Tokens, decoder: Decoder) -> None:
        self.config = c
        self.tokens = tokens
        self.scale = float(decoder.scale)
        self.bias = float(decoder.bias)

    def references(self, request: SpeechRequest) -> list[VoiceSource]:
        """The recordings of the speakers, in their order."""
        return [VoiceSource(audio.recording, "reference") for audio in _recordings(request)]

    def build(self, request: SpeechRequest, voices: Sequence[Voice]) -> Prompt:
        """Raises InvalidRequest for what does not fit."""
        turns = turns_of(request.text)
        if not any(has_words(words) for _, words in turns):
            raise InvalidRequest("text", "has nothing that this model can speak")
        speakers = 1 + max(speaker for speaker, _ in turns)
        if len(voices) > speakers:
            raise InvalidRequest(
                "references", f"are {len(voices)}, and the script has {speakers} speakers"
            )
        latents = [self._latents(voice) for voice in voices]
        ids = self.script([len(part) for part in latents], turns)
        is_voice = np.array(ids) == self.tokens.audio
        rows = np.zeros((len(ids), self.config.head.latent), np.float32)
        if latents:
            rows[is_voice] = np.concatenate(latents)
        return self._prompt(request, ids, rows, [voice.id for voice in voices], turns)

    def script(self, lengths: Sequence[int], turns: Sequence[tuple[int, str]]) -> list[int]:
        """Ids of a prompt whose voices have `lengths` latents. Each line begins with a space."""
        t = self.tokens
        ids = t.encode(SYSTEM)
        if lengths:
            ids += t.encode(" Voice input:\n")
        for speaker, length in enumerate(lengths):
            ids += [*t.encode(f" Speaker {speaker}:"), t.begin, *[t.audio] * length, t.finish]
            ids += t.encode("\n")
        ids += t.encode(" Text input:\n")
        for speaker, words in turns:
            ids += t.encode(f" Speaker {speaker}: {words}\n")
        return [*ids, *t.encode(" Speech output:\n"), t.begin]

    def _prompt(
        self,
        request: SpeechRequest,
        ids: list[int],
        latents: np.ndarray,
        names: list[str],
        turns: Sequence[tuple[int, str]],
    ) -> Prompt:
        options = request.options
        positions = min(self.config.positions, MAX_MODEL_LEN)
        free = positions - len(ids)
        if free < 1:
            raise too_long(len(ids), positions - 1, request.text)
        spoken = sum(len(self.tokens.encode(words)) for _, words in turns)
        suspect = spoken * SUSPECT_PER_TOKEN + SUSPECT_MORE
        if options["ignore_eos"]:
            limit = options["max_frames"]
        else:
            limit = min(options["max_frames"], 2 * suspect)
        max_frames = min(limit, free)
        return Prompt(
            rows={"token": np.array(ids, np.int64), "latent": latents},
            # where the sequence without text begins
            frames=np.zeros((1, 1), np.float32),
            frame_at=np.array([len(ids) - 1]),
            columns={
                "cfg": options["cfg"],
                "flow_steps": options["flow_steps"],
                "noise_scale": options["temperature"],
            },
            max_frames=max_frames,
            min_frames=max_frames if options["ignore_eos"] else options["min_frames"],
            codec_prefix=np.zeros(
                (0, self.config.head.latent + self.config.semantic.latent), np.float32
            ),
            voice=" ".join(names) or NOBODY,
            num_evals=options["flow_steps"],
            runaway_frames=None if options["ignore_eos"] else suspect,
        )

    def _latents(self, voice: Voice) -> np.ndarray:
        """Normalised latents [T, latent] of a recording, drawn once."""
        drawn: np.ndarray = voice.once("latents", lambda: self._draw(voice.features["mean"]))
        return drawn

    def _draw(self, mean: np.ndarray) -> np.ndarray:
        spread, noise = self.sample_noise(mean.shape)
        drawn = (mean + SPREAD * spread * noise + self.bias) * self.scale
        return drawn.astype(np.float32)

    def sample_noise(self, shape: tuple[int, ...]) -> tuple[float, np.ndarray]:
        """Return the standard normals by which the latents of a recording are drawn: one for all of
        it, and one for each number. They are the same for every recording and request, so that all
        pieces of a text have one voice, and share pages."""
        count = 1 + int(np.prod(shape))
        seed = torch.tensor([VOICE_SEED])
        drawn = normal(uniform(seed, torch.zeros(1, dtype=torch.int64), count + count % 2))
        numbers = drawn[0].numpy()
        return float(numbers[0]), numbers[1:count].reshape(shape)


def _recordings(request: SpeechRequest) -> tuple[ReferenceAudio, ...]:
    if request.reference is None:
        return ()
    return (request.reference, *request.more_references)

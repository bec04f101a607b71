"""A request as a sequence of dots.tts (docs/models/dots_tts.md)."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch

from stentor.errors import InvalidRequest, too_long
from stentor.layers.rng import normal, uniform
from stentor.models.base import LiveText, Prompt, Voice, VoiceSource, reference_of
from stentor.models.dots_tts.config import DotsConfig
from stentor.models.dots_tts.live_text import FEED, Arrivals
from stentor.models.dots_tts.reference import as_heard
from stentor.models.dots_tts.tokenizer import GEN_START, TEXT_END
from stentor.models.info import SpeechRequest
from stentor.text.marks import TextMarks, has_words

SPOKEN = "[文本]"
INSTRUCTED = "[带指令文本]"
INTERLEAVED = "[流式语音合成]"
AUDIO = "[文本对应语音]"
MAX_PATCHES = 500
"""Patches of one request, those of a recording with its text among them."""
SUSPECT_PER_TOKEN = 6
SUSPECT_MORE = 12
"""An utterance of so many patches for each token, and more, has probably run on."""
VOICE_SEED = 0
"""Seed of the noise by which latents of recordings are drawn."""
LANGUAGES = {
    "arabic": "AR",
    "cantonese": "口音:粤语",
    "chinese": "ZH",
    "czech": "CS",
    "dutch": "NL",
    "english": "EN",
    "finnish": "FI",
    "french": "FR",
    "german": "DE",
    "greek": "EL",
    "hindi": "HI",
    "indonesian": "ID",
    "italian": "IT",
    "japanese": "JA",
    "korean": "KO",
    "polish": "PL",
    "portuguese": "PT",
    "romanian": "RO",
    "russian": "RU",
    "spanish": "ES",
    "thai": "TH",
    "turkish": "TR",
    "ukrainian": "UK",
    "vietnamese": "VI",
}
"""Tags before a text of each language, in brackets."""


_TAGS = "|".join(tag for tag in LANGUAGES.values() if tag.isascii())
MARKS = TextMarks(
    lead=rf"\s*\[(?:{_TAGS}|口音[:\uff1a][^\[\]\n]{{1,20}})\]\s*",
    lead_begun=r"\s*(?:\[(?:[A-Z]{0,2}|口(?:音(?:[:\uff1a][^\[\]\n]{0,20})?)?))?",
    lead_continues=True,
)
"""The tag of a language or an accent in front of a text."""
_LEAD = re.compile(MARKS.lead)


class PromptPrefix(NamedTuple):
    """A recording: its scaled speaker vector [n], or zeros, and normalised latents [G, patch, D] of
    the reference's patches. all: patches that it takes of the budget. id: of all this."""

    id: str
    speaker: np.ndarray
    patches: np.ndarray
    raw: np.ndarray
    all: int


class PromptBuilder:
    """Requests to prompts for one checkpoint. Host only, any thread."""

    def __init__(
        self,
        c: DotsConfig,
        encode: Callable[[str], list[int]],
        special: Mapping[str, int],
        stats: tuple[np.ndarray, np.ndarray],
    ) -> None:
        """stats: mean and standard deviation [D] of latents."""
        self.config = c
        self.encode = encode
        self.special = special
        self.mean, self.std = stats

    def references(self, request: SpeechRequest) -> list[VoiceSource]:
        """The recording that is cloned or continued, if there is one."""
        return reference_of(
            request, partial(as_heard, rate=self.config.vocoder.sample_rate, patch=self.config.hop)
        )

    def build(self, request: SpeechRequest, voices: Sequence[Voice]) -> Prompt:
        """Raises InvalidRequest for what does not fit."""
        if request.live:
            return self._live(request, voices)
        text = request.text.strip()
        if not has_words(text):
            raise InvalidRequest("text", "has nothing that this model can speak")
        prefix = self._given(request, voices)
        full_text = self._spoken(request, text)
        ids = self.encode(INSTRUCTED if request.instructions else SPOKEN) + self.encode(full_text)
        ids += [*self.encode(AUDIO), self.special[GEN_START]]
        return self._prompt(request, ids, prefix, len(self.encode(text)))

    def _live(self, request: SpeechRequest, voices: Sequence[Voice]) -> Prompt:
        """A prompt whose text arrives."""
        c = self.config
        quotas = self.config.quotas
        options = request.options
        assert quotas is not None
        if request.instructions or (
            request.reference is not None and request.reference.text is not None
        ):
            message = "text that arrives is spoken with no instructions, and with a reference without its text"
            raise InvalidRequest("live", message)
        arrivals = Arrivals(self.encode, quotas, self.special[TEXT_END])
        if request.language == "auto":
            tag = ""
        else:
            tag = f"[{LANGUAGES[request.language]}]"
        first = arrivals.first(tag + request.text.lstrip())
        ids = self.encode(INTERLEAVED) + first
        prompt = self._prompt(request, ids, self._given(request, voices), 1)
        prompt.columns |= {
            "feed": arrivals("", False),
            "opening": int(bool(first)),
            "silent": options["silent_frames"],
            "most": options["max_frames"],
        }
        prompt.max_frames = min(FEED, c.positions - len(ids))
        prompt.runaway_frames = None
        prompt.live = LiveText("feed", arrivals)
        return prompt

    def _spoken(self, request: SpeechRequest, text: str) -> str:
        """Transcript and text as one string, with one tag in front: the text's own, or that of the
        language."""
        tag = ""
        if request.language != "auto":
            tag = f"[{LANGUAGES[request.language]}]"
        lead = _LEAD.match(text)
        if lead is not None:
            tag = lead[0]
            text = text[lead.end() :]
        if request.instructions:
            text = f"[{request.instructions.strip()}]{text}"

        if request.reference is None or request.reference.text is None:
            return tag + text
        transcript = request.reference.text.strip()
        if _LEAD.match(transcript):
            tag = ""
        return f"{tag}{transcript}\n{text}"

    def _prompt(
        self, request: SpeechRequest, ids: list[int], prefix: PromptPrefix, tokens: int
    ) -> Prompt:
        c = self.config
        options = request.options
        count = len(prefix.patches)
        length = len(ids) + count
        unheard = int(count > 0)
        free = min(MAX_PATCHES - prefix.all + unheard, c.positions - length)
        if free <= unheard:
            raise too_long(length, c.positions - 1, request.text, count)
        suspect = tokens * SUSPECT_PER_TOKEN + SUSPECT_MORE
        # The patch behind the recording is made and not heard.
        if options["ignore_eos"]:
            cap = options["max_frames"]
        else:
            cap = min(options["max_frames"], 2 * suspect)
        max_frames = min(cap + unheard, free)
        if count:
            at = np.arange(len(ids) - 1, length)
        else:
            at = np.zeros(0, np.int64)
        columns: dict[str, Any] = {
            "given": count,
            "speaker": prefix.speaker,
            "cfg": options.get("cfg", 0.0),
            "noise_scale": options["temperature"],
            "eos_threshold": options["eos_threshold"],
        }
        if count:
            columns["tail"] = prefix.raw[-1, -1]
        return Prompt(
            rows={
                "token": np.array(ids + [0] * count, np.int64),
                "patch": np.concatenate([np.zeros(len(ids) - 1, np.int64), np.arange(count + 1)]),
            },
            frames=self._entries(prefix)
            if count
            else np.zeros((0, 2 * c.patch, c.latent), np.float32),
            frame_at=at,
            columns=columns,
            max_frames=max_frames,
            min_frames=max_frames if options["ignore_eos"] else options["min_frames"],
            codec_prefix=np.zeros((0, c.patch, c.latent), np.float32),
            voice=prefix.id,
            num_evals=c.solver.evaluations,
            runaway_frames=None if options["ignore_eos"] else suspect + unheard,
        )

    def _entries(self, prefix: PromptPrefix) -> np.ndarray:
        """Frames for the positions from the last text token on [G + 1, 2 patch, D]: latents of its
        patch as the semantic encoder takes them, behind the last one before them, and the
        normalised ones of the patch that its hidden state makes. The first position has no patch,
        and the last generates a new one."""
        p = self.config.patch
        d = self.config.latent
        raw = prefix.raw.reshape(-1, d)
        shifted = np.concatenate([np.zeros((1, d), np.float32), raw[:-1]]).reshape(-1, p, d)
        none = np.zeros((1, p, d), np.float32)
        return np.concatenate(
            [np.concatenate([none, shifted]), np.concatenate([prefix.patches, none])], axis=1
        )

    def _given(self, request: SpeechRequest, voices: Sequence[Voice]) -> PromptPrefix:
        c = self.config
        none = np.zeros((0, c.patch, c.latent), np.float32)
        if request.reference is None:
            return PromptPrefix("", np.zeros(c.speaker, np.float32), none, none, 0)
        voice = voices[0]
        scale = request.options["speaker_scale"]
        id = f"{voice.id} {scale}"
        speaker = (voice.features["speaker"] * scale).astype(np.float32)
        if request.reference.text is None:
            return PromptPrefix(id, speaker, none, none, 0)
        raw = voice.once("raw", lambda: self._latents(voice))
        patches = raw[:-1]
        return PromptPrefix(
            id, speaker, ((patches - self.mean) / self.std).astype(np.float32), patches, len(raw)
        )

    def _latents(self, voice: Voice) -> np.ndarray:
        """Latents [G, patch, D] of a recording, drawn once."""
        mean = voice.features["mean"]
        c = self.config
        raw: np.ndarray = mean + self.sample_noise(mean.shape) * np.exp(voice.features["spread"])
        return raw.astype(np.float32).reshape(-1, c.patch, c.latent)

    def sample_noise(self, shape: tuple[int, ...]) -> np.ndarray:
        """Return the standard normals by which a voice's latents are drawn, the same for every
        recording.

        Seeded by the recording's hash, a piece of a text that continues the one before would turn a
        difference in rounding into other noise.
        """
        seed = torch.tensor([VOICE_SEED])
        count = int(np.prod(shape))
        return (
            normal(uniform(seed, torch.zeros(1, dtype=torch.int64), count + count % 2))[0, :count]
            .numpy()
            .reshape(shape)
        )

"""From a request to its prompt, for every mode (docs/models/cosyvoice3.md). Plain data."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from stentor.errors import InvalidRequest, too_long
from stentor.models.base import LiveText, Prompt, Voice, VoiceSource, reference_of
from stentor.models.cosyvoice3.config import CODE_RATE, MIX, LanguageConfig
from stentor.models.cosyvoice3.live_text import Arrivals, Mixing
from stentor.models.cosyvoice3.tokenizer import END_OF_PROMPT, SYSTEM, Tokens
from stentor.models.cosyvoice3.voice import StoredVoice
from stentor.models.info import SpeechRequest
from stentor.text.punctuation import CLOSERS

_CHINESE = re.compile("[\u4e00-\u9fff]")
_REPLACED = (("²", "平方"), ("³", "立方"), (" - ", "\uff0c"), ("——", " "))
_DROPPED = re.compile("[\uff08\uff09【】`\n]")
_STOP = re.compile(
    r"(?<!\d)\.|\.(?!\d)"
)  # the original has spelled decimals before, by another package
_SPACE = re.compile(r"(?<![!-~]) | (?![!-~])")
_OPEN_END = re.compile("[\uff0c,、]+$")
_STOPS = "。\uff1f\uff01\uff1b\uff1a、.?!;:…"
_ENDED = re.compile(rf"[{_STOPS}][{re.escape(CLOSERS)}*>]*$")


def normalized(text: str) -> str:
    """Chinese text without brackets, and with Chinese stops. Text that has a `<|mark|>` stays as it
    is."""
    if ("<|" in text and "|>" in text) or not _CHINESE.search(text):
        return text
    text = _SPACE.sub("", text.strip().replace("\n", ""))
    text = _STOP.sub("。", text)
    for written, meant in _REPLACED:
        text = text.replace(written, meant)
    return _OPEN_END.sub("。", _DROPPED.sub("", text))


MAX_PER_TOKEN = 20  # codes per token of text: more have run on. The original ends there too
LEAST_PER_TOKEN = 2  # the original does not draw the code `start` before so many


def ended(text: str) -> str:
    """Text with a stop at its end if it has none, as the original's front end appends it to every
    piece."""
    body = text.rstrip()
    if "<|" in text or not body or _ENDED.search(body):
        return text
    return body + ("。" if _CHINESE.search(text) else ".")


@dataclass(frozen=True)
class Layout:
    """Text before the one to speak, the text to speak, and whether the language model sees the
    voice's codes."""

    before: str
    text: str
    sees_codes: bool


def layout(text: str, instructions: str | None, transcript: str | None) -> Layout:
    """The texts of a request. A part that has `<|endofprompt|>` itself is taken as it is. A system
    part in front of the text stands before the transcript."""
    system = SYSTEM + END_OF_PROMPT
    if instructions:
        is_complete = END_OF_PROMPT in instructions
        return Layout(
            instructions if is_complete else f"{SYSTEM} {instructions}{END_OF_PROMPT}", text, False
        )
    if not transcript:
        return Layout("", text if END_OF_PROMPT in text else system + text, False)

    if END_OF_PROMPT in transcript:
        return Layout(transcript, text, True)
    lead, mark, words = text.rpartition(END_OF_PROMPT)
    if mark:
        return Layout(lead + mark + transcript, words, True)
    return Layout(system + transcript, text, True)


@dataclass(frozen=True)
class Room:
    """Positions of a sequence, frames of an utterance, and codes of a voice, at most."""

    positions: int
    frames: int
    voice: int


class PromptBuilder:
    """Requests to prompts for one checkpoint. Host only, any thread."""

    def __init__(
        self, c: LanguageConfig, tokens: Tokens, voices: Mapping[str, StoredVoice], room: Room
    ) -> None:
        self._c = c
        self._tokens = tokens
        self._voices = voices
        self._room = room

    def references(self, request: SpeechRequest) -> list[VoiceSource]:
        """The recording whose voice speaks, if there is one."""
        return reference_of(request)

    def build(self, request: SpeechRequest, voices: Sequence[Voice]) -> Prompt:
        """Raises InvalidRequest for what this checkpoint cannot do."""
        voice = self._voice(request, voices)
        if len(voice.codes) > self._room.voice:
            seconds = len(voice.codes) / CODE_RATE
            limit = self._room.voice / CODE_RATE
            raise InvalidRequest("reference", f"has {seconds:g} seconds, and at most {limit:g} fit")
        if voice.text and voice.text.strip() and len(voice.codes):
            transcript = voice.text
        else:
            transcript = None
        parts = layout(request.text, request.instructions, transcript)
        if request.live:
            return self._live(request, parts, voice)
        # as the original, which sees the mark in it
        if parts.before:
            spoken = ended(normalized(parts.text))
        else:
            spoken = parts.text
        before = self._tokens.encode(parts.before)
        text = self._tokens.encode(spoken)
        if not text:
            raise InvalidRequest("text", "must not be empty")
        if parts.sees_codes:
            codes = voice.codes
        else:
            codes = voice.codes[:0]
        rows = [self._start, *before, *text, self._task, *(self._c.text_vocab + codes)]
        free = self._room.positions - len(rows)
        if free < LEAST_PER_TOKEN * len(text):
            most_rows = self._room.positions - LEAST_PER_TOKEN * len(text)
            raise too_long(len(rows), most_rows, request.text, len(codes))
        o = request.options
        max_frames = MAX_PER_TOKEN * len(text)
        prompt = self._assemble(
            request, rows, min(o["max_frames"] or max_frames, free, self._room.frames), voice
        )
        prompt.columns["start_from"] = LEAST_PER_TOKEN * len(text)
        fixed = o["ignore_eos"] or o["temperature"] == 0  # another try would end no sooner
        if fixed:
            prompt.runaway_frames = None
        else:
            prompt.runaway_frames = max_frames
        return prompt

    def _live(self, request: SpeechRequest, parts: Layout, voice: StoredVoice) -> Prompt:
        """A prompt whose text goes on (live_text.py). Steps take all of it, so none depends on when
        it comes."""
        if not parts.sees_codes:
            raise InvalidRequest(
                "live",
                "a voice whose words are known speaks text that goes on, without instructions",
            )
        before = self._tokens.encode(parts.before)
        system = before.index(self._tokens.end_of_prompt) + 1
        codes = [self._c.text_vocab + int(code) for code in voice.codes]
        mixing = Mixing(before[system:], codes)
        rows = [self._start, *before[:system], *mixing.before()]
        arrivals = Arrivals(self._tokens.encode, mixing, self._task)
        free = self._room.positions - len(rows)
        if free < 1:
            raise too_long(len(rows), self._room.positions - 1, request.text, len(codes))
        prompt = self._assemble(
            request,
            rows,
            min(request.options["max_frames"] or free, free, self._room.frames),
            voice,
        )
        prompt.columns |= {
            "asks": 1,
            "next_fill": (len(codes) // MIX[1] + 1) * MIX[1] - len(codes),
            "feed": arrivals(parts.text, False),
        }
        prompt.live = LiveText("feed", arrivals, emitted_is_free=True)
        return prompt

    def _voice(self, request: SpeechRequest, voices: Sequence[Voice]) -> StoredVoice:
        if request.speaker_embedding is not None:
            return StoredVoice.of_speaker(request.speaker_embedding)
        if request.reference is not None:
            return StoredVoice.of(voices[0], request.reference.text)
        if not self._voices:
            message = "this model speaks with the voice of a reference: give one, or a speaker_embedding, or store a voice"
            raise InvalidRequest("reference", message)
        return self._voices[request.voice or next(iter(self._voices))]

    @property
    def _start(self) -> int:
        return self._c.text_vocab + self._c.start

    @property
    def _task(self) -> int:
        return self._c.text_vocab + self._c.task

    @staticmethod
    def _assemble(
        request: SpeechRequest, rows: list[int], max_frames: int, voice: StoredVoice
    ) -> Prompt:
        o = request.options
        return Prompt(
            rows={"token": np.array(rows, np.int64)},
            frames=np.zeros((0, 1), np.int64),
            frame_at=np.zeros(0, np.int64),
            columns={name: o[name] for name in ("temperature", "top_k", "top_p")},
            max_frames=max_frames,
            min_frames=max_frames if o["ignore_eos"] else min(o["min_frames"], max_frames),
            codec_prefix=voice.codes[:, None],
            voice=voice.id,
            codec_conditions={
                "prompt_codes": voice.codes,
                "prompt_count": np.array(len(voice.codes)),
                "prompt_mel": voice.mel,
                "speaker": voice.speaker,
            },
        )

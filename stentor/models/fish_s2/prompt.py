"""From a request to its prompt: chat turns whose speech is codes (docs/models/fish_s2.md).
Plain data."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from stentor.audio import digest
from stentor.errors import InvalidRequest, too_long
from stentor.models.base import Prompt, Voice, VoiceSource
from stentor.models.fish_s2.tokenizer import Tokens
from stentor.models.info import ReferenceAudio, SpeechRequest

SPEAKER = re.compile(r"<\|speaker:\d+\|>")
TAG = re.compile(r"\[[^\[\]]*\]")
PHONEMES = re.compile(r"<\|phoneme_start\|>[^<\n]{0,200}<\|phoneme_end\|>")
UNFINISHED = (  # the beginning of any, where more text may follow
    r"<(\|[\w:]{0,20}\|?)?$|\[[^\[\]]{0,80}$|<\|phoneme_start\|>[^<\n]{0,200}(<[\w|]{0,14})?$"
)
TURNS_PER_BATCH = 5
# of text spoken at a time when it has speaker turns, as in the reference's server
CHUNK_BYTES = 200
RESERVED = 2048  # positions that a prompt must leave free, as in the reference
FRAMES = 1024  # default of max_frames for short texts, as in the reference's server
RUN_ON = 128  # frames, besides those below, after which speech has probably run on
FRAMES_PER_BYTE = 6  # of UTF-8 text. Slow speech takes about 2.5
SYSTEM = "convert the provided text to speech"
SYSTEM_CLONE = "convert the provided text to speech reference to the following:\n\nText:\n"


@dataclass(frozen=True)
class SpokenTurn:
    """A text and its speech as codes [T, books]: a reference, or a turn that has already been
    spoken.

    id: names the codes.
    """

    text: str
    codes: np.ndarray
    id: str


class Speakers(NamedTuple):
    """References, and the ids before their speech."""

    opening: Sequence[int]
    spoken: Sequence[SpokenTurn]


@dataclass(frozen=True)
class TokenizedPrompt:
    """Token ids [T], and the frames [M, books] that stand at positions `frame_at` [M]."""

    token: np.ndarray
    frames: np.ndarray
    frame_at: np.ndarray


def turns(text: str) -> list[str]:
    """`text` split before each `<|speaker:N|>`. Words before the first one are a turn without a
    tag.

    White space around turns separates them and is dropped. Text without such a tag is one turn, as
    it is.
    """
    starts = [m.start() for m in SPEAKER.finditer(text)]
    if not starts:
        return [text]
    if spoken_words(text[: starts[0]]):
        first = [text[: starts[0]].strip()]
    else:
        first = []
    return first + [
        text[a:b].strip() for a, b in zip(starts, [*starts[1:], len(text)], strict=True)
    ]


def batches(text: str, chunk_bytes: int) -> list[str]:
    """Split a dialogue into what is spoken at a time: up to five turns and `chunk_bytes` UTF-8
    bytes. A longer turn stands alone."""
    packed: list[list[str]] = []
    size = 0
    for turn in turns(text):
        length = len(turn.encode())
        if not packed or len(packed[-1]) == TURNS_PER_BATCH or size + length > chunk_bytes:
            packed.append([])
            size = 0
        packed[-1].append(turn)
        size += length
    return ["\n".join(batch) for batch in packed]


def spoken_words(text: str) -> str:
    """`text` without speaker tags and bracketed tags."""
    return TAG.sub(" ", SPEAKER.sub(" ", text)).strip()


def tokenize_turns(
    tokens: Tokens, books: int, text: str, speakers: Speakers, history: Iterable[SpokenTurn]
) -> TokenizedPrompt:
    """The prompt after which the model speaks `text`, in the voices of `speakers`, going on from
    `history`.

    Each part is tokenised by itself, so that no merge crosses a border.
    """
    w = _Writer(tokens, books).add(speakers.opening)
    for reference in speakers.spoken:
        w.speech(reference.codes)
    w.add(tokens.end)
    for turn in history:
        w.user(turn.text).speech(turn.codes).add(tokens.end)
    return w.user(text).done()


def opening(tokens: Tokens, transcripts: str) -> list[int]:
    """The system's turn, up to the references' speech where there are transcripts."""
    parts = (SYSTEM_CLONE, transcripts, "\n\nSpeech:\n") if transcripts else (SYSTEM,)
    return [tokens.im_start, *(id for part in ("system\n", *parts) for id in tokens.encode(part))]


def tagged(transcripts: Iterable[str]) -> str:
    """The references' transcripts, one a line, each with a speaker tag: its own or its number."""
    return "\n".join(
        t if SPEAKER.search(t) else f"<|speaker:{i}|>{t}" for i, t in enumerate(transcripts)
    )


def _given(request: SpeechRequest) -> tuple[ReferenceAudio, ...]:
    if request.reference is None:
        return ()
    return (request.reference, *request.more_references)


class _Writer:
    """Token ids and frames in the order of writing."""

    def __init__(self, tokens: Tokens, books: int) -> None:
        self._tokens = tokens
        self._ids: list[int] = []
        self._at: list[int] = []
        self._frames = [np.zeros((0, books), np.int64)]

    def add(self, ids: Sequence[int]) -> _Writer:
        self._ids += ids
        return self

    def speech(self, codes: np.ndarray) -> _Writer:
        self._at += range(len(self._ids), len(self._ids) + len(codes))
        # as Python's integers, at once
        self._ids += (self._tokens.semantic + codes[:, 0].astype(np.int64)).data
        self._frames.append(codes)
        return self

    def user(self, text: str) -> _Writer:
        """A whole user turn and the opening of the answer."""
        t = self._tokens
        return self.add(t.user).add(t.encode(text)).add(t.answer)

    def done(self) -> TokenizedPrompt:
        frames = np.concatenate(self._frames).astype(np.int64, copy=False)
        return TokenizedPrompt(np.array(self._ids, np.int64), frames, np.array(self._at, np.int64))


class PromptBuilder:
    """Requests to prompts for one checkpoint. Host only, any thread."""

    def __init__(self, tokens: Tokens, books: int, max_model_len: int) -> None:
        self.tokens = tokens
        self._books = books
        self._max_model_len = max_model_len
        self.nobody = Speakers(opening(tokens, ""), ())

    def references(self, request: SpeechRequest) -> list[VoiceSource]:
        """The recordings of the speakers. InvalidRequest for one without its text."""
        recordings = _given(request)
        if not all((audio.text or "").strip() for audio in recordings):
            raise InvalidRequest(
                "reference", "needs its text: this model clones from audio and transcript"
            )
        return [VoiceSource(audio.recording, "reference") for audio in recordings]

    def build(self, request: SpeechRequest, voices: Sequence[Voice]) -> Prompt:
        """Raises InvalidRequest for what this model cannot speak."""
        texts = batches(request.text, CHUNK_BYTES)
        if not spoken_words("".join(texts)):
            raise InvalidRequest(
                "text", "has nothing to speak: besides [tags] and speaker tags it must have words"
            )
        return self._batch(texts, self._speakers(request, voices), (), request.options)

    def _speakers(self, request: SpeechRequest, voices: Sequence[Voice]) -> Speakers:
        if not voices:
            return self.nobody
        transcripts = [audio.text or "" for audio in _given(request)]
        text = tagged(transcripts)
        spoken = [
            SpokenTurn(t, v.features["codes"], v.id)
            for t, v in zip(transcripts, voices, strict=True)
        ]
        return Speakers(voices[0].once(text, lambda: opening(self.tokens, text)), spoken)

    def _batch(
        self,
        texts: Sequence[str],
        speakers: Speakers,
        history: Sequence[SpokenTurn],
        o: Mapping[str, Any],
    ) -> Prompt:
        """The prompt of the first of `texts`. The others follow, each after what has been
        spoken."""
        prompt = self.assemble(texts[0], speakers, history, o)

        def next_batch(spoken: np.ndarray) -> Prompt | None:
            if o["max_frames"] is None:
                remaining = None
            else:
                remaining = o["max_frames"] - len(spoken)
            if remaining == 0:
                return None
            spoken_turns = [*history, SpokenTurn(texts[0], spoken, digest(spoken))]
            following = self._batch(
                texts[1:], speakers, spoken_turns, {**o, "max_frames": remaining}
            )
            following.repeats = prompt.length + len(spoken)
            return following

        if len(texts) > 1:
            prompt.continuation = next_batch
        return prompt

    def assemble(
        self, text: str, speakers: Speakers, history: Sequence[SpokenTurn], o: Mapping[str, Any]
    ) -> Prompt:
        """A prompt for `text` in the voices of `speakers`, after the turns of `history`. `o` are
        option values."""
        p = tokenize_turns(self.tokens, self._books, text, speakers, history)
        free = self._max_model_len - len(p.token)
        if free < RESERVED:
            raise too_long(len(p.token), self._max_model_len - RESERVED, text, len(p.frames))
        guess = max(FRAMES, FRAMES_PER_BYTE * len(text.encode()))
        max_frames = min(o["max_frames"] or guess, free)
        fixed = o["ignore_eos"] or o["temperature"] == 0  # another try would end no sooner
        return Prompt(
            rows={"token": p.token},
            frames=p.frames,
            frame_at=p.frame_at,
            columns={name: o[name] for name in ("temperature", "top_k", "top_p")},
            max_frames=max_frames,
            min_frames=max_frames if o["ignore_eos"] else min(o["min_frames"], max_frames),
            codec_prefix=p.frames[:0],
            voice=" ".join(turn.id for turn in (*speakers.spoken, *history)),
            runaway_frames=None if fixed else RUN_ON + FRAMES_PER_BYTE * len(text.encode()),
        )

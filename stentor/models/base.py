"""Interface of a model family: pure tensor functions over rows, and a table of facts about itself.

The engine owns every buffer, stream and decision. A family owns none of them. All families are one
machine:

    row state -> embed(last frame) -> causal backbone over paged KV -> emit(hidden) -> (frame, stop)

A step makes one frame and has fixed shapes, so the same functions run eagerly on a CPU and inside a
CUDA graph.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias, TypeVar

import numpy as np

from stentor.audio import Recording
from stentor.layers.types import CodecCall, Column, DType, Launch, State, eager
from stentor.models.codec_timing import CAUSAL, CodecTiming
from stentor.models.info import ModelInfo, SpeechRequest
from stentor.text.front_end import Check
from stentor.text.marks import has_words

if TYPE_CHECKING:
    from torch import Tensor

    from stentor.kernels.types import RowRef
    from stentor.layers.attention import Attend
    from stentor.layers.qk_norm_rope import NormRope
    from stentor.models.info import Adapter
    from stentor.models.lora import AdapterSlots

T = TypeVar("T")

Hidden: TypeAlias = "tuple[Tensor, ...]"
"""State that a family's functions hand to each other: tensors with the same leading dimension N.
The engine does not look inside."""


@dataclass(frozen=True)
class KVSpec:
    """Key-value heads of one layer. Every layer of the family has this shape, and all share one
    page table."""

    layers: int
    heads: int
    dim: int
    dtype: DType = "float32"


@dataclass(frozen=True, kw_only=True)
class FrameKVSpec(KVSpec):
    """Keys and values of a further attention, which counts frames instead of positions: `rows` of
    them per frame."""

    rows: int


@dataclass(frozen=True, kw_only=True)
class ModelSpec(ModelInfo):
    """Facts about a family that the engine needs, beside those that callers see. Nothing here
    changes after load."""

    frame: Column  # one frame: patch of latents or codes
    kv: KVSpec
    max_model_len: int  # positions a sequence may take: prompt + generated
    draws: int  # uniforms that emit uses per frame
    hidden: tuple[Column, ...]  # what the backbone gives for each token
    columns: Mapping[str, Column]  # the family's own per-row state
    prompt_rows: Mapping[str, Column]  # arrays a prompt carries per position
    stop_keeps_frame: (
        bool  # whether the frame that stops is audio (False: a marker, which is dropped)
    )
    reference_rate: int  # Hz that encode() wants
    voice_frames: bool = False  # prompts hold frames of a named voice
    frame_kv: Mapping[str, FrameKVSpec] = field(
        default_factory=dict
    )  # page sets by frame, beside `kv`
    given_frame: Column | None = (
        None  # one given frame of a prompt. None: it is as those that are generated
    )
    codec_silent: int = 25  # frames that one call with `CodecCall.silent` takes at most
    codec_prefix: int = 0  # frames of a prompt's codec prefix at most. 0: no prompt has one
    codec_skip: int = (
        0  # first samples of an utterance that the codec makes and nobody hears: less than a frame
    )
    codec_timing: CodecTiming = CAUSAL
    hides_frames: bool = False  # emit returns of each frame whether it has audio
    num_evals: int = (
        0  # loop length that emit needs for a request with default options (see Prompt.num_evals)
    )
    captured_evals: tuple[
        int, ...
    ] = ()  # other loop lengths that are captured. Rows take the next that is enough
    batch_invariant: bool = (
        False  # kernels.batch_invariant reaches all sums of a step, and see CodecTiming
    )
    threads: int | None = (
        None  # torch threads on a CPU, where more are no faster. None: torch's own number
    )

    @property
    def info(self) -> ModelInfo:
        """The facts that callers see."""
        return ModelInfo(**{f.name: getattr(self, f.name) for f in fields(ModelInfo)})

    @property
    def prompt_frame(self) -> Column:
        """One frame of a prompt."""
        return self.given_frame or self.frame

    @property
    def gives_frames(self) -> bool:
        """Whether a prompt may hold frames: of references, or of a named voice."""
        return self.takes_reference or self.voice_frames


@dataclass(frozen=True)
class LiveText:
    """Text that arrives while a request runs. It extends `column`. Frame n needs value n - 1 of
    that column.

    more(text, last) returns the next values [m] of the column. It raises InvalidRequest if they do
    not fit. One thread calls it at a time. The values do not depend on how the text is split.

    emitted_is_free: frame n needs one value for each hidden frame before it.
    """

    column: str
    more: Callable[[str, bool], np.ndarray]
    emitted_is_free: bool = False


@dataclass(frozen=True, eq=False)
class VoiceSource:
    """A recording that becomes a voice, and its role, such as `reference` or `prompt`.

    prepare: prepares it for `encode`, beside requests and once per recording and role.
    """

    recording: Recording
    role: str
    prepare: Callable[[Recording], Recording] = lambda recording: recording


@dataclass(eq=False)
class Voice:
    """A recording in one role, encoded once for all requests that bring it, or a voice that comes
    with a checkpoint.

    id: names its content. features: what `encode` gave, on the host. Nobody changes them.
    """

    id: str
    features: Mapping[str, np.ndarray]
    _made: tuple[str | None, Any] = (None, None)

    def once(self, key: str, make: Callable[[], T]) -> T:
        """Return what `make` made for this key, such as ids of a transcript. It is cached until
        another is needed."""
        stored = self._made
        if stored[0] != key:
            self._made = stored = key, make()
        value: T = stored[1]
        return value


def reference_of(
    request: SpeechRequest, prepare: Callable[[Recording], Recording] = lambda recording: recording
) -> list[VoiceSource]:
    """The first reference of a request, where it has one, in the role `reference`."""
    if request.reference is None:
        return []
    return [VoiceSource(request.reference.recording, "reference", prepare)]


@dataclass
class Prompt:
    """A request as arrays, ready for a slot. It has T positions, of which M carry a frame of
    reference audio.

    `rows[name]` is [T, *spec.prompt_rows[name].shape]. `frames` [M, *frame of a prompt] stand at
    positions `frame_at` [M]. `columns` are initial values of engine and family columns: scalars, or
    arrays no longer than the column, whose rest keeps the column's fill. `codec_conditions` are
    such values of the codec's columns. Then `codec_prefix` [m, *frame] is decoded, and its audio
    discarded. The engine puts the codec's state before frame 0 into `codec_state`, on the host.

    `voice` names the content of `frames`, of `given_kv`, of the columns that `embed_prompt` reads,
    and of the codec's conditions and prefix. Prompts with the same one share pages and the codec's
    state. It is made of ids of voices.
    """

    rows: dict[str, np.ndarray]
    frames: np.ndarray
    frame_at: np.ndarray
    columns: dict[str, Any]
    max_frames: int  # the request ends after so many frames, hidden ones too
    min_frames: int  # a stop counts only after so many frames, hidden ones too
    codec_prefix: np.ndarray
    voice: str = ""
    voices: tuple[tuple[str, int], ...] = ()
    """Names of the voices in `frames` and the first frame of each, where prompts share some of
    them. Else `voice`."""
    codec_conditions: dict[str, np.ndarray] = field(default_factory=dict)
    # loop length that emit needs for this row (flow steps). A step runs the largest of its batch
    num_evals: int = 0
    runaway_frames: int | None = (
        None  # a result of so many frames is probably a run-on (see speech/guard.py)
    )
    trim_silent_frames: int = 0  # so many first frames are not delivered if they are silent
    continuation: Callable[[np.ndarray], Prompt | None] | None = None
    """Makes the request's next prompt from the frames [T, *frame] that are heard. It returns None
    when nothing follows."""
    # its first positions are the last prompt and all its frames, embedded as they were. 0: not so
    repeats: int = 0
    live: LiveText | None = None
    streamed_text_tokens: int = 0  # text tokens beyond the prompt: each later step takes one
    codec_state: Tensor | None = (
        None  # one row of the codec's state before frame 0, once it is made
    )
    given_kv: np.ndarray | None = None
    """Keys and values [layers, 2, length, heads, dim] float32 of its first positions, whose rows
    say nothing, as the backbone would compute them (keys after RoPE)."""
    given_by_frame: Mapping[str, np.ndarray] = field(default_factory=dict)
    """Keys and values of the first places of page sets by frame, in the same form, by the names of
    the sets. Only a prompt with `given_kv` has them, and no set has more places than `given_kv` has
    positions. They count as frames before those of `frames`."""
    lora: Adapter | None = None  # the request's, kept until its end. Families leave it alone
    words: tuple[range, ...] = ()
    """Where each word of the request's text, cut at white space, stands in the prompt's text, which
    the columns `text_start` and `text_end` bound: positions from `text_start` on. Empty for a word
    that is not spoken. Only where `spec.alignment`."""

    @property
    def length(self) -> int:
        """Positions T."""
        return len(next(iter(self.rows.values())))

    @property
    def num_given(self) -> int:
        """First positions whose keys and values it brings."""
        if self.given_kv is None:
            return 0
        return int(self.given_kv.shape[2])

    @property
    def num_given_frames(self) -> int:
        """Frames that its `given_by_frame` fills, in the set that has most."""
        return max(
            (keys_values.shape[2] for keys_values in self.given_by_frame.values()), default=0
        )

    @property
    def has_voice(self) -> bool:
        """Whether the prompt contains a voice, as latents or as its attention keys and values."""
        return bool(len(self.frames) or self.num_given)

    @property
    def primes_codec(self) -> bool:
        """Whether the codec's state before frame 0 is not that of silence."""
        return bool(len(self.codec_prefix) or self.codec_conditions)

    @property
    def tokens(self) -> int:
        """Tokens of the request, for usage counts."""
        return self.length + self.streamed_text_tokens


class FrameKV(Protocol):
    """Page sets of `spec.frame_kv` as the N tokens of one step that have a frame see them."""

    def view(
        self, name: str, pos: Tensor, seen_to: Tensor | None = None, stored: Tensor | None = None
    ) -> Attend:
        """Attention of n rows for each token, in the order of the tokens: q, k and v [N * n, heads,
        D].

        All rows are stored at pos [N, n] of the set, where frame f has f * rows to (f + 1) * rows -
        1. Then each sees what is stored up to seen_to [N, n], which is `pos` where None. Rows that
        are not `stored` [N, n] are dropped. In a decode step the stored rows of a token are
        consecutive, and no row sees what stands behind them. Nobody may see a place before its
        frame is stored there. A page holds one frame. It is shared with all prompts that have the
        same positions up to that of the frame, so what later positions store in it follows
        from these.
        """
        ...


class Rows(Protocol):
    """Slot-table rows of one step, gathered on first use. `rows["prev"]` is [B, *frame],
    `rows["step"]` is [B]."""

    num_evals: int  # loop length for emit, static within a step
    first: bool  # whether frame 0 is made of all rows, static within a step
    replays: bool  # whether frames are replayed, static within a step

    @property
    def frame_kv(self) -> FrameKV:
        """Page sets by frame, in `emit`."""
        ...

    def __getitem__(self, name: str) -> Tensor: ...

    def lookup(self, name: str, index: Tensor) -> Tensor:
        """table[name][row, index]: one element per row [B, ...] of a long column, which is not
        gathered."""
        ...

    def recent(self, count: int) -> tuple[Tensor, Tensor]:
        """The last `count` frames of each row, newest first [B, count, *frame], and which of them
        exist [B, count]."""
        ...

    def made(self) -> Tensor:
        """The frames [B, *frame] that were made at `step`, where frames are replayed."""
        ...

    def column(self, name: str) -> RowRef:
        """The whole column, and which of its rows these are, for kernels that index it
        themselves."""
        ...

    def history(self) -> RowRef:
        """Zeros for all frames [slots, max_frames, *frame]."""
        ...


class KVView(Protocol):
    """Paged keys and values as the N tokens of one step see them."""

    pos: Tensor  # [N] position of each token in its sequence, for RoPE
    frame_kv: FrameKV  # of the tokens at `frame_at` of a prompt, else of all

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor, norm_rope: NormRope) -> Tensor:
        """Apply `norm_rope` to q [N, Hq, D] and k [N, Hkv, D], store k and v, attend causally.
        Returns [N, Hq, D]."""
        ...


@dataclass
class PromptRows:
    """Packed prompt tokens of several requests: `rows[name]` [N, ...] and `frames` [M, *frame of a
    prompt] at `frame_at` [M].

    M may be 0. Padding frames have `frame_at == N`: scatter into N + 1 rows and drop the last.
    """

    rows: dict[str, Tensor]
    frames: Tensor
    frame_at: Tensor


class Emit(NamedTuple):
    """Output of one step per row: `frame` [B, *frame], `stop` [B] bool, and new values of family
    columns.

    A frame with a NaN, an infinity or a code below 0 (kernels.constants.NO_ID) ends its row as
    broken. `emitted` [B] bool, None unless `spec.hides_frames`: a frame without audio is `prev` of
    the next step and part of the row's history, counts for min_frames and max_frames, and reaches
    neither the codec nor the caller. So is what a step feeds besides frames, such as a text token.
    `queries` [B, layers, heads, dim], None unless `spec.alignment`: of those heads, with norms and
    RoPE.
    """

    frame: Tensor
    stop: Tensor
    columns: dict[str, Tensor]
    emitted: Tensor | None = None
    queries: Tensor | None = None


class Codec(Protocol):
    """Frames to audio, stateful: decoded chunks, concatenated, equal the decoded whole.

    It is causal, or by `spec.codec_timing` decodes each chunk from the utterance so far.
    """

    @property
    def columns(self) -> Mapping[str, Column]:
        """Decoder state of one request."""
        ...

    def decode(self, frames: Tensor, state: State, call: CodecCall, /) -> tuple[Tensor, State]:
        """frames [B, T, *frame] and state rows [B, ...] -> samples, next state
        after frame `call.stop` - 1.

        Samples are [B, call.decodes * hop + late] float32 in [-1, 1]: of `call.decodes` frames from
        `call.start` on, and of the `late` samples before them, which are owed. In rows whose stream
        goes on, the last `late` samples are not used. Frames from `call.end` on have any values. A
        causal codec receives the T = call.decodes frames to decode, one with `UtteranceTiming` all
        frames of the utterance from the first one of its codec prefix on, and the frames ahead.
        """
        ...


class HostModel(Protocol):
    """The part of a loaded family that works on the host, without tensors: what requests become."""

    @property
    def spec(self) -> ModelSpec: ...

    def references(self, request: SpeechRequest) -> list[VoiceSource]:
        """Return the recordings that `prompt` needs as voices. Host, pure, any thread, quick.

        Raises InvalidRequest for references that only the family can judge.
        """
        ...

    def prompt(self, request: SpeechRequest, voices: Sequence[Voice]) -> Prompt:
        """Host, pure, any thread, called once. voices: those of `references(request)`, in its
        order.

        Raises InvalidRequest for what only the family can judge. Work that may take long, such as a
        text front end, takes `request.check`.
        """
        ...

    def speakable(self, text: str, check: Check) -> bool:
        """Whether a text has anything that can be spoken. Host, any thread, and much faster than
        `prompt`.

        Who cuts text puts a silence in place of a part that has nothing.
        """
        ...


class SpeechModel(HostModel, Protocol):
    """A loaded family as tensor functions of torch. Every member is required."""

    @property
    def codec(self) -> Codec: ...

    @property
    def adapters(self) -> AdapterSlots:
        """Where its linear layers keep the LoRA weights that a request may name, or
        `models.lora.NO_ADAPTERS`.

        The engine sets the adapter of each row of a call. A function whose linear layers see other
        rows than its input declares them (`adapters.rows.at`).
        """
        ...

    def encode(self, wav: Tensor, role: str, launch: Launch = eager) -> dict[str, Tensor]:
        """Reference audio [n] at `spec.reference_rate` -> features (latents, codes). On the device.

        Its calls of `launch` have shapes that recordings of any length share, so that the engine
        can capture it. A family with a `speaker_size` returns its speaker embedding as `speaker`
        [speaker_size].
        """
        ...

    def embed_prompt(self, p: PromptRows, rows: Rows) -> Hidden:
        """Packed prompt tokens, and the columns of the slots they belong to -> backbone input, each
        [N, ...]."""
        ...

    def embed_frame(self, rows: Rows) -> Hidden:
        """The row's last frame (`prev`, made at `step - 1`) -> backbone input, each [B, ...].
        Captured."""
        ...

    def backbone(self, x: Hidden, kv: KVView) -> Hidden:
        """Causal layers over paged KV. Nothing else calls kv.attend. Captured."""
        ...

    def emit(self, h: Hidden, rows: Rows, u: Tensor) -> Emit:
        """Backbone output [B, ...] and uniforms u [B, draws] in (0, 1) -> frame `step`. Captured:
        no value is read on the host."""
        ...


class Prompts(Protocol):
    """Requests to prompts for one checkpoint. Host only, any thread."""

    def references(self, request: SpeechRequest) -> list[VoiceSource]: ...
    def build(self, request: SpeechRequest, voices: Sequence[Voice]) -> Prompt: ...


class Prompted:
    """The members of a SpeechModel before its tensors, by a builder of prompts and for text of
    every script."""

    spec: ModelSpec
    prompts: Prompts

    def references(self, request: SpeechRequest) -> list[VoiceSource]:
        return self.prompts.references(request)

    def prompt(self, request: SpeechRequest, voices: Sequence[Voice]) -> Prompt:
        return self.prompts.build(request, voices)

    def speakable(self, text: str, check: Check) -> bool:
        return has_words(text, self.spec.marks)

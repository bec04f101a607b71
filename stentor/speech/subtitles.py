"""Subtitles for reading: from the times of words to cues, and cues as SubRip, WebVTT and ASS.

A cue has at most two lines of 42 columns and stays for at most 7 s. It ends where a phrase ends,
and before the next speaker. Where a segment has no word times, its words share its time by their
width.
"""

from __future__ import annotations

import itertools
import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from stentor.speech.timing import SegmentTiming, WordTiming
from stentor.text.endings import cuts, is_joined

LINE_WIDTH = 42
"""Columns of a line. A Chinese, Japanese or Korean character takes two."""
MAX_LINES = 2
MAX_SECONDS = 7.0
MIN_SECONDS = 1.2
"""A cue shorter than this is hard to read: it is joined with a neighbour, or stays longer."""
GAP = 0.08
"""Seconds without text between two cues: two frames at 25 fps, by which the eye sees the change."""
LINGER = 0.5
"""Seconds that a cue may stay after its last word."""
SCENE_PAUSE = 1.5
"""Seconds of silence that no cue spans."""
BREATH = 0.3
"""Seconds of silence between words that separate two phrases."""

# costs of ending a cue behind a word, and of what a cue holds
PHRASE_CUT = 4.0
BREATH_CUT = 5.0
CONNECTIVE_CUT = 10.0
WORD_CUT = 14.0
AFTER_CONNECTIVE_CUT = 22.0
INSIDE_WORD_CUT = 30.0
JOINED_SENTENCES = 3.0
MISSING_SECOND = 10.0
CUE = 1.0

_PHRASE_END = re.compile(r"[,;:\u2014\u2013\u3001\uff0c\uff1b\uff1a)\]][\"'\u201d\u2019\xbb]*$")
_CLOSING = re.compile(
    r"[\u3001\u3002\uff0c\uff0e\uff01\uff1f\uff1b\uff1a\uff09\u300d\u300f\u3011\u3009\u300b\u201d]"
)
"""Marks that begin no line in Chinese, Japanese and Korean."""
_ARTICLES = frozenset(["a", "an", "the"])
_CONNECTIVE_WORDS = """
    and or but nor so yet because although though if unless until when while where which who that
    than as of in on at by for from to with into over after before about between through
"""
_CONNECTIVES = frozenset(_CONNECTIVE_WORDS.split())
_IN_ASS = str.maketrans({"\\": "\uff3c", "{": "\uff5b", "}": "\uff5d"})
"""Wide forms of the characters that begin commands, which not every player can escape."""


class Token(NamedTuple):
    """The smallest piece of a cue: a word, or a character of a script without spaces.

    spaced: white space stands before it. begins_word: the first piece of its word. opens_sentence:
    the first piece of a segment that goes on from none. is_label: of a speaker's name.
    """

    text: str
    start: float
    end: float
    spaced: bool
    begins_word: bool
    opens_sentence: bool = False
    is_label: bool = False


@dataclass(frozen=True)
class Cue:
    """Text that is shown from `start` to `end`, in seconds of the audio.

    lines: at most two, each of the tokens in it. voice: the speaker's name in a dialogue.
    """

    start: float
    end: float
    lines: tuple[tuple[Token, ...], ...]
    voice: str | None = None

    @property
    def text(self) -> str:
        """Its lines, with a line feed between them."""
        return "\n".join(_joined(line) for line in self.lines)


def cues(segments: Sequence[SegmentTiming], labels: bool = False) -> list[Cue]:
    """Return the cues of a speech, in order and never two at a time.

    labels: begin each turn of a dialogue with the name of its speaker, which counts as text.
    """
    untimed: list[Cue] = []
    for (voice, _), group in itertools.groupby(segments, lambda s: (s.voice, s.turn)):
        tokens = [token for segment in group for token in _tokens(segment)]
        if labels and voice is not None and tokens:
            first = tokens[0]._replace(opens_sentence=False)
            tokens = [*_label(voice, first.start), first, *tokens[1:]]
        for lines in _turn_lines(tokens):
            untimed.append(Cue(lines[0][0].start, lines[-1][-1].end, lines, voice))
    return _spaced_in_time(untimed)


def srt(segments: Sequence[SegmentTiming], words: bool = False) -> str:
    """Return SubRip subtitles, with `name: ` where the speaker changes.

    words: a cue for each word.
    """
    lines = cues(segments, labels=True)
    if words:
        lines = [word for cue in lines for word in _word_cues(cue)]
    return "\n".join(
        f"{i}\n{_clock(cue.start, ',')} --> {_clock(cue.end, ',')}\n{cue.text}\n"
        for i, cue in enumerate(lines, 1)
    )


def vtt(segments: Sequence[SegmentTiming], words: bool = False) -> str:
    """Return WebVTT subtitles, with the speaker as the voice of a cue. words: mark when each word
    begins, for players that show it."""
    blocks = [_vtt_cue(cue, words) for cue in cues(segments)]
    return "WEBVTT\n\n" + "\n".join(blocks)


def ass(segments: Sequence[SegmentTiming], words: bool = False) -> str:
    """Return Advanced SubStation subtitles, with `name: ` where the speaker changes.

    words: karaoke, in which each word is filled while it is spoken.
    """
    return _ASS_HEADER + "".join(_ass_event(cue, words) for cue in cues(segments, labels=True))


FORMATS: dict[str, Callable[[Sequence[SegmentTiming], bool], str]] = {
    "srt": srt,
    "vtt": vtt,
    "ass": ass,
}
"""Writers of subtitles by the suffix of their files."""
MEDIA_TYPES = {"srt": "application/x-subrip", "vtt": "text/vtt", "ass": "text/x-ssa"}


# -- tokens --


def _tokens(segment: SegmentTiming) -> list[Token]:
    """The tokens of a segment, whose times never go back."""
    tokens: list[Token] = []
    latest = segment.start
    for word in segment.words or _shared_out(segment):
        start = max(latest, word.start)
        latest = max(start, word.end)
        for i, part in enumerate(word.text.split()):
            # marks that belong to a word may stand apart from it
            tokens += _pieces(replace(word, text=part, start=start, end=latest), i == 0)
    if tokens and not tokens[0].text[0].islower():
        tokens[0] = tokens[0]._replace(opens_sentence=True)
    return tokens


def _shared_out(segment: SegmentTiming) -> list[WordTiming]:
    """The words of a segment without word times, by the share that each has of its width."""
    words = [(m[0], m.start(), m.end()) for m in re.finditer(r"\S+", segment.text)]
    total = sum(_width(text) + 1 for text, _, _ in words)
    seconds = segment.end - segment.start
    timings: list[WordTiming] = []
    begin = segment.start
    for text, start, end in words:
        stop = begin + seconds * (_width(text) + 1) / total
        timings.append(WordTiming(text, begin, stop, start, end))
        begin = stop
    return timings


def _pieces(word: WordTiming, begins_word: bool) -> Iterator[Token]:
    """A word in pieces that fit a line: characters where it is written without spaces."""
    borders = [0, *_inner_borders(word.text), len(word.text)]
    width = max(_width(word.text), 1)
    for start, end in itertools.pairwise(borders):
        begin = word.start + (word.end - word.start) * _width(word.text[:start]) / width
        stop = word.start + (word.end - word.start) * _width(word.text[:end]) / width
        yield Token(word.text[start:end], begin, stop, start == 0, begins_word and start == 0)


def _inner_borders(text: str) -> Iterator[int]:
    """Where a word may be cut: between wide characters, else where a line is full."""
    if text.isascii() and len(text) <= LINE_WIDTH:
        return
    begin = 0
    for at in range(1, len(text)):
        too_long = _width(text[begin : at + 1]) > LINE_WIDTH
        between_wide = (
            _is_wide(text[at - 1]) and _is_wide(text[at]) and not _CLOSING.match(text[at])
        )
        if too_long or (between_wide and not is_joined(text, at)):
            yield at
            begin = at


def _label(voice: str, at: float) -> list[Token]:
    """The name of a speaker as tokens that take no time."""
    parts = f"{voice}:".split()
    pieces = [piece for part in parts for piece in _pieces(WordTiming(part, at, at, 0, 0), True)]
    return [piece._replace(is_label=True) for piece in pieces]


def _width(text: str) -> int:
    if text.isascii():
        return len(text)
    return sum(_columns(character) for character in text)


def _columns(character: str) -> int:
    if unicodedata.category(character) in ("Mn", "Me", "Cf"):
        return 0
    return 2 if _is_wide(character) else 1


def _is_wide(character: str) -> bool:
    return not character.isascii() and unicodedata.east_asian_width(character) in "WF"


def _joined(tokens: Iterable[Token]) -> str:
    return "".join(" " * t.spaced + t.text for t in tokens).strip()


# -- cues --


def _turn_lines(tokens: Sequence[Token]) -> Iterator[tuple[tuple[Token, ...], ...]]:
    """The lines of each cue of a turn. No cue spans a silence of SCENE_PAUSE."""
    begin = 0
    for at in range(1, len(tokens) + 1):
        if at == len(tokens) or tokens[at].start - tokens[at - 1].end >= SCENE_PAUSE:
            yield from _Passage(tokens[begin:at]).lines()
            begin = at


class _Passage:
    """Tokens of one speaker without a long silence, cut into cues at the least total cost."""

    def __init__(self, tokens: Sequence[Token]) -> None:
        self.tokens = tokens
        self.widths = [_width(token.text) + token.spaced for token in tokens]
        self.sentence_ends = _sentence_ends(tokens)
        self.cut_costs = [self._cut_cost(i) for i in range(len(tokens))]

    def lines(self) -> Iterator[tuple[tuple[Token, ...], ...]]:
        """The lines of each cue."""
        for begin, end in self._spans():
            yield self._lines(begin, end)

    def _spans(self) -> list[tuple[int, int]]:
        """First and last token (exclusive) of each cue, by dynamic programming over their ends."""
        num_tokens = len(self.tokens)
        best = [0.0] + [float("inf")] * num_tokens
        begins = [0] * (num_tokens + 1)
        for begin in range(num_tokens):
            for end, cost in self._cues_from(begin):
                total = best[begin] + cost
                if total < best[end]:
                    best[end] = total
                    begins[end] = begin

        spans: list[tuple[int, int]] = []
        end = num_tokens
        while end:
            spans.append((begins[end], end))
            end = begins[end]
        return spans[::-1]

    def _cues_from(self, begin: int) -> Iterator[tuple[int, float]]:
        """The end and the cost of each cue that may begin with a token."""
        tokens = self.tokens
        joined_sentences = 0
        num_lines = 1
        width = -int(tokens[begin].spaced)
        for i in range(begin, len(tokens)):
            if i > begin and width + self.widths[i] > LINE_WIDTH:
                num_lines += 1
                width = -int(tokens[i].spaced)
            width += self.widths[i]
            seconds = tokens[i].end - tokens[begin].start
            if i > begin and (num_lines > MAX_LINES or seconds > MAX_SECONDS):
                return

            missing = max(0.0, MIN_SECONDS - self._seconds_shown(begin, i))
            cost = CUE + JOINED_SENTENCES * joined_sentences + MISSING_SECOND * missing
            yield i + 1, cost + self.cut_costs[i]
            joined_sentences += i in self.sentence_ends

    def _seconds_shown(self, begin: int, last: int) -> float:
        """Seconds that a cue of these tokens can stay."""
        if last + 1 < len(self.tokens):
            until = self.tokens[last + 1].start - GAP
        else:
            until = self.tokens[last].end + LINGER
        return until - self.tokens[begin].start

    def _cut_cost(self, i: int) -> float:
        """The cost of ending a cue behind token i."""
        if i + 1 == len(self.tokens) or i in self.sentence_ends:
            return 0.0
        token = self.tokens[i]
        following = self.tokens[i + 1]
        if token.is_label:
            return WORD_CUT
        if _PHRASE_END.search(token.text):
            return PHRASE_CUT
        if not following.spaced and not _is_wide(token.text[-1]):
            return INSIDE_WORD_CUT
        if following.start - token.end >= BREATH:
            return BREATH_CUT
        if token.text.lower() in _ARTICLES | _CONNECTIVES:
            return AFTER_CONNECTIVE_CUT
        if following.text.lower() in _CONNECTIVES:
            return CONNECTIVE_CUT
        return WORD_CUT

    def _lines(self, begin: int, end: int) -> tuple[tuple[Token, ...], ...]:
        """One line if it fits, else two, cut at a phrase end or near the middle."""
        tokens = tuple(self.tokens[begin:end])
        if _line_width(tokens) <= LINE_WIDTH:
            return (tokens,)
        middle = min(range(1, len(tokens)), key=lambda cut: self._line_cost(begin, tokens, cut))
        return tokens[:middle], tokens[middle:]

    def _line_cost(self, begin: int, tokens: Sequence[Token], cut: int) -> float:
        first = _line_width(tokens[:cut])
        second = _line_width(tokens[cut:])
        if max(first, second) > LINE_WIDTH:
            return float("inf")
        return abs(first - second) + self.cut_costs[begin + cut - 1]


def _line_width(tokens: Sequence[Token]) -> int:
    return _width(_joined(tokens))


def _sentence_ends(tokens: Sequence[Token]) -> set[int]:
    """Indices of the tokens that end a sentence."""
    pieces: list[str] = []
    index_at: dict[int, int] = {}
    length = 0
    for i, token in enumerate(tokens):
        if token.opens_sentence:
            space = "\n\n"
        else:
            space = " " * token.spaced
        pieces += [space, token.text]
        length += len(space) + len(token.text)
        index_at[length] = i
    text = "".join(pieces)
    ends = (len(text[max(0, cut - 8) : cut].rstrip()) - min(cut, 8) + cut for cut, _ in cuts(text))
    return {index_at[end] for end in ends if end in index_at}


def _spaced_in_time(untimed: Sequence[Cue]) -> list[Cue]:
    """Cues that stay long enough to be read, with a gap before the next."""
    timed: list[Cue] = []
    for cue, following in itertools.zip_longest(untimed, untimed[1:]):
        end = max(cue.end + LINGER, cue.start + MIN_SECONDS)
        if following is not None:
            end = min(end, following.start - GAP)
            if end <= cue.start:
                end = following.start
        timed.append(replace(cue, end=min(end, cue.start + MAX_SECONDS)))
    return timed


def _word_cues(cue: Cue) -> Iterator[Cue]:
    """A cue for each word of a cue. The name of a speaker goes with the first."""
    words: list[list[Token]] = []
    for token in itertools.chain(*cue.lines):
        if token.begins_word and not (words and words[-1][-1].is_label):
            words.append([])
        words[-1].append(token)
    for tokens, following in itertools.zip_longest(words, words[1:]):
        end = tokens[-1].end
        if following is None:
            end = min(end, cue.end)
        elif end <= tokens[0].start:
            end = following[0].start
        yield Cue(tokens[0].start, end, (tuple(tokens),))


# -- files --


def _vtt_cue(cue: Cue, words: bool) -> str:
    speaker = ""
    if cue.voice is not None:
        speaker = f"<v {_escaped(' '.join(cue.voice.split()))}>"
    lines = [
        _marked(line, lambda token: _vtt_mark(cue, token, words), _escaped) for line in cue.lines
    ]
    text = "\n".join(lines)
    return f"{_clock(cue.start, '.')} --> {_clock(cue.end, '.')}\n{speaker}{text}\n"


def _vtt_mark(cue: Cue, token: Token, words: bool) -> str:
    """The time of a word. WebVTT allows only times inside its cue."""
    if words and token.begins_word and cue.start < token.start < cue.end:
        return f"<{_clock(token.start, '.')}>"
    return ""


def _ass_event(cue: Cue, words: bool) -> str:
    fills = _karaoke(cue, words)
    lines = [_marked(line, lambda token: next(fills), _ass_text) for line in cue.lines]
    text = r"\N".join(lines)
    name = _ass_text((cue.voice or "").replace(",", " "))
    return (
        f"Dialogue: 0,{_ass_clock(cue.start)},{_ass_clock(cue.end)},Default,{name},0,0,0,,{text}\n"
    )


def _karaoke(cue: Cue, words: bool) -> Iterator[str]:
    r"""The mark {\kf} of each token, hundredths of a second until the next begins, if `words`."""
    tokens = [*itertools.chain(*cue.lines)]
    moments = [round(token.start * 100) for token in tokens]
    moments.append(round(min(cue.end, tokens[-1].end) * 100))
    for start, end in itertools.pairwise(moments):
        yield f"{{\\kf{max(0, end - start)}}}" if words else ""


def _marked(
    line: Sequence[Token], mark: Callable[[Token], str], escaped: Callable[[str], str]
) -> str:
    """A line with a mark in front of each token."""
    pieces = [" " * token.spaced + mark(token) + escaped(token.text) for token in line]
    return "".join(pieces).strip()


def _clock(seconds: float, mark: str) -> str:
    ms = round(seconds * 1000)
    return f"{ms // 3_600_000:02}:{ms // 60_000 % 60:02}:{ms // 1000 % 60:02}{mark}{ms % 1000:03}"


def _ass_clock(seconds: float) -> str:
    hundredths = round(seconds * 100)
    minutes = hundredths // 6000
    return f"{minutes // 60}:{minutes % 60:02}:{hundredths // 100 % 60:02}.{hundredths % 100:02}"


def _escaped(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _ass_text(text: str) -> str:
    return text.translate(_IN_ASS)


_ASS_HEADER = """\
[Script Info]
ScriptType: v4.00+
WrapStyle: 2
PlayResX: 1920
PlayResY: 1080

[V4+ Styles]
Format: Name, Fontname, Fontsize, PrimaryColour, SecondaryColour, OutlineColour, BackColour, Bold, \
Italic, Underline, StrikeOut, ScaleX, ScaleY, Spacing, Angle, BorderStyle, Outline, Shadow, \
Alignment, MarginL, MarginR, MarginV, Encoding
Style: Default,Arial,64,&H00FFFFFF,&H00A0A0A0,&H00000000,&H80000000,0,0,0,0,100,100,0,0,1,3,1,2,\
60,60,60,1

[Events]
Format: Layer, Start, End, Style, Name, MarginL, MarginR, MarginV, Effect, Text
"""

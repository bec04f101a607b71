"""`stentor say`: from flags to audio."""

from __future__ import annotations

import argparse
import logging
import shlex
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import stentor
from stentor.engine.seeds import random_seed
from stentor.errors import InvalidRequest, StentorError
from stentor.flags import AUTO, check_files, check_speed, request_options
from stentor.say import left_out, source, target
from stentor.say.progress import SpeakingBar, loading
from stentor.say.signals import terminated_by_signals
from stentor.say.target import HEADERLESS, Target
from stentor.text.cleanup import steps

if TYPE_CHECKING:
    from stentor.api import TTS
    from stentor.output.marks import Marks
    from stentor.output.watermark import Make
    from stentor.say.speakers import Speaker
    from stentor.say.target import Sink
    from stentor.speech.result import Speech
    from stentor.speech.timing import SegmentTiming

CUT = 3  # exit code: the audio was written, but max_frames cut it
SUBTITLES = ("srt", "vtt", "ass")
PLAYERS = ("ffplay", "mpv", "afplay", "pw-play")


@dataclass
class Spoken:
    """Outcome of speaking. Times are seconds of the audio."""

    seconds: float = 0.0
    first: float = 0.0  # seconds of work until the first audio
    took: float = 0.0
    finish: str = "cancelled"
    seed: int = 0
    segments: list[SegmentTiming] = field(default_factory=list)
    # pieces of the text that the model cannot speak
    ignored: list[str] = field(default_factory=list)


def run(args: argparse.Namespace, load: dict[str, Any]) -> int:
    """Speak, with these arguments of `TTS`, or through the server that a flag names.

    Returns 0, 3 if the speech was cut by max_frames, or 5 if the model cannot speak a part of the
    text.
    """
    text = source.read(args.text, args.file)
    out = target.check(args.output, args.format, args.play)
    _check_flags(args)
    format = None if out is None else out.format
    marks = target.marks(args.provenance, args.watermark, args.model or args.server, format)
    play = _player(marks.watermark) if args.play else None
    options = _request_options(args)
    spoken = Spoken()
    started = time.perf_counter()

    with terminated_by_signals(), _speaker(args, load, text, options) as speaker, _without_log():
        loaded = time.perf_counter()
        rate = speaker.sample_rate
        sinks: list[Sink] = []
        if out is not None:
            sinks.append(_output(out, args.loudness, rate, marks, options["seed"], text))
        if play is not None:
            sinks.append(target.levelled(play(rate), args.loudness, rate, live=True))
        try:
            with _written(_place(out)), _reports_interrupt(out, spoken):
                _speak(speaker.speech(), len(text), sinks, spoken)
        except BaseException:
            _write_subtitles(args.subtitles, speaker, spoken, complete=False)
            raise
        _write_subtitles(args.subtitles, speaker, spoken, complete=True)
    _report(out, spoken)
    if args.verbose:
        _report_speed(spoken, loaded - started)
    return _warned(spoken)


def _write_subtitles(file: Path | None, speaker: Speaker, spoken: Spoken, complete: bool) -> None:
    """Write the cues of what was spoken. complete: whether that is the whole text."""
    if file is None:
        return
    cues = speaker.subtitles(spoken.segments)
    if cues or complete:  # a server sends them at the end of its answer
        with _written(file):
            file.write_text(cues, encoding="utf-8")


@contextmanager
def _speaker(
    args: argparse.Namespace, load: dict[str, Any], text: str, options: dict[str, Any]
) -> Iterator[Speaker]:
    """A loaded model, or a request to a server."""
    from stentor.say.speakers import ModelSpeaker, ServerSpeaker, request_body

    subtitles = None if args.subtitles is None else _suffix(args.subtitles)
    if args.server is None:
        with _loaded(load) as tts:
            yield ModelSpeaker(tts, text, options, subtitles, args.words)
        return
    body = request_body(text, args.model, options, subtitles, args.words)
    with loading(f"from {args.server}"):
        speaker = ServerSpeaker(args.server, body)
    yield speaker
    for name in speaker.unused:
        print(f"stentor: warning: the server does not use {name!r}", file=sys.stderr)


def _output(
    out: Target, loudness: float | str, rate: int, marks: Marks, seed: int, text: str
) -> Sink:
    """The file or pipe, at a loudness."""
    from stentor.output.encode import serial_number

    serial = serial_number(seed, text)
    output = target.Output(out.path, out.format, rate, marks, serial)
    live = out.path is None or target.is_stream(out.path)
    if loudness == AUTO and (live or out.format in HEADERLESS):
        return output
    return target.levelled(output, loudness, rate, live)


def _place(out: Target | None) -> Path | str:
    if out is None:
        return "the loudspeaker"
    return out.path or "standard output"


def _warned(spoken: Spoken) -> int:
    """Warn of text that is not in the audio. Returns the exit code."""
    if spoken.finish == "length":
        print(
            "stentor: warning: max_frames cut the speech before the end of its text",
            file=sys.stderr,
        )
        return CUT
    if spoken.ignored:
        print(f"stentor: warning: {left_out.warning(spoken.ignored)}", file=sys.stderr)
        return left_out.EXIT_CODE
    return 0


def _player(watermark: Make | None) -> Callable[[int], Sink]:
    """Return a function that makes the player for a rate. InvalidRequest where nothing can be
    played here."""
    from stentor.output import player

    library = player.library()
    return lambda rate: player.Player(library, rate, 1.0, watermark)


def _loaded(load: dict[str, Any]) -> TTS:
    with loading(load.get("model", "the built-in voice")):
        from stentor.api import TTS

        return TTS(**load, max_num_seqs=1)


def _check_flags(args: argparse.Namespace) -> None:
    check_speed(args.speed)
    steps(args.cleanup)
    if args.words and args.subtitles is None:
        raise InvalidRequest("words", "needs --subtitles")
    if args.subtitles is not None:
        if _suffix(args.subtitles) not in SUBTITLES:
            suffixes = ", ".join(f".{name}" for name in SUBTITLES)
            raise InvalidRequest(
                "subtitles", f"must end in one of {suffixes}, got {str(args.subtitles)!r}"
            )
        if not args.subtitles.parent.is_dir():
            raise InvalidRequest(
                "subtitles", f"folder {str(args.subtitles.parent)!r} does not exist"
            )
    check_files(args)


def _suffix(file: Path) -> str:
    return file.suffix.lower().removeprefix(".")


def _request_options(args: argparse.Namespace) -> dict[str, Any]:
    options = request_options(args)
    options["speed"] = args.speed
    options["seed"] = random_seed() if args.seed is None else args.seed
    if args.subtitles is not None and args.split == "auto":
        options["split_granularity"] = "sentence"
    if args.reference is not None:
        options["reference"] = stentor.Reference(args.reference, args.reference_text)
    if args.prompt is not None:
        options["prompt"] = stentor.Reference(args.prompt, args.prompt_text)
    return options


def _speak(stream: Iterator[Speech], num_chars: int, sinks: Sequence[Sink], spoken: Spoken) -> None:
    """Speak into the sinks, which are completed also where the speech fails half-way or is
    interrupted."""
    started = time.perf_counter()
    bar = SpeakingBar(num_chars)
    try:
        for chunk in stream:
            spoken.first = spoken.first or time.perf_counter() - started
            for sink in sinks:
                sink.feed(chunk.samples)
            spoken.seconds += chunk.duration
            spoken.segments += chunk.segments
            spoken.ignored += chunk.ignored
            spoken.finish = chunk.finish_reason or spoken.finish
            spoken.seed = chunk.seed
            bar.at(spoken.segments[-1].end_char if spoken.segments else 0, spoken.seconds)
        spoken.took = time.perf_counter() - started
    finally:
        bar.close()
        for sink in sinks:
            sink.finish()


def _report(out: Target | None, spoken: Spoken) -> None:
    """Print where the audio is and how to play it. Nothing where it was played or piped."""
    if out is not None and out.path is not None and not target.is_stream(out.path):
        player = next(
            (name for name in PLAYERS if out.format not in HEADERLESS and shutil.which(name)), None
        )
        if player is None:
            play = ""
        else:
            play = f" Play it with: {player} {shlex.quote(str(out.path))}"
        print(f"Saved {out.path} ({spoken.seconds:.1f} s).{play}")


def _report_speed(spoken: Spoken, load: float) -> None:
    """Print how fast the audio was made, on standard error: the other one may hold audio."""
    print(
        f"{spoken.seconds:.2f} s of audio ({spoken.finish}, seed {spoken.seed}); load {load:.2f} s, "
        f"first audio {spoken.first:.2f} s, RTF {spoken.took / max(spoken.seconds, 1e-9):.2f}",
        file=sys.stderr,
    )


@contextmanager
def _written(place: Path | str) -> Iterator[None]:
    """StentorError where the system does not take what is written. BrokenPipeError if nobody reads
    it any more."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as e:
        raise StentorError(f"cannot write {str(place)!r}: {e.strerror or e}") from e


@contextmanager
def _reports_interrupt(out: Target | None, spoken: Spoken) -> Iterator[None]:
    """Print what is in the file after Ctrl-C."""
    try:
        yield
    except KeyboardInterrupt:
        written = ""
        if out is not None and out.path is not None and spoken.seconds:
            written = f"; {out.path} has the first {spoken.seconds:.1f} s"
        print(f"\nstentor: interrupted{written}", file=sys.stderr)
        raise


@contextmanager
def _without_log() -> Iterator[None]:
    """The command reports cut speech itself."""
    log = logging.getLogger("stentor.speech")
    level = logging.getLogger("stentor.speech").level
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(level)

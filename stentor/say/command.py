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
from stentor.flags import check_files, check_speed, request_options
from stentor.say import left_out, source, target
from stentor.say.progress import SpeakingBar, loading
from stentor.say.signals import terminated_by_signals
from stentor.say.target import HEADERLESS, Target
from stentor.speech.subtitles import FORMATS as SUBTITLES
from stentor.speech.timing import SegmentTiming
from stentor.text.cleanup import steps

if TYPE_CHECKING:
    from stentor.api import TTS
    from stentor.output.player import Player
    from stentor.output.watermark import Make

    Sink = target.Output | Player

CUT = 3  # exit code: the audio was written, but max_frames cut it
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
    """Speak, with these arguments of `TTS`.

    Returns 0, 3 if the speech was cut by max_frames, or 5 if the model cannot speak a part of the
    text.
    """
    text = source.read(args.text, args.file)
    out = target.check(args.output, args.format, args.play)
    _check_flags(args)
    marks = target.marks(
        args.provenance, args.watermark, args.model, None if out is None else out.format
    )
    play = _player(marks.watermark) if args.play else None
    options = _request_options(args)
    spoken = Spoken()
    started = time.perf_counter()
    from stentor.output.encode import serial_number

    with terminated_by_signals(), _loaded(load) as tts, _without_log():
        loaded = time.perf_counter()
        sinks: list[Sink] = []
        if out is not None:
            serial = serial_number(options["seed"], text)
            sinks.append(target.Output(out.path, out.format, tts.sample_rate, marks, serial))
        if play is not None:
            sinks.append(play(tts.sample_rate))
        if args.subtitles is not None:
            options["word_timestamps"] = args.words or _has_word_times(tts, args.language, text)
        with _written(_place(out)), _told_if_interrupted(out, spoken):
            _speak(tts, text, options, sinks, spoken)
    if args.subtitles is not None:
        subtitles = SUBTITLES[_suffix(args.subtitles)](spoken.segments, args.words)
        with _written(args.subtitles):
            args.subtitles.write_text(subtitles, encoding="utf-8")
    _report(out, spoken)
    if args.verbose:
        _report_speed(spoken, loaded - started)
    return _warned(spoken)


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


def _has_word_times(tts: TTS, language: str, text: str) -> bool:
    """Whether cues can be cut by word times. Else words share the time of their sentence."""
    return tts.aligners.missing(tts.spec, language, text) is None


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


def _speak(
    tts: TTS, text: str, options: dict[str, Any], sinks: Sequence[Sink], spoken: Spoken
) -> None:
    """Speak into the sinks, which are completed also where the speech fails half-way or is
    interrupted."""
    started = time.perf_counter()
    stream = tts.stream(text, **options)
    bar = SpeakingBar(len(text))
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
def _told_if_interrupted(out: Target | None, spoken: Spoken) -> Iterator[None]:
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
    """The command tells of cut speech itself."""
    log = logging.getLogger("stentor.speech")
    level = logging.getLogger("stentor.speech").level
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(level)

"""The flags of `stentor book`. Nothing heavy is imported until the command runs."""

from __future__ import annotations

import argparse

from stentor.book.chapters import MATTERS
from stentor.flags import (
    ALIGNER,
    CLEANUP,
    LEXICON,
    LORA,
    MARKS,
    MODEL,
    REQUEST,
    RETRY_ABOVE,
    SERVER,
    SPLIT,
    THREADS,
    VERIFY,
    add,
    flag,
    path,
    run_options,
    switch,
)

FOLDER_FORMATS = ("mp3", "opus", "flac", "m4a", "wav")
SUBTITLES = ("vtt", "srt", "ass")
STRUCTURED = "characters,formulas,notes"
"""Steps of the clean-up for text whose tags, lines and pages a reader of books has read already."""
EPILOG = """\
exit codes: 0 book written, 3 written but max_frames cut off some speech, 5 written without text that the voice cannot
speak, 4 some pieces failed, 2 wrong usage or input, 1 run stopped, 130 interrupted. After 1, 4 or 130, continue with
--resume."""


def define(book: argparse.ArgumentParser) -> None:
    """Add the flags of `book`."""
    book.usage = "stentor book INPUT [-o OUTPUT] [--flag VALUE ...]"
    book.epilog = EPILOG
    book.add_argument("input", type=path, metavar="INPUT", help="book to read")
    book.add_argument("-o", "--output", type=path, metavar="OUTPUT", help=_OUTPUT)
    add(book.add_argument_group("text"), {**_TEXT, **SPLIT, **LEXICON})
    add(book.add_argument_group("audio"), _AUDIO)
    add(book.add_argument_group("run"), _RUN)
    add(book.add_argument_group("verification"), _PROOF)
    seed = flag("seed of the book; each piece derives its own seed from this (default 0)", int)
    speed = flag("speed, 0.25 to 4, at the same pitch (default 1)", float)
    add(book.add_argument_group("voice"), {**_VOICES, **REQUEST, "seed": seed, "speed": speed})
    add(
        book.add_argument_group("model"), {**SERVER, **MODEL, **THREADS, **_MANY, **LORA, **ALIGNER}
    )
    book.set_defaults(func=_run)


_OUTPUT = (
    "an .m4b file with chapter marks, an .epub that highlights text as it is read, or a folder for one file per "
    "chapter (--format)"
)
_TEXT = {
    "list": switch("list the chapters with their characters and minutes, without speaking"),
    "chapters": flag("speak only these chapters of --list, such as 3-7,9", metavar="NUMBERS"),
    "matter": flag(
        "auto: leave out contents, copyright, notes and index; body: all front and back matter; all: nothing",
        default="auto",
        choices=MATTERS,
    ),
    "no_titles": switch("do not speak chapter titles"),
    "alt_text": switch("speak the alternative text of pictures"),
    "cleanup": {**CLEANUP["cleanup"], "default": STRUCTURED},
}
_AUDIO = {
    "loudness": flag(
        "loudness of each chapter: acx (RMS -20 dB, peaks below -3 dB; the default), LUFS such as -18, or off",
        default="acx",
        metavar="TARGET",
    ),
    "pauses": flag(
        "pauses in seconds, such as heading=1,scene=2; also paragraph, and start and end of a chapter",
        metavar="NAME=SECONDS,...",
    ),
    "subtitles": flag("write subtitles next to the audio", choices=SUBTITLES),
    "words": switch("with --subtitles: time each word, if the model supports it"),
    "narrator": flag("narrator's name in the tags"),
    "watermark": MARKS["watermark"],
    "format": flag(
        "format of the files in a folder (default mp3)", default="mp3", choices=FOLDER_FORMATS
    ),
}
_RUN = {
    "resume": switch("continue an earlier run"),
    "keep_parts": switch("keep the spoken pieces in OUTPUT.parts when the book is complete"),
}
_VOICES = {
    "voices": flag("YAML file that assigns voices to chapters and speakers", path, metavar="FILE"),
}
_PROOF = {
    "verify": switch(
        "transcribe each piece, speak the worst ones again, and write report.html and report.json"
    ),
    "retry_above": flag(
        f"speak a piece again if its WER is above this (default {RETRY_ABOVE})", float
    ),
    "recogniser": VERIFY["recogniser"],
}
_MANY = {
    "max_num_seqs": flag("maximum number of pieces spoken at once", int, metavar="N"),
    "deterministic": switch("on CUDA, produce the same bytes in every run; slower"),
}


def _run(args: argparse.Namespace) -> int:
    load = run_options(args)
    from stentor.book import command

    return command.run(args, load)

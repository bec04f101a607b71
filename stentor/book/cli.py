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
exit codes: 0 the book was written, 3 the same but max_frames cut some speech, 5 the same but the voice cannot speak a
part of the text, 4 some pieces failed, 2 wrong usage or input, 1 the run stopped, 130 it was interrupted. After 1, 4
and 130 --resume goes on."""


def define(book: argparse.ArgumentParser) -> None:
    """Add the flags of `book`."""
    book.usage = "stentor book INPUT [-o OUTPUT] [--flag VALUE ...]"
    book.epilog = EPILOG
    book.add_argument("input", type=path, metavar="INPUT", help="the file of the book")
    book.add_argument("-o", "--output", type=path, metavar="OUTPUT", help=_OUTPUT)
    add(book.add_argument_group("text"), {**_TEXT, **SPLIT, **LEXICON})
    add(book.add_argument_group("audio"), _AUDIO)
    add(book.add_argument_group("run"), _RUN)
    add(book.add_argument_group("proof"), _PROOF)
    seed = flag("seed of the book, from which each piece's own is made (default 0)", int)
    speed = flag("0.25 to 4; pitch is kept (default 1)", float)
    add(book.add_argument_group("voice"), {**_VOICES, **REQUEST, "seed": seed, "speed": speed})
    add(
        book.add_argument_group("model"), {**SERVER, **MODEL, **THREADS, **_MANY, **LORA, **ALIGNER}
    )
    book.set_defaults(func=_run)


_OUTPUT = (
    "a .m4b file with chapter marks, an .epub with text that lights up as it is read, or a folder for one file per "
    "chapter (--format)"
)
_TEXT = {
    "list": switch("show the chapters with their characters and minutes, and speak nothing"),
    "chapters": flag("speak these chapters of the list only, such as 3-7,9", metavar="NUMBERS"),
    "matter": flag(
        "auto: without contents, copyright, notes and index; body: without any front or back matter; all",
        default="auto",
        choices=MATTERS,
    ),
    "no_titles": switch("do not speak the titles of chapters"),
    "alt_text": switch("speak the descriptions of pictures"),
    "cleanup": {**CLEANUP["cleanup"], "default": STRUCTURED},
}
_AUDIO = {
    "loudness": flag(
        "of each chapter: acx (RMS -20 dB, peaks below -3 dB; the default), LUFS such as -18, or off",
        default="acx",
        metavar="TARGET",
    ),
    "pauses": flag(
        "seconds, such as heading=1,scene=2; others: paragraph, start and end (of a chapter)",
        metavar="NAME=SECONDS,...",
    ),
    "subtitles": flag("write subtitles beside the audio", choices=SUBTITLES),
    "words": switch("with --subtitles: the times of words, if the model knows them"),
    "narrator": flag("the name of the narrator in the tags"),
    "watermark": MARKS["watermark"],
    "format": flag("of files in a folder (default mp3)", default="mp3", choices=FOLDER_FORMATS),
}
_RUN = {
    "resume": switch("go on where an earlier run stopped"),
    "keep_parts": switch("keep OUTPUT.parts, the spoken pieces, when the book is complete"),
}
_VOICES = {
    "voices": flag("YAML file of voices for chapters and marked speakers", path, metavar="FILE"),
}
_PROOF = {
    "verify": switch(
        "transcribe each piece, speak the worst again, and write report.html and report.json"
    ),
    "retry_above": flag(f"WER above which a piece is spoken again (default {RETRY_ABOVE})", float),
    "recogniser": VERIFY["recogniser"],
}
_MANY = {
    "max_num_seqs": flag("pieces that the engine speaks at once", int, metavar="N"),
    "deterministic": switch("on CUDA, the same bytes in every run; slower"),
}


def _run(args: argparse.Namespace) -> int:
    load = run_options(args)
    from stentor.book import command

    return command.run(args, load)

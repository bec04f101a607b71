#!/usr/bin/env bash
# FFmpeg writes two lists of chapters into an m4b. Where the first chapter does not begin at 0, they disagree.
#
# Version: PyAV 18.1.0 (its wheel has FFmpeg 8), mutagen 1.48.1, 2026-11.
# Behaviour: the muxer of mp4 writes chapters twice, as Nero's `chpl` atom (a start for each) and as a QuickTime text
# track (a duration for each sample). Samples of a track follow each other, so the silence before the first chapter
# and the gap between two are lost there. FFmpeg reads the track and so reports chapters of 0 to 3 s and 3 to 3.5 s, where
# 1 to 2 s and 3 to 3.5 s were written. mutagen reads the atom and reports starts of 1 and 3 s. Nothing warns. FLAC takes
# the same chapters and has none.
# The usual guess: what set_chapters takes is what every player shows, or an error.
# Why it matters: a book whose chapters begin behind a title or a pause is cut at other places by players of either kind.
# `stentor book` gives the silence around a chapter to the chapter, so that each begins where the one before ends.
#
# Output seen:
#   FFmpeg's list: 0-3 late, 3-3.5 gap
#   Nero's list: 1 late, 3 gap
#   FLAC's list: none
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check av==18.1.0 mutagen==1.48.1 numpy==2.4.6
cd "$folder"
"$folder/venv/bin/python" - <<'PYTHON'
import sys
from fractions import Fraction

import av
import mutagen.mp4
import numpy as np

SECOND = av.AudioFrame.from_ndarray(np.zeros((1, 24000), np.int16), format="s16", layout="mono")
SECOND.sample_rate = 24000
CHAPTERS = [
    {"id": at, "start": start, "end": end, "time_base": Fraction(1, 1000), "metadata": {"title": title}}
    for at, (start, end, title) in enumerate(((1000, 2000, "late"), (3000, 3500, "gap")))
]


def write(path: str, format: str, codec: str) -> None:
    with av.open(path, "w", format=format) as container:
        stream = container.add_stream(codec, rate=24000, layout="mono")
        container.set_chapters(CHAPTERS)
        for at in range(5):
            SECOND.pts = at * 24000
            for packet in stream.encode(SECOND):
                container.mux(packet)
        for packet in stream.encode(None):
            container.mux(packet)


def by_ffmpeg(path: str) -> str:
    with av.open(path) as container:
        seconds = [
            (float(each["start"] * each["time_base"]), float(each["end"] * each["time_base"]), each["metadata"]["title"])
            for each in container.chapters()
        ]
    return ", ".join(f"{start:g}-{end:g} {title}" for start, end, title in seconds) or "none"


write("book.m4b", "mp4", "aac")
write("book.flac", "flac", "flac")
seen = (
    by_ffmpeg("book.m4b"),
    ", ".join(f"{each.start:g} {each.title}" for each in mutagen.mp4.MP4("book.m4b").chapters),
    by_ffmpeg("book.flac"),
)
for name, chapters in zip(("FFmpeg's", "Nero's", "FLAC's"), seen):
    print(f"{name} list: {chapters}")
sys.exit(seen != ("0-3 late, 3-3.5 gap", "1 late, 3 gap", "none"))
PYTHON

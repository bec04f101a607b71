"""Write docs/audio_files.md: what stentor makes of audio files of all kinds, and what readers make
of its answers: `python -m scripts.audio_table`. Chromium is a reader where it is installed.
"""

from __future__ import annotations

import base64
import io
import json
import re
import shutil
import subprocess
import tempfile
from contextlib import suppress
from pathlib import Path

import av
import mutagen
import soundfile

from stentor.audio import Reference, load
from stentor.errors import InvalidRequest
from stentor.output.encode import CONTAINERS, encoder, legal_rate
from stentor.server.errors import ApiError
from stentor.server.voices.references import decode
from tests.helpers.audio_kinds import KINDS, SECONDS, Kind, tone

PAGE = Path(__file__).resolve().parents[1] / "docs" / "audio_files.md"
CHROMIUM_TRIES = 9
RATE = 24_000
LONGEST = 30.0
STEP = 480  # samples of a chunk of the answer
HEAD = """# Audio files

`python -m scripts.audio_table` generates this page: it writes each file with libsndfile or FFmpeg
and reads it in Python and on the server. `tests/test_audio_files.py` checks every row.

## Recordings that stentor reads

Python, the command line and the server use the same decoder: libsndfile for wav and related
formats, and FFmpeg (PyAV) for all others. Without PyAV, they read only wav and related formats,
flac, ogg and mp3. Only the first audio stream is decoded, without pictures and video. A file can
have up to 8 channels at 1 to 192 kHz. Channels are averaged, or reduced to the loudest one if they
cancel out. A DC offset does not count as sound.

"""
ANSWERS = """
## Responses in every format

A streamed response of {count} samples at {rate} Hz, in chunks of 20 ms, decoded by four readers.
The table shows samples at the response's rate. mutagen's length in seconds is converted to samples.

"""
NOTES = """
mp3 has a delay of 1,105 samples, which a stream's header cannot state, and pads its last frame.
AAC has a delay of 1,024 samples and pads its last frame. Opus states both, and readers remove them.
libsndfile drops the last frames of a FLAC whose header states no length. ulaw and alaw are at
8 kHz. A dash means that the reader does not support the format, or that the response does not state
a length. Chromium decodes with `decodeAudioData` at the response's rate.
"""
READER_PAGE = """<script>
const files = FILES
async function read(file) {
  const bytes = Uint8Array.from(atob(file.data), letter => letter.charCodeAt(0))
  const context = new OfflineAudioContext(1, 1, file.rate)
  try { return (await context.decodeAudioData(bytes.buffer)).length } catch { return null }
}
Promise.all(files.map(read)).then(counts => { document.title = JSON.stringify(counts) })
</script>"""


def answer(kind: Kind, server: bool) -> str:
    """The seconds that a door reads, or why it refuses the file."""
    data = kind.make()
    try:
        if server:
            samples, rate = decode(data, "ref_audio", LONGEST)
        else:
            recording = load(Reference(data), "reference", (0.0, LONGEST))
            samples, rate = recording.samples, recording.rate
    except (ApiError, InvalidRequest) as e:
        return "refused: " + str(e).split(": ", 1)[1].replace("the given file ", "").split(" (")[0]
    return f"{len(samples) / rate:.3f} s"


def streamed(format: str) -> tuple[bytes, int]:
    """An answer and its rate."""
    rate = legal_rate(format, RATE)
    samples = tone(rate)[:, 0]
    encoding = encoder(format, rate, False)
    parts = [encoding.feed(samples[i : i + STEP]) for i in range(0, len(samples), STEP)]
    return b"".join((*parts, encoding.finish())), rate


def by_soundfile(data: bytes, rate: int) -> int | None:
    try:
        file = soundfile.SoundFile(io.BytesIO(data))
    except soundfile.LibsndfileError:
        return None
    frames = 0
    with file, suppress(soundfile.LibsndfileError):
        while len(block := file.read(1024)):
            frames += len(block)
    return frames * rate // file.samplerate


def by_ffmpeg(data: bytes, rate: int) -> int | None:
    try:
        with av.open(io.BytesIO(data)) as file:
            count = sum(frame.samples for frame in file.decode(audio=0))
            return count * rate // file.streams.audio[0].rate
    except av.error.FFmpegError:
        return None


def by_mutagen(data: bytes, rate: int) -> int | None:
    try:
        file = mutagen.File(io.BytesIO(data))
    except mutagen.MutagenError:
        return None
    length = getattr(getattr(file, "info", None), "length", None)
    if not length or length > 1000:  # the length of a stream
        return None
    return round(length * rate)


def by_chromium(files: list[tuple[bytes, int]]) -> list[int | None]:
    """Samples that Chromium decodes of each file."""
    chromium = shutil.which("chromium")
    if chromium is None:
        return [None] * len(files)
    texts = [{"data": base64.b64encode(data).decode(), "rate": rate} for data, rate in files]
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder) / "page.html"
        page.write_text(READER_PAGE.replace("FILES", json.dumps(texts)), encoding="utf-8")
        command = [chromium, "--headless", "--no-sandbox", "--disable-gpu", "--dump-dom"]
        command += ["--virtual-time-budget=20000", f"--user-data-dir={folder}/profile"]
        for _ in range(CHROMIUM_TRIES):  # its virtual time may end before the decoders do
            process = subprocess.run(
                [*command, page.as_uri()], capture_output=True, text=True, check=True
            )
            title = re.search("<title>(.*?)</title>", process.stdout)
            if title is not None:
                counts: list[int | None] = json.loads(title[1])
                return counts
    raise RuntimeError("Chromium decoded nothing")


def cell(count: int | None, expected: int) -> str:
    if count is None:
        return "-"
    if count == expected:
        return f"{count:,}"
    return f"{count:,} ({count - expected:+,})"


def recordings() -> str:
    lines = ["| file | holds | Python, command line | server |", "|---|---|---|---|"]
    for kind in KINDS:
        holds = f"{kind.parts * SECONDS:g} s" if kind.readable else ""
        python = answer(kind, server=False)
        lines.append(f"| {kind.name} | {holds} | {python} | {answer(kind, server=True)} |")
    return "\n".join(lines) + "\n"


def answers() -> str:
    files = [(name, *streamed(name)) for name in CONTAINERS]
    readable = [(data, rate) for name, data, rate in files if not CONTAINERS[name].plain]
    chromium = iter(by_chromium(readable))
    lines = [
        "| format | samples | soundfile | FFmpeg | mutagen | Chromium |",
        "|---|---|---|---|---|---|",
    ]
    for name, data, rate in files:
        expected = int(SECONDS * rate)
        if CONTAINERS[name].plain:
            count = len(data) * 8 // CONTAINERS[name].bits
            lines.append(f"| {name} | {expected:,} | {cell(count, expected)} by size | | | |")
            continue
        counts = (
            by_soundfile(data, rate),
            by_ffmpeg(data, rate),
            by_mutagen(data, rate),
            next(chromium),
        )
        cells = " | ".join(cell(count, expected) for count in counts)
        lines.append(f"| {name} | {expected:,} | {cells} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    head = ANSWERS.format(count=f"{int(SECONDS * RATE):,}", rate=RATE)
    PAGE.write_text(HEAD + recordings() + head + answers() + NOTES, encoding="utf-8")
    print(PAGE)


if __name__ == "__main__":
    main()

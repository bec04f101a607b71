"""Formats, each as a stream of bytes or as a whole file. PyAV writes mp3, flac, opus and aac.

The length of a stream is not known when it begins. A wav header then has 0xFFFFFFFF, as FFmpeg's
and OpenAI's do, mp3 has no Xing header, and flac has 0 samples, which means unknown (RFC 9639).
The audio frames are the same either way.

Each container can carry a comment: of wav in a LIST INFO chunk before the audio, of mp3 and aac in
an ID3v2 tag at the head, of flac and ogg among the Vorbis comments, of m4a in its moov. Without
one, none of these is written.

A saved stream with 0xFFFFFFFF is read to its end by FFmpeg, libsndfile, Python's wave and scipy,
and the first two report its true duration. With 0, all but FFmpeg read nothing. A wav beyond 4 GiB
keeps the header of a stream.

Streams of the same format may be joined byte by byte. Each Ogg stream therefore has a serial number
of its own.
"""

from __future__ import annotations

import importlib.util
import io
import os
import struct
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import IO, Any, Protocol

import numpy as np
import soundfile

from stentor.output import g711
from stentor.output.effects import pcm16
from stentor.output.tags import NO_TAGS, ChapterMark, Picture, Tags

UNKNOWN = 0xFFFFFFFF  # as a length in a wav header
LAWS = ("ulaw", "alaw")
LIBSNDFILE = ("flac", "mp3")  # what it writes where PyAV is missing
TELEPHONE = (8000,)
MPEG = (8000, 11025, 12000, 16000, 22050, 24000, 32000, 44100, 48000)


@dataclass(frozen=True)
class Container:
    """How one format is written.

    rates: Hz that it carries, () for any. bits: of a sample. sized: its header states the length,
    which a stream has to leave open. plain: samples without a header, so that parts are files too.
    commented: muxer options with a comment.
    """

    media_type: str
    rates: tuple[int, ...] = ()
    muxer: str = ""
    codec: str = ""
    bit_rate: int | None = None
    streamed: Mapping[str, str] = field(default_factory=dict)  # muxer options
    complete: Mapping[str, str] = field(default_factory=dict)
    commented: Mapping[str, str] = field(default_factory=dict)
    codec_options: Mapping[str, str] = field(default_factory=dict)
    bits: int = 16
    sized: bool = False
    plain: bool = False


CONTAINERS = {
    "wav": Container("audio/wav", sized=True),
    "pcm": Container("audio/pcm", plain=True),
    "mp3": Container(
        "audio/mpeg",
        MPEG,
        "mp3",
        "libmp3lame",
        64_000,
        {"write_xing": "0", "id3v2_version": "0", "flush_packets": "1"},
        {"write_xing": "1", "id3v2_version": "0"},
        {"id3v2_version": "3"},
        # each frame is complete by itself: streams start 30 ms earlier and can be joined
        codec_options={"reservoir": "0"},
    ),
    "flac": Container("audio/flac", (), "flac", "flac", None, {"flush_packets": "1"}, sized=True),
    "opus": Container(
        "audio/ogg",
        (8000, 12000, 16000, 24000, 48000),
        "ogg",
        "libopus",
        48_000,
        {"page_duration": "20000", "flush_packets": "1"},  # a page per packet, else nothing streams
        {"page_duration": "20000"},
        codec_options={"frame_duration": "20"},
    ),
    "aac": Container(
        "audio/aac",
        MPEG,
        "adts",
        "aac",
        64_000,
        {"flush_packets": "1"},
        commented={"write_id3v2": "1"},
    ),
    "ulaw": Container("audio/basic", TELEPHONE, bits=8, plain=True),
    "alaw": Container("audio/x-alaw-basic", TELEPHONE, bits=8, plain=True),
}


FILES = {
    **CONTAINERS,
    "ogg": Container("audio/ogg", MPEG),
    "m4a": Container("audio/mp4", MPEG, "ipod", "aac", 64_000),
    # not "ipod", for which PyAV refuses a picture
    "m4b": Container("audio/mp4", MPEG, "mp4", "aac", 64_000, complete={"brand": "M4B "}),
}
"""Formats of files, by suffix. The last three are not streamed."""
TITLE_BYTES = 255
"""Most bytes of a chapter's title in an m4b. FFmpeg cuts a longer one inside a character, and then
mutagen refuses the file."""
PICTURES = {"jpeg": "mjpeg", "png": "png"}
"""Codecs of pictures."""


def legal_rate(format: str, rate: int) -> int:
    """The rate at which a format carries audio of `rate` Hz: its own, else the next above, else the
    highest."""
    rates = FILES[format].rates
    if not rates or rate in rates:
        return rate
    return min((r for r in rates if r > rate), default=rates[-1])


class Encoder(Protocol):
    """float32 samples [n] in, bytes out."""

    def feed(self, samples: np.ndarray) -> bytes: ...

    def finish(self) -> bytes: ...


def serial_number(seed: int, text: str) -> int:
    """Return the serial number of an Ogg stream, 1 to 2^31 - 1: the same for the same seed and
    text."""
    content = f"{seed} {text}".encode("utf-8", "surrogatepass")
    return zlib.crc32(content) % (2**31 - 1) + 1


def encoder(
    format: str,
    rate: int,
    whole: bool,
    bit_rate: int | None = None,
    comment: str | None = None,
    serial: int = 1,
) -> Encoder:
    """Return an encoder of samples at `rate` Hz.

    whole: nothing is returned before `finish`, which returns a file with a complete header.
    bit_rate: bits per second of a format that has one, in place of its default. comment: ASCII, for
    a format that has room for it. serial: of an Ogg stream (`serial_number`).
    """
    if format == "pcm":
        return Pcm()
    if format in LAWS:
        return G711(format)
    if format == "wav":
        if whole:
            return WholeWav(rate, comment)
        return Wav(rate, comment)
    container = CONTAINERS[format]
    if bit_rate is not None:
        container = replace(container, bit_rate=bit_rate)
    return Compressed(container, rate, whole, comment=comment, serial=serial)


def file_encoder(
    format: str,
    rate: int,
    file: IO[bytes],
    comment: str | None = None,
    serial: int = 1,
    tags: Tags = NO_TAGS,
) -> Encoder:
    """Return an encoder that writes into `file`, which can be sought, as it is fed. `feed` and
    `finish` return nothing.

    libsndfile writes ogg (Vorbis), and flac and mp3 where PyAV is missing. ImportError for formats
    that need PyAV. tags: of a format that PyAV writes.
    """
    if format == "pcm":
        return FilePlain(Pcm(), file)
    if format in LAWS:
        return FilePlain(G711(format), file)
    if format == "wav":
        return WholeWav(rate, comment, file)
    if format == "ogg" or (format in LIBSNDFILE and importlib.util.find_spec("av") is None):
        return SndFile(format, rate, file, comment)
    return Compressed(FILES[format], rate, True, file, comment, serial, tags)


def wav_header(rate: int, data_bytes: int | None, comment: str | None = None) -> bytes:
    """The header of mono 16-bit audio. data_bytes: None for a stream whose length is not known."""
    info = b""
    if comment is not None:
        info = _info(comment)
    riff = data = UNKNOWN
    if data_bytes is not None and 36 + len(info) + data_bytes < UNKNOWN:  # lengths have 32 bits
        riff = 36 + len(info) + data_bytes
        data = data_bytes
    head = struct.pack(
        "<4sI4s4sIHHIIHH", b"RIFF", riff, b"WAVE", b"fmt ", 16, 1, 1, rate, 2 * rate, 2, 16
    )
    return head + info + struct.pack("<4sI", b"data", data)


def _info(comment: str) -> bytes:
    """A LIST INFO chunk with a comment."""
    text = comment.encode("ascii") + b"\0"
    text += b"\0" * (len(text) % 2)
    return struct.pack("<4sI4s4sI", b"LIST", 12 + len(text), b"INFO", b"ICMT", len(text)) + text


class Pcm:
    """Signed 16-bit little-endian, no header."""

    def feed(self, samples: np.ndarray) -> bytes:
        return pcm16(samples).tobytes()

    def finish(self) -> bytes:
        return b""


class G711:
    """One byte per sample, no header. law: "ulaw" or "alaw"."""

    def __init__(self, law: str) -> None:
        self.codes = g711.codes(law)

    def feed(self, samples: np.ndarray) -> bytes:
        return self.codes[pcm16(samples).view(np.uint16)].tobytes()

    def finish(self) -> bytes:
        return b""


class Wav(Pcm):
    """A wav whose header goes out with the first samples."""

    def __init__(self, rate: int, comment: str | None = None) -> None:
        self.header = wav_header(rate, None, comment)

    def feed(self, samples: np.ndarray) -> bytes:
        data = super().feed(samples)
        if not data:
            return b""
        header, self.header = self.header, b""
        return header + data

    def finish(self) -> bytes:
        header, self.header = self.header, b""
        return header


class FilePlain:
    """Samples without header, in a file."""

    def __init__(self, encoder: Encoder, file: IO[bytes]) -> None:
        self.encoder = encoder
        self.file = file

    def feed(self, samples: np.ndarray) -> bytes:
        self.file.write(self.encoder.feed(samples))
        return b""

    def finish(self) -> bytes:
        return b""


class WholeWav:
    """A wav with its length in the header. file: where it is written, in place of the bytes from
    `finish`."""

    def __init__(
        self, rate: int, comment: str | None = None, file: IO[bytes] | None = None
    ) -> None:
        self.rate = rate
        self.comment = comment
        self.file = io.BytesIO() if file is None else file
        self.header_bytes = self.file.write(wav_header(rate, None, comment))

    def feed(self, samples: np.ndarray) -> bytes:
        self.file.write(pcm16(samples).tobytes())
        return b""

    def finish(self) -> bytes:
        size = self.file.tell() - self.header_bytes
        self.file.seek(0)
        self.file.write(wav_header(self.rate, size, self.comment))
        if isinstance(self.file, io.BytesIO):
            return self.file.getvalue()
        return b""


class SndFile:
    """A file that libsndfile writes."""

    def __init__(self, format: str, rate: int, file: IO[bytes], comment: str | None = None) -> None:
        self.file = soundfile.SoundFile(
            file, "w", samplerate=rate, channels=1, format=format.upper()
        )
        if comment is not None:
            self.file.comment = comment

    def feed(self, samples: np.ndarray) -> bytes:
        # not the floats: libsndfile would floor them for 16 bits
        self.file.write(pcm16(samples))
        return b""

    def finish(self) -> bytes:
        self.file.close()
        return b""


class _Sink(io.RawIOBase):
    """The file that PyAV writes a stream to. Bytes are taken out as they are written, so none can
    be changed later."""

    def __init__(self) -> None:
        self.bytes = bytearray()

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self.bytes += bytes(data)
        return len(data)

    def take(self) -> bytes:
        out = bytes(self.bytes)
        self.bytes.clear()
        return out


@contextmanager
def _one_cpu() -> Iterator[None]:
    """This thread on one CPU, where the system can do that.

    With the first frame PyAV makes a filter graph, for which FFmpeg starts a thread per CPU that it
    sees. They have nothing to do, and live until Python collects the encoder as garbage. PyAV has
    no setting for them.
    """
    pin = getattr(os, "sched_setaffinity", None)
    if pin is None:
        yield
        return
    cpus = os.sched_getaffinity(0)
    pin(0, {min(cpus)})
    try:
        yield
    finally:
        pin(0, cpus)


class Compressed:
    """mp3, flac, opus, aac, ogg, m4a and m4b. file: where a whole file is written, in place of the
    bytes from `finish`."""

    def __init__(
        self,
        container: Container,
        rate: int,
        whole: bool,
        file: IO[bytes] | None = None,
        comment: str | None = None,
        serial: int = 1,
        tags: Tags = NO_TAGS,
    ) -> None:
        import av  # FFmpeg: large, and pcm and wav do not need it
        from av.audio.stream import AudioStream

        self.rate = rate
        self.whole = whole
        self.sink: _Sink | io.BytesIO | IO[bytes] = file or (io.BytesIO() if whole else _Sink())
        options = {"fflags": "bitexact"}  # no random serials, no dates
        options |= container.complete if whole else container.streamed
        words = dict(tags.values)
        if comment is not None:
            words["comment"] = comment
        if words:
            options |= container.commented
        if container.muxer == "ogg":
            options["serial_offset"] = str(serial)
        self.out = av.open(self.sink, "w", format=container.muxer, options=options)
        self.out.metadata.update(words)
        stream = self.out.add_stream(
            container.codec, rate=rate, options=dict(container.codec_options)
        )
        assert isinstance(stream, AudioStream)
        stream.layout = "mono"
        if container.bit_rate is not None:
            stream.bit_rate = container.bit_rate
        self.stream = stream
        self.position = 0
        if tags.picture is not None:
            self._add_picture(tags.picture)

    def mark_chapters(self, marks: Sequence[ChapterMark]) -> None:
        """Note the chapters of the file, before `finish`."""
        self.out.set_chapters(
            [
                {
                    "id": at,
                    "start": round(mark.start * 1000),
                    "end": round(mark.end * 1000),
                    "time_base": Fraction(1, 1000),
                    "metadata": {"title": _clipped(mark.title)},
                }
                for at, mark in enumerate(marks)
            ]
        )

    def _add_picture(self, picture: Picture) -> None:
        from av.packet import Packet
        from av.stream import Disposition

        width, height = _size(picture)
        stream = self.out.add_mux_stream(PICTURES[picture.format], width=width, height=height)
        stream.disposition = Disposition.attached_pic
        stream.time_base = Fraction(1, 1000)
        packet = Packet(picture.data)
        packet.stream = stream
        packet.time_base = stream.time_base
        packet.pts = packet.dts = 0
        packet.is_keyframe = True
        self.out.start_encoding()
        self.out.mux(packet)

    def feed(self, samples: np.ndarray) -> bytes:
        if not len(samples):
            return b""
        from av.audio.frame import AudioFrame

        frame = AudioFrame.from_ndarray(pcm16(samples)[None], format="s16", layout="mono")
        frame.sample_rate = self.rate
        frame.pts = self.position
        with nullcontext() if self.position else _one_cpu():
            packets = self.stream.encode(frame)
        self.position += len(samples)
        self.out.mux(packets)
        return self._taken()

    def finish(self) -> bytes:
        if not self.position:
            self.feed(np.zeros(1, np.float32))  # a container without a frame is not a valid file
        self.out.mux(self.stream.encode(None))
        self.out.close()
        if isinstance(self.sink, io.BytesIO):
            return self.sink.getvalue()
        return self._taken()

    def _taken(self) -> bytes:
        if isinstance(self.sink, _Sink):
            return self.sink.take()
        return b""


def _clipped(title: str) -> str:
    """A title of at most TITLE_BYTES, cut between characters."""
    return title.encode()[:TITLE_BYTES].decode(errors="ignore")


def is_readable(picture: Picture) -> bool:
    """Whether a picture can be a cover."""
    try:
        _size(picture)
    except ValueError:
        return False
    return True


def _size(picture: Picture) -> tuple[int, int]:
    """The width and height of a picture. ValueError for one that is damaged."""
    import av

    try:
        with av.open(io.BytesIO(picture.data), "r", format=f"{picture.format}_pipe") as file:
            frame = next(file.decode(video=0))
    except (av.FFmpegError, StopIteration) as e:
        raise ValueError(f"the picture is damaged: {e}") from e
    return frame.width, frame.height

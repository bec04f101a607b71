"""Containers of audio files, recognised by their first bytes and named as FFmpeg names them.

FFmpeg's own detection is never used: it includes playlists, which open other files.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from stentor.audio.input_file import InputFile

ID3_HEADER = 10  # bytes
MAX_TAGS = 8  # ID3 tags before the audio
SEARCH_BYTES = 1 << 16  # in which the first frame of a stream without a container is searched
MIN_FRAMES = 3  # that follow each other in a stream, unless the file ends with one
MAX_FRAME_BYTES = 1 << 13  # of AAC, whose frames are the largest

SIGNATURES = (
    (0, b"fLaC", "flac"),
    (0, b"OggS", "ogg"),
    (0, b"RF64", "wav"),
    (0, b"RIFX", "wav"),
    (0, b"riff\x2e\x91\xcf\x11", "w64"),
    (0, b"FORM", "aiff"),
    (0, b".snd", "au"),
    (0, b"caff", "caf"),
    (0, b"\x1a\x45\xdf\xa3", "matroska"),  # also webm
    (0, b"#!AMR", "amr"),
    (0, b"\x30\x26\xb2\x75\x8e\x66\xcf\x11", "asf"),  # wma
    (0, b"wvpk", "wv"),
    (0, b"TTA1", "tta"),
    (0, b"FLV\x01", "flv"),
    (0, b"\x0b\x77", "ac3"),
    (4, b"ftyp", "mp4"),
    (4, b"moov", "mp4"),
    (4, b"mdat", "mp4"),
    (4, b"wide", "mp4"),
    (8, b"WAVE", "wav"),
)
TS_PACKET = 188  # bytes of MPEG-TS
TS_SYNC = b"G"

# kbit/s of MPEG audio by the index in a frame's header
LAYER_2_KBIT = (0, 32, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320, 384)
LAYER_3_KBIT = (0, 32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320)
MPEG_2_KBIT = (0, 8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160)
MPEG_1_HZ = (44_100, 48_000, 32_000)


def container_of(file: InputFile) -> str | None:
    """Return FFmpeg's name of the container of an open file, None for unknown contents.

    Frames of mp3, AAC and FLAC are found behind bytes that a cut or a program left in front.
    """
    start = _end_of_tags(file)
    file.seek(start)
    head = file.read(SEARCH_BYTES + MIN_FRAMES * MAX_FRAME_BYTES)
    for offset, signature, name in SIGNATURES:
        if head[offset:].startswith(signature):
            return name
    if all(head[i * TS_PACKET :].startswith(TS_SYNC) for i in range(MIN_FRAMES)):
        return "mpegts"
    codec = _first_codec(head)
    if codec is None and (start or head.startswith(b"\xff")):
        return "mp3"  # the usual owner of ID3 tags, which may be padded
    return codec


def _end_of_tags(file: InputFile) -> int:
    """The position behind ID3v2 tags."""
    start = 0
    for _ in range(MAX_TAGS):
        file.seek(start)
        head = file.read(ID3_HEADER)
        if len(head) < ID3_HEADER or head[:3] != b"ID3":
            break
        size = 0
        for byte in head[6:]:
            size = (size << 7) | (byte & 127)
        start += ID3_HEADER + size
    return start


def _first_codec(data: bytes) -> str | None:
    """The codec of the first frames in `data`."""
    at = data.find(b"\xff")
    while 0 <= at < SEARCH_BYTES:
        if _is_stream(data, at, _mpeg_frame_bytes):
            return "mp3"
        if _is_stream(data, at, _adts_frame_bytes):
            return "aac"
        if _is_flac_frame(data[at : at + 16]):
            return "flac"
        at = data.find(b"\xff", at + 1)
    return None


def _is_stream(data: bytes, at: int, frame_bytes: Callable[[bytes], int]) -> bool:
    """Whether frames follow each other from `at` on. frame_bytes: 0 for what is no header."""
    for number in range(MIN_FRAMES):
        if number and at == len(data):
            return True  # the last frame
        length = frame_bytes(data[at : at + 8])
        if not length:
            return False
        at += length
    return True


def _mpeg_frame_bytes(head: bytes) -> int:
    """Length of the MPEG audio frame (layer II or III) that begins with `head`, 0 for none."""
    if len(head) < 4 or head[1] & 0xE0 != 0xE0:
        return 0
    version = head[1] >> 3 & 3  # 3: MPEG-1, 2: MPEG-2, 0: MPEG-2.5
    layer = 4 - (head[1] >> 1 & 3)
    rate_index = head[2] >> 2 & 3
    kbit_index = head[2] >> 4
    if version == 1 or layer not in (2, 3) or rate_index == 3 or kbit_index in (0, 15):
        return 0

    padding = head[2] >> 1 & 1
    shift = {3: 0, 2: 1, 0: 2}[version]
    rate = MPEG_1_HZ[rate_index] >> shift
    if shift:
        kbit = MPEG_2_KBIT[kbit_index]
    elif layer == 2:
        kbit = LAYER_2_KBIT[kbit_index]
    else:
        kbit = LAYER_3_KBIT[kbit_index]
    samples = 576 if shift and layer == 3 else 1152
    return samples * 125 * kbit // rate + padding


def _adts_frame_bytes(head: bytes) -> int:
    """Length of the AAC frame that begins with `head`, 0 for none."""
    if len(head) < 7 or head[1] & 0xF6 != 0xF0:
        return 0
    length = (head[3] & 3) << 11 | head[4] << 3 | head[5] >> 5
    if length <= 7:
        return 0
    return length


def _is_flac_frame(head: bytes) -> bool:
    """Whether `head` begins with the header of a FLAC frame, which has a checksum."""
    if len(head) < 16 or head[1] & 0xFE != 0xF8 or head[2] >> 4 == 0 or head[2] & 15 == 15:
        return False
    number_bytes = 1
    if head[4] & 0x80:  # coded as in UTF-8
        number_bytes = 8 - (~head[4] & 0xFF).bit_length()
    size_bytes = {6: 1, 7: 2}.get(head[2] >> 4, 0)
    rate_bytes = {12: 1, 13: 2, 14: 2}.get(head[2] & 15, 0)
    end = 4 + number_bytes + size_bytes + rate_bytes
    return _crc8(head[:end]) == head[end]


def _crc8(data: bytes) -> int:
    """The checksum of FLAC's frame headers (polynomial x^8 + x^2 + x + 1)."""
    crc = 0
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = (crc << 1) ^ (0x107 if crc & 0x80 else 0)
    return crc

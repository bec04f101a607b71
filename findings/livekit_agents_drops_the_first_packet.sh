#!/usr/bin/env bash
# livekit-agents 1.8.9 with PyAV: how much of a compressed answer its AudioStreamDecoder plays.
#
# Behaviour: speech plugins of LiveKit (openai.TTS, and all that pass FLAC or Ogg on) decode answers with
# livekit.agents.utils.codecs.AudioStreamDecoder. It opens the container with FFmpeg's `fflags=nobuffer`, which discards
# the packets that were read to find the stream's parameters instead of decoding them. The first packet is lost: 20 ms of
# Opus, a whole block of FLAC. The block is the encoder's choice: 2304 samples with FFmpeg (96 ms at 24 kHz), 4096 with
# libsndfile (171 ms), so the same speech loses more or less by what wrote the file. Opening the same bytes with
# PyAV's defaults loses nothing, and with LiveKit's `nobuffer` and its shortest probe the same block.
#
# The usual guess: FLAC is lossless and the safe choice, `nobuffer` only lowers the delay, and a clipped first word is the
# server's fault (or the model's).
#
# Output seen (2026-11-29):
#   flac by FFmpeg:      LiveKit lacks 96.0 ms, PyAV 0.0 ms, with nobuffer 96.0 ms
#   flac by libsndfile:  LiveKit lacks 170.7 ms, PyAV 0.0 ms, with nobuffer 170.7 ms
#   wav:                 LiveKit lacks 0.0 ms, PyAV 0.0 ms
#
# Why it matters: 100 to 170 ms is a consonant or a short word ("No."), at the start of each answer. Servers that
# serve LiveKit should answer with wav or pcm, or begin FLAC with a block of silence.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check livekit-agents==1.8.9 soundfile

cat > "$folder/decode.py" <<'PY'
import asyncio
import io
import sys

import av
import numpy as np
import soundfile
from livekit.agents.utils.codecs import AudioStreamDecoder

RATE = 24_000
t = np.arange(2 * RATE) / RATE
speech = (12_000 * np.sin(2 * np.pi * (200 + 400 * t) * t)).astype(np.int16)


def by_ffmpeg(codec: str, container: str) -> bytes:
    file = io.BytesIO()
    with av.open(file, "w", format=container) as output:
        stream = output.add_stream(codec, rate=RATE, layout="mono")
        frame = av.AudioFrame.from_ndarray(speech[None], format="s16", layout="mono")
        frame.sample_rate = RATE
        output.mux([*stream.encode(frame), *stream.encode(None)])
    return file.getvalue()


def by_libsndfile() -> bytes:
    file = io.BytesIO()
    soundfile.write(file, speech, RATE, format="FLAC", subtype="PCM_16")
    return file.getvalue()


def pyav(data: bytes, **options: str) -> int:
    with av.open(io.BytesIO(data), buffer_size=256, options=options) as file:
        return sum(frame.samples for frame in file.decode(audio=0))


async def livekit(data: bytes, media_type: str) -> int:
    decoder = AudioStreamDecoder(sample_rate=RATE, num_channels=1, format=media_type)
    decoder.push(data)
    decoder.end_input()
    samples = sum([frame.samples_per_channel async for frame in decoder])
    await decoder.aclose()
    return samples


def lacks(samples: int) -> float:
    return round(1000 * (len(speech) - samples) / RATE, 1)


seen = {}
for name, data, media_type in (
    ("flac by FFmpeg", by_ffmpeg("flac", "flac"), "audio/flac"),
    ("flac by libsndfile", by_libsndfile(), "audio/flac"),
    ("wav", by_ffmpeg("pcm_s16le", "wav"), "audio/wav"),
):
    lost = [lacks(asyncio.run(livekit(data, media_type))), lacks(pyav(data))]
    line = f"{name + ':':20} LiveKit lacks {lost[0]} ms, PyAV {lost[1]} ms"
    if media_type == "audio/flac":
        lost.append(lacks(pyav(data, fflags="nobuffer", probesize="32", analyzeduration="0")))
        line += f", with nobuffer {lost[2]} ms"
    seen[name] = lost
    print(line)
sys.exit(
    seen
    != {
        "flac by FFmpeg": [96.0, 0.0, 96.0],
        "flac by libsndfile": [170.7, 0.0, 170.7],
        "wav": [0.0, 0.0],
    }
)
PY
"$folder/venv/bin/python" "$folder/decode.py"

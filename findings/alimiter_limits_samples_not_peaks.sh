#!/usr/bin/env bash
# FFmpeg's alimiter holds samples at its limit, and the audio between them goes up to 3 dB above it.
#
# Version: PyAV 18.1.0 (its wheel has FFmpeg 8), 2026-11.
# Behaviour: at 24 kHz, the rate of most speech models, `alimiter=limit=-4 dB` on noise with a gain of 6 dB leaves a true
# peak (EBU R 128, by FFmpeg's own ebur128) of -0.6 dB: 3.4 dB above the limit. On speech it is 1.5 dB. The same limiter
# between two `aresample` filters, at four times the rate, leaves -2.9 dB, and as many samples as went in.
# The usual guess: a limit that is 1 dB below the target is enough for true peaks, as it is at 48 kHz with music.
# Why it matters: ACX refuses peaks above -3 dB, and lossy decoders make audible what lies between samples. `stentor book`
# limits at four times the rate (stentor/book/loudness.py).
#
# Output seen:
#   limit -4.00 dB, samples -4.00 dB, true peak -0.62 dB, 1440000 samples
#   limit -4.00 dB at 4 times the rate, true peak -2.93 dB, 1440000 samples
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check av==18.1.0 numpy==2.4.6
"$folder/venv/bin/python" - <<'PYTHON'
import sys

import av
import numpy as np
from av.filter import Graph

RATE = 24_000
LIMIT = 10 ** (-4 / 20)
LIMITER = ("alimiter", f"limit={LIMIT:.6f}:attack=5:release=50:level=false:latency=true")


def filtered(samples, *filters):
    """The samples behind filters in a row, and the metadata of the last frame."""
    graph = Graph()
    last = source = graph.add_abuffer(sample_rate=RATE, format="flt", layout="mono")
    for name, options in (*filters, ("aformat", f"sample_fmts=flt:sample_rates={RATE}"), ("abuffersink", None)):
        node = graph.add(name, options)
        last.link_to(node)
        last = node
    graph.configure()
    out, facts = [], {}

    def pull():
        while True:
            try:
                frame = last.pull()
            except (av.BlockingIOError, av.EOFError):
                return
            out.append(frame.to_ndarray()[0])
            facts.update(frame.metadata)

    for at in range(0, len(samples), RATE):
        frame = av.AudioFrame.from_ndarray(samples[None, at : at + RATE], format="flt", layout="mono")
        frame.sample_rate, frame.pts = RATE, at
        source.push(frame)
        pull()
    source.push(None)
    pull()
    return np.concatenate(out), facts


def true_peak(samples):
    _, facts = filtered(samples, ("ebur128", "peak=true:metadata=1:framelog=quiet"))
    return 20 * np.log10(float(facts["lavfi.r128.true_peak"]))


rng = np.random.default_rng(0)
loud = [rng.standard_normal(RATE) * (0.6 if at % 5 == 0 else 0.03) for at in range(60)]
noise = (np.concatenate(loud) * 10 ** (6 / 20)).astype(np.float32)
plain, _ = filtered(noise, LIMITER)
oversampled, _ = filtered(noise, ("aresample", str(4 * RATE)), LIMITER, ("aresample", str(RATE)))
highest = 20 * np.log10(np.abs(plain).max())
first, second = true_peak(plain), true_peak(oversampled)
print(f"limit -4.00 dB, samples {highest:.2f} dB, true peak {first:.2f} dB, {len(plain)} samples")
print(f"limit -4.00 dB at 4 times the rate, true peak {second:.2f} dB, {len(oversampled)} samples")
as_before = highest < -3.9 and first > -1.5 and second < -2.5 and len(plain) == len(oversampled) == len(noise)
sys.exit(not as_before)
PYTHON

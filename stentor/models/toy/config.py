"""Sizes of the toy."""

from __future__ import annotations

from stentor.layers.configs import StackConfig

HIDDEN = 32
LATENT = 4
CODES = 3
BOOK = 24
TEXT = 256
STACK = StackConfig(hidden=HIDDEN, ffn=48, layers=2, heads=4, kv_heads=2, head_dim=8, eps=1e-5)
HOP = 6
WINDOW = 5
MAX_TEXT = 512
CODEC_PREFIX = 2
HOPS = (4, 8)  # frames of the chunks of the codec that decodes from an utterance's beginning
AHEAD = 3  # frames behind a chunk that it looks at
OWED = 15  # samples that its audio is late
LONG_PREFIX = 11
LATE = 2  # samples that the audio of the toy with page sets by frame is late
# heads and their size, of the attention of given and made frames, which have two rows each
HEARD = (
    2,
    4,
)
SPEAKER = 3  # numbers of its conditions: per voice, and per frame of the prefix
TONE = 2

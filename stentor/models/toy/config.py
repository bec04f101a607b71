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
GRID = 4  # frames, of the codec that looks ahead
LOOKAHEAD = 3
DELAY = 2
LONG_PREFIX = 11
PAGES = 6  # of GRID frames each, that it keeps of a stream
LATE = 2  # samples that the audio of the toy with page sets by frame is late
HEARD = (
    2,
    4,
)  # heads and their size, of the attention of given and made frames, which have two rows each
SPEAKER = 3  # numbers of its conditions: per voice, and per frame of the prefix
TONE = 2

"""Sizes of the toy."""

from __future__ import annotations

from stentor.layers.configs import StackConfig

HIDDEN, LATENT, CODES, BOOK, TEXT = 32, 4, 3, 24, 256
STACK = StackConfig(hidden=HIDDEN, ffn=48, layers=2, heads=4, kv_heads=2, head_dim=8, eps=1e-5)
HOP, WINDOW, MAX_TEXT, CODEC_PREFIX = 6, 5, 512, 2
GRID, LOOKAHEAD, DELAY, LONG_PREFIX = 4, 3, 2, 11  # frames, of the codec that looks ahead
PAGES = 6  # of GRID frames each, that it keeps of a stream
LATE = 2  # samples that the audio of the toy with page sets by frame is late
HEARD = (2, 4)  # heads and their size, of the attention of given and made frames, which have two rows each
SPEAKER, TONE = 3, 2  # numbers of its conditions: per voice, and per frame of the prefix

"""The signs that Kokoro reads: phonemes of misaki, and punctuation. Their ids are those of v1.0."""

from __future__ import annotations

PAD = 0  # before and after each piece
MAX_SIGNS = 510  # of one piece: the language model has 512 positions

_SIGNS = {
    1: ";:,.!?",
    9: '—…"()“”',
    16: " \N{COMBINING TILDE}ʣʥʦʨᵝꭧAI",
    31: "O",
    33: "Q",
    35: "ST",
    39: "W",
    41: "Yᵊabcdef",  # "g" is read as ɡ
    50: "hijklmnopqrstuvwxyzɑɐɒæ",
    75: "βɔɕç",
    80: "ɖðʤə",
    85: "ɚɛɜ",
    90: "ɟ",
    92: "ɡ",
    99: "ɥ",
    101: "ɨɪʝ",
    110: "ɯɰŋɳɲɴø",
    118: "ɸθœ",
    123: "ɹ",
    125: "ɾɻ",
    128: "ʁɽʂʃʈʧ",
    135: "ʊʋ",
    138: "ʌɣɤ",
    142: "χʎ",
    147: "ʒʔ",
    156: "ˈˌː",
    162: "ʰ",
    164: "ʲ",
    169: "↓",
    171: "→↗↘",
    177: "ᵻ",
}
"""Signs of consecutive ids, by the first."""

IDS = {sign: first + at for first, signs in _SIGNS.items() for at, sign in enumerate(signs)}

"""Pocket-TTS (kyutai/pocket-tts): one latent per step of a small transformer. See
docs/models/pocket_tts.md."""

ARCHITECTURES = ()
DUMMIES = ("pocket-tts", "pocket-tts-24l", "pocket-tts-18m", "pocket-tts-7m", "pocket-tts-2m")
FILES = ()
TENSORS = ("flow_lm.bos_emb",)
FOLDERS = {
    "kyutai/pocket-tts": "languages/english",
    "kyutai/pocket-tts-without-voice-cloning": "languages/english",
}
UNUSED_FILES = ()
RELEASES = {
    "kyutai/pocket-tts": ("7 languages, one at a time", "cloning", 0.2, "CC-BY-4.0"),
    "kyutai/pocket-tts-without-voice-cloning": (
        "7 languages, one at a time",
        "named voices",
        0.2,
        "CC-BY-4.0",
    ),
}
ON_CPU = True

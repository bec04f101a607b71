"""Qwen3-TTS (Alibaba Qwen team, 2026): CustomVoice, VoiceDesign and Base, 0.6B and 1.7B, with the
12 Hz codec."""

ARCHITECTURES = ("qwen3_tts",)
DUMMIES = (
    "qwen3-tts-0.6b-customvoice",
    "qwen3-tts-0.6b-base",
    "qwen3-tts-1.7b-customvoice",
    "qwen3-tts-1.7b-voicedesign",
    "qwen3-tts-1.7b-base",
)
FILES = ()
TENSORS = ()
FOLDERS: dict[str, str] = {}
UNUSED_FILES = ()

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
RELEASES = {
    "Qwen/Qwen3-TTS-12Hz-0.6B-CustomVoice": ("10 languages", "named voices", 1.7, "Apache-2.0"),
    "Qwen/Qwen3-TTS-12Hz-0.6B-Base": ("10 languages", "cloning", 1.9, "Apache-2.0"),
    "Qwen/Qwen3-TTS-12Hz-1.7B-CustomVoice": ("10 languages", "named voices", 3.9, "Apache-2.0"),
    "Qwen/Qwen3-TTS-12Hz-1.7B-VoiceDesign": ("10 languages", "voice design", 3.9, "Apache-2.0"),
    "Qwen/Qwen3-TTS-12Hz-1.7B-Base": ("10 languages", "cloning", 4.1, "Apache-2.0"),
}

"""Phonon (gradium/phonon-31m-en): Pocket-TTS's shape with voices as latents. See
docs/models/phonon.md."""

ARCHITECTURES = ("gradium_phonon_tts",)
DUMMIES = ("phonon-31m", "phonon-40m")
FILES = ("default-voice.safetensors",)
TENSORS = ("flow_lm.condition_provider.conditioners.speaker_wavs.output_proj.weight",)
FOLDERS: dict[str, str] = {}
UNUSED_FILES = ("*.gguf", "*.zip")
RELEASES = {
    "gradium/phonon-31m-en": ("English", "named voices", 0.2, "Apache-2.0"),
    "gradium/phonon-40m-en": ("English", "named voices", 0.2, "CC-BY-NC-4.0"),
    "gradium/phonon-40m-multilingual": ("5 languages", "named voices", 0.2, "CC-BY-NC-4.0"),
}
ON_CPU = True

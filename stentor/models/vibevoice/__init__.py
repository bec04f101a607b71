"""VibeVoice (microsoft/VibeVoice-Realtime-0.5B, -1.5B and copies of 7B): a latent of 133 ms per
step. See docs/models/vibevoice.md."""

ARCHITECTURES = ("vibevoice_streaming", "vibevoice")
DUMMIES = ("vibevoice-realtime-0.5b", "vibevoice-1.5b", "vibevoice-7b")
FILES = ()
TENSORS = ()
FOLDERS: dict[str, str] = {}
UNUSED_FILES = ()
RELEASES = {
    "microsoft/VibeVoice-Realtime-0.5B": (
        "English",
        "shipped voices, live text",
        1.7,
        "MIT, its card asks for research use",
    ),
    "microsoft/VibeVoice-1.5B": (
        "English, Chinese",
        "cloning, dialogue of four speakers",
        5.0,
        "MIT, its card asks for research use",
    ),
}

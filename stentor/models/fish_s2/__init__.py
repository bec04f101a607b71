"""Fish Speech S2 Pro (fishaudio/s2-pro): a slow and a fast transformer over ten codebooks at 21.5
Hz."""

ARCHITECTURES = ("fish_qwen3_omni",)
DUMMIES = ("fish-s2-pro",)
FILES = ()
TENSORS = ()
FOLDERS: dict[str, str] = {}
UNUSED_FILES = ()
RELEASES = {
    "fishaudio/s2-pro": ("80 languages", "cloning, tags, dialogue", 9.7, "non-commercial"),
}

"""dots.tts (dots-studio): a flow head over patches of latents, with its own history. See
docs/models/dots_tts.md."""

ARCHITECTURES = ("dots_tts",)
DUMMIES = (
    "dots-tts",
    "dots-tts-mf",
    "dots-tts-mf-1step",
    "dots-tts-mf-2steps",
    "dots-tts-mf-2steps-stts",
)
FILES = ()
TENSORS = ()
FOLDERS: dict[str, str] = {}
UNUSED_FILES = ()
RELEASES = {
    "dots-studio/dots.tts-soar": ("24 languages", "cloning", 4.4, "Apache-2.0"),
    "dots-studio/dots.tts-mf": ("24 languages", "cloning", 4.4, "Apache-2.0"),
    "dots-studio/dots.tts-mf-2steps-stts": (
        "24 languages",
        "cloning, live text",
        4.4,
        "Apache-2.0",
    ),
}

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

"""The family that every engine test runs on: random weights, all the traits of real ones, nothing
to download."""

ARCHITECTURES = ("toy",)
DUMMIES = ("toy", "toy-utterance", "toy-words", "toy-window", "toy-frames")
FILES = ("toy.json",)
TENSORS = ()
FOLDERS: dict[str, str] = {}
UNUSED_FILES = ("toy.unused",)

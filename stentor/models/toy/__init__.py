"""The family that every engine test runs on: random weights, all the traits of real ones, nothing to download."""

ARCHITECTURES = ("toy",)
DUMMIES = ("toy", "toy-lookahead", "toy-whole", "toy-words", "toy-window")
FILES = ("toy.json",)
UNUSED_FILES = ("toy.unused",)

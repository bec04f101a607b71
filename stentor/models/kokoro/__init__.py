"""Kokoro-82M (hexgrad/Kokoro-82M): a piece of text in one go, in 54 voices. See
docs/models/kokoro.md."""

ARCHITECTURES = ()
DUMMIES = ("kokoro-82m",)
FILES = ("voices/af_heart.bin", "kokoro-v1_0.pth")
TENSORS = ()
FOLDERS: dict[str, str] = {}
UNUSED_FILES = ()
GRAPH = "model.onnx"
SHORT_NAME = "kokoro"
RELEASES = {
    "hexgrad/Kokoro-82M": ("9 languages", "54 voices and their mixes", 0.3, "Apache-2.0"),
}
ON_CPU = True

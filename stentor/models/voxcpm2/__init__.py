"""VoxCPM2 (openbmb): flow-matching patches of continuous latents over a causal backbone. See
docs/models/voxcpm2.md."""

ARCHITECTURES = ("voxcpm2",)
DUMMIES = ("voxcpm2",)
FILES = ()
TENSORS = ()
FOLDERS: dict[str, str] = {}
UNUSED_FILES = ()
RELEASES = {
    "openbmb/VoxCPM2": ("30 languages", "cloning, voice design", 4.5, "Apache-2.0"),
}

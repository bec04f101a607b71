"""CSM (sesame/csm-1b): a Llama backbone over text and frames, a depth decoder, and the Mimi codec at 12.5 Hz."""

ARCHITECTURES = ("csm",)
DUMMIES = ("csm-1b",)
FILES = ()
TENSORS = ()
FOLDERS: dict[str, str] = {}
UNUSED_FILES = ("ckpt.pt", "prompts/*", "transformers-*")
SEAM = 4

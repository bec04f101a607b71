"""The talker of Qwen3-Omni (Alibaba Qwen team, 2025), which speaks a text without the thinker."""

ARCHITECTURES = ("qwen3_omni_moe",)
DUMMIES = ("qwen3-omni-talker",)
FILES = ()
TENSORS = ()
FOLDERS: dict[str, str] = {}
UNUSED_FILES = ()
READS = ("talker.", "code2wav.", "thinker.model.embed_tokens.")
RELEASES = {
    "Qwen/Qwen3-Omni-30B-A3B-Instruct": ("10 languages", "named voices", 6.9, "Apache-2.0"),
}

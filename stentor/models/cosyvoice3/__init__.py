"""CosyVoice3 (FunAudioLLM/Fun-CosyVoice3-0.5B): one code per step, then a flow and a vocoder."""

ARCHITECTURES = ()
DUMMIES = ("cosyvoice3",)
FILES = ("cosyvoice3.yaml",)
TENSORS = ()
FOLDERS: dict[str, str] = {}
UNUSED_FILES = (
    "llm.rl.pt",
    "flow.decoder.estimator.*",
    "*.batch.onnx",
    "CosyVoice-BlankEN/model.safetensors",
)
RELEASES = {
    "FunAudioLLM/Fun-CosyVoice3-0.5B-2512": (
        "9 languages and Chinese dialects",
        "cloning, instructions",
        1.3,
        "Apache-2.0",
    ),
}

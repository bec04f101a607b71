"""Tiny checkpoints of the families, and a request of each in a slot, for tests on a GPU (or like one)."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from stentor import registry, request
from stentor.config import EngineConfig
from stentor.engine.memory import plan_memory
from stentor.engine.preparation import Preparation
from stentor.engine.running.codec_runner import CodecRunner
from stentor.engine.running.device import Device
from stentor.engine.running.model_runner import ModelRunner
from stentor.engine.scheduling.sequence import Sequence
from stentor.engine.voice import CodecPrimer, VoiceEncoder
from stentor.models.base import Prompt, SpeechModel
from stentor.models.info import SpeechRequest

FIXTURES = Path(__file__).parents[1] / "fixtures"
FAMILIES = ("qwen3_tts", "voxcpm2", "fish_s2")
EVERY = (*FAMILIES, "qwen3_omni_talker", "cosyvoice3")
"""For tests of a few seconds: the codec of the last one takes longer than those of the others together."""
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
WORDS = [
    "one",
    "two",
    "three",
    "four",
    "five",
    "six",
    "seven",
    "eight",
    "nine",
    "ten",
    "eleven",
    "twelve",
]
VOICE = {
    "qwen3_tts": {"voice": "serena"},
    "voxcpm2": {},
    "fish_s2": {},
    "cosyvoice3": {"voice": "flow"},
    "qwen3_omni_talker": {"voice": "ethan"},
    "dots_tts": {},
    "voxcpm2_window": {},
}
TEXT = "Hello there, one two three."


def checkpoint(family: str, folder: Path) -> Path:
    """Where the tiny checkpoint is; `folder` takes one that has to be made."""
    if family == "voxcpm2_window":
        return _in_window(folder)
    if family in ("fish_s2", "voxcpm2"):
        return FIXTURES / "fish_s2" / "checkpoint" if family == "fish_s2" else FIXTURES / "voxcpm2"
    if family == "cosyvoice3":
        from tests.fixtures.cosyvoice3 import tiny_cosyvoice3

        return tiny_cosyvoice3.write(folder)
    if family == "dots_tts":
        from tests.fixtures.dots_tts import tiny_dots_tts

        path = folder / "mf"
        return path if path.exists() else tiny_dots_tts.write(path, "mf")
    return _write(family, folder)


def _write(family: str, folder: Path) -> Path:
    if family in ("vibevoice", "vibevoice_dialogue"):
        from tests.fixtures.vibevoice import tiny_vibevoice

        write = tiny_vibevoice.write if family == "vibevoice" else tiny_vibevoice.write_dialogue
        return write(folder)
    if family == "phonon":
        from tests.fixtures.phonon import tiny_phonon

        return tiny_phonon.write(folder / "phonon")
    if family == "qwen3_omni_talker":
        from tests.fixtures.qwen3_omni import tiny_qwen3_omni

        return tiny_qwen3_omni.write(folder)
    from tests.fixtures.qwen3_tts import tiny_qwen3_tts

    tiny_qwen3_tts.write("custom_voice", folder)
    return folder


def _in_window(folder: Path) -> Path:
    """VoxCPM2 of which some heads say where in the text a frame is, and see the text around there only."""
    shutil.copytree(FIXTURES / "voxcpm2", folder, dirs_exist_ok=True)
    config = json.loads((folder / "config.json").read_text())
    heads = {"layers": [0, 2], "heads": 3, "behind": 0, "ahead": 2}
    config["stentor"] = {
        "alignment": heads,
        "text_frontend": "english-phonemes",
        "takes_instructions": False,
    }
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def reference_checkpoint(family: str, folder: Path) -> Path:
    """Write a tiny checkpoint of the kind that takes reference audio."""
    if family != "qwen3_tts":
        return checkpoint(family, folder)
    from tests.fixtures.qwen3_tts import tiny_qwen3_tts as tiny

    tiny.write("base", folder)
    return folder


class Bench:
    """A model on a device with its runners, and requests in its slots. Nothing is captured. load: load options."""

    def __init__(
        self,
        path: Path,
        device: str,
        dtype: torch.dtype,
        slots: int = 4,
        load: Mapping[str, Any] | None = None,
        **config: Any,
    ) -> None:
        """load: load options of the model."""
        self.where = Device(device)
        self.model: SpeechModel = registry.load(path, self.where.torch, dtype, load or {})
        settings = EngineConfig(max_num_seqs=slots, memory_gb=0.1, max_frames=64, **config)
        self.sizes = plan_memory(self.model, settings, self.where)
        self.runner = ModelRunner(self.model, self.sizes, settings, self.where)
        self.codec = CodecRunner(
            self.model, self.sizes, settings, self.where, self.runner.slots, self.runner.stream
        )
        self.encoder = VoiceEncoder(self.model, self.where, 64)
        self.primer = CodecPrimer(self.model, settings, self.where)
        self.pages = iter(range(self.sizes.pages))

    def capture(self) -> None:
        """Capture every graph, as an engine does."""
        self.runner.capture()
        self.codec.capture()
        self.primer.capture()

    def prompt(self, req: SpeechRequest) -> Prompt:
        """The prompt of a request, with the codec's state."""
        return Preparation(self.model, self.encoder, self.primer, req).wait()

    def admit(
        self, family: str, slot: int, seed: int = 5, text: str = TEXT, **options: Any
    ) -> tuple[Sequence, Prompt]:
        """A request's row is written; its prefill has been launched by nobody."""
        req = request.build(
            self.model.spec, text, options=options, seed=seed, **VOICE.get(family, {})
        )
        prompt = self.prompt(req)
        seq = Sequence(
            slot, prompt.length, 40, prompt.num_evals, 0, 0.1, True, slot=slot, num_scheduled=1
        )
        count = -(-(prompt.length + 40) // self.sizes.page_size)
        seq.pages = [next(self.pages) for _ in range(count)]
        self.write([(seq, prompt, seed)])
        return seq, prompt

    def write(self, new: list[tuple[Sequence, Prompt, int]]) -> None:
        """Everything that admission writes on the device."""
        self.runner.admit(new)
        self.codec.admit([(seq, prompt) for seq, prompt, _ in new])
        self.runner.set_pages([seq for seq, _, _ in new])

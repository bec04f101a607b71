"""Steps without values: a model on the meta device, a prefill's inputs, and a count of what would be launched."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from stentor import registry
from stentor.engine.running import step
from stentor.engine.running.kv_cache import PagedKV
from stentor.engine.running.prefill_batch import PrefillBatch
from stentor.engine.running.slot_table import SlotTable
from stentor.layers.types import NO_END, CodecCall, State, torch_dtype
from stentor.models.base import ModelSpec, PromptRows, SpeechModel
from stentor.models.codec_timing import UtteranceTiming
from tests.fixtures.cosyvoice3 import tiny_cosyvoice3
from tests.fixtures.dots_tts import tiny_dots_tts
from tests.fixtures.phonon import tiny_phonon
from tests.fixtures.pocket_tts import tiny_pocket_tts
from tests.fixtures.qwen3_omni import tiny_qwen3_omni
from tests.fixtures.qwen3_tts import tiny_qwen3_tts as tiny
from tests.fixtures.vibevoice import tiny_vibevoice

FIXTURES = Path(__file__).parents[1] / "fixtures"

FAMILIES = (
    "fish_s2",
    "voxcpm2",
    "custom_voice",
    "base",
    "cosyvoice3",
    "pocket_tts",
    "qwen3_omni_talker",
)
HOST_READS = (
    "_local_scalar_dense",
    "item",
    "nonzero",
    "equal",
    "masked_select",
    "_unique2",
    "is_nonzero",
    "unique_dim",
)


WRITERS = {
    "cosyvoice3": tiny_cosyvoice3.write,
    "phonon": tiny_phonon.write,
    "qwen3_omni_talker": tiny_qwen3_omni.write,
    "vibevoice": tiny_vibevoice.write,
    "vibevoice_dialogue": tiny_vibevoice.write_dialogue,
}


def checkpoint(family: str, folder: Path) -> Path:
    if family in ("custom_voice", "base"):
        tiny.write(family, folder)
        return folder
    if family in WRITERS:
        return WRITERS[family](folder)
    if family == "dots_tts":
        return tiny_dots_tts.write(folder / "mf", "mf")
    if family == "pocket_tts":
        return tiny_pocket_tts.write(folder, "lsd")
    return FIXTURES / "fish_s2" / "checkpoint" if family == "fish_s2" else FIXTURES / family


def load(family: str, folder: Path) -> SpeechModel:
    return registry.load(checkpoint(family, folder), torch.device("cpu"), torch.float32, {})


def codec_inputs(
    model: SpeechModel, rows: int, device: torch.device
) -> tuple[Tensor, State, CodecCall]:
    """Inputs for three frames, or for the first chunk of an utterance."""
    spec, codec = model.spec, model.codec
    timing = spec.codec_timing
    count = timing.needs(0, 0) if isinstance(timing, UtteranceTiming) else 3
    frames = torch.zeros(
        rows, count, *spec.frame.shape, dtype=torch_dtype(spec.frame.dtype), device=device
    )
    state = {n: c.rows(rows, device) for n, c in codec.columns.items()}
    at = torch.zeros(rows, dtype=torch.int64, device=device)
    call = CodecCall(at, torch.full_like(at, 3), torch.full_like(at, NO_END), count)
    return frames, state, call


def to_meta(thing: Any, seen: dict[int, Tensor]) -> None:
    """Replace every tensor that hangs on the project's objects and modules by one without values."""
    if id(thing) in seen or isinstance(thing, type):
        return
    seen[id(thing)] = torch.empty(0)
    attributes = vars(thing)
    groups = [attributes]
    if isinstance(thing, nn.Module):
        groups += [attributes["_parameters"], attributes["_buffers"], attributes["_modules"]]
    for group in groups:
        for name, value in list(group.items()):
            if isinstance(value, nn.Parameter):
                group[name] = nn.Parameter(value.detach().to("meta"), requires_grad=False)
            elif isinstance(value, Tensor):
                group[name] = value.detach().to("meta")
            elif hasattr(value, "__dict__") and type(value).__module__.startswith(
                ("stentor", "torch.nn")
            ):
                to_meta(value, seen)


def cache(spec: ModelSpec, slots: int, pages: int, device: torch.device) -> PagedKV:
    """Pages of 16 tokens, 8 for each request, and as many frames in each page set by frame."""
    frames = {
        name: PagedKV(kv, slots, 16 * pages, kv.rows, 129, device)
        for name, kv in spec.frame_kv.items()
    }
    return PagedKV(spec.kv, slots, pages, 16, 8, device, frames)


def prefill_batch(model: SpeechModel, device: str) -> PrefillBatch:
    spec = model.spec
    tokens, rows, frames = 12, 2, 3 if spec.gives_frames else 0

    def index(n: int) -> Tensor:
        return torch.zeros(n, dtype=torch.int64, device=device)

    given = spec.prompt_frame.rows(frames, torch.device(device))
    columns = {
        n: torch.zeros(tokens, *c.shape, dtype=torch_dtype(c.dtype), device=device)
        for n, c in spec.prompt_rows.items()
    }
    packed = {name: index(tokens) for name in ("row", "slot", "pos")}
    per_row = {name: index(rows) for name in ("idx", "last", "length", "pieces")}
    prompt = PromptRows(columns, given, index(frames))
    return PrefillBatch(
        **packed, **per_row, step=index(0), prompt=prompt, max_pages=2, max_seqlen=8
    )


def prefill(model: SpeechModel, slots: SlotTable, kv: PagedKV, batch: PrefillBatch) -> None:
    """The prompts of `batch`, and their frames 0."""
    step.prefill(model, slots, kv, batch)
    step.first_frame(model, slots, kv, batch.idx, batch.max_pages, model.spec.num_evals)


class Operations(TorchDispatchMode):
    """Counts operations that launch something, and refuses those that read a value on the host."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.overloadpacket.__name__
        assert name not in HOST_READS, f"{func} reads a value on the host"
        if name in ("index", "index_put", "index_put_"):
            masks = [i for i in args[1] if i is not None and i.dtype in (torch.bool, torch.uint8)]
            assert not masks, "an index by mask has a shape that depends on values"
            scalar = name != "index" and args[2].ndim == 0 and args[1][0].numel() > 1
            assert not scalar, "a number assigned through an index is copied from the host"
        returns_view = any(
            r.alias_info is not None and not r.alias_info.is_write for r in func._schema.returns
        )
        self.count += not returns_view and name not in (
            "empty",
            "empty_like",
            "empty_strided",
            "new_empty",
            "_unsafe_view",
        )
        return func(*args, **(kwargs or {}))

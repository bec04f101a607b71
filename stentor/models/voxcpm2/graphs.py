"""VoxCPM2 by graphs of onnxruntime (implements models.graph_model.GraphModel). `tools/graphs`
exports them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np

from stentor.graphs.rng import grid_normal, uniform
from stentor.graphs.sessions import GraphTable, Value, value_of
from stentor.graphs.tensors import TensorFile
from stentor.models.base import Prompted
from stentor.models.config_files import read_config
from stentor.models.graph_model import MASKED, GraphFrame, GraphRow, Reading, TextMasks
from stentor.models.option_names import check_load_options
from stentor.models.voxcpm2.config import VoxCPM2Config, parse, with_steps
from stentor.models.voxcpm2.prompt import VOICES, PromptBuilder, front_end_of, make_prompts
from stentor.models.voxcpm2.spec import make_spec
from stentor.models.voxcpm2.steps import euler
from stentor.models.voxcpm2.tokenizer import CharacterTokenizer
from stentor.text import reads
from stentor.text.front_end import Check

LOAD_OPTIONS = ("flow_steps",)
CODEC_FRAMES = 4
"""Frames of one codec call: more are no faster, and take 9 MB for each frame."""


class VoxCPM2Graphs(Prompted):
    """A loaded checkpoint. Frames are float32 patches [patch, feat]."""

    def __init__(
        self, c: VoxCPM2Config, prompts: PromptBuilder, table: GraphTable, eight_bits: bool
    ) -> None:
        """eight_bits: of the language models, the flow and the codec's first upsamplings."""
        self.prompts = prompts
        self.reads = reads(c.text_frontend)
        self.spec = make_spec(c, "float32", {})
        self.feat = c.feat
        self._shapes = table.codec_states
        self._past = [value_of(np.zeros((1, c.base.kv_heads, 0, c.base.head_dim), np.float32))]
        self._past *= 2 * self.spec.kv.layers
        self._past_names = [f"{part}{i}" for i in range(self.spec.kv.layers) for part in "kv"]
        self._state_names = [f"s{i}" for i in range(len(self._shapes))]
        self._zero = value_of(np.zeros(1, np.int64))
        self._one = value_of(np.ones(1, np.int64))
        self._schedules: dict[int, list[tuple[Value, Value]]] = {}
        self._lock = Lock()  # guards `_schedules`
        self._first_draws: np.ndarray | None = None
        if c.first_patch_seed is not None:
            self._first_draws = uniform(c.first_patch_seed, 0, self.spec.draws)

        files = {name: TensorFile(table.folder / name) for name in set(table.files.values())}
        # One by one, the largest first: what a session is made of is twice its size for a moment.
        self._codec = table.session("codec", files, eight_bits, convolutions=True)
        self._lm = table.session("lm", files, eight_bits)
        self._flow = table.session("flow", files, eight_bits)
        self._times = table.session("times", files, eight_bits=False)

    def speakable(self, text: str, check: Check) -> bool:
        return self.reads(text)

    # -- the language models --

    def read_prompt(self, row: GraphRow, inside: np.ndarray) -> Reading:
        prompt = row.prompt
        count = prompt.length
        place = np.zeros(count, np.int64)
        place[prompt.frame_at] = np.arange(1, len(prompt.frames) + 1)
        causal = value_of(np.triu(np.full((count, count), MASKED), 1))
        feeds = {
            "token": value_of(prompt.rows["token"]),
            "place": value_of(place),
            "patches": value_of(prompt.frames),
            "pos": value_of(np.arange(count)),
            "far": causal,
            "near": causal,
            "inside": value_of(inside),
        }
        return self._read(feeds, self._past)

    def read_frame(self, row: GraphRow, masks: TextMasks) -> Reading:
        feeds = {
            "token": self._zero,
            "place": self._one,
            "patches": value_of(row.previous[None]),
            "pos": value_of(np.array([row.positions])),
            "far": value_of(np.zeros((1, row.positions + 1), np.float32)),
            "near": value_of(masks.near[None]),
            "inside": value_of(masks.inside),
        }
        return self._read(feeds, row.memory)

    def _read(self, feeds: dict[str, Value], past: list[Value]) -> Reading:
        feeds |= zip(self._past_names, past, strict=True)
        mu, stop, attention, *memory = self._lm(feeds)
        return Reading((mu, stop), attention.numpy(), memory)

    # -- the flow --

    def emit(self, row: GraphRow, reading: Reading, u: np.ndarray) -> GraphFrame:
        mu, stop = reading.hidden
        if row.step == 0 and self._first_draws is not None:
            u = self._first_draws
        x = value_of(grid_normal(u, self.feat, row.columns["temperature"]))
        feeds = {
            "mu": mu,
            "cond": value_of(row.previous),
            "cfg": value_of(np.array([row.columns["cfg"]], np.float32)),
        }
        for time, delta in self._schedule(int(row.columns["flow_steps"])):
            (x,) = self._flow({**feeds, "x": x, "time": time, "dt": delta})
        return GraphFrame(x.numpy(), bool(stop.numpy() > 0))

    def _schedule(self, steps: int) -> list[tuple[Value, Value]]:
        """The time token and the step size of each evaluation."""
        with self._lock:
            if steps not in self._schedules:
                times, deltas = euler(steps)
                (tokens,) = self._times({"t": value_of(times)})
                rows = tokens.numpy()
                self._schedules[steps] = [
                    (value_of(rows[k : k + 1]), value_of(deltas[k : k + 1]))
                    for k in range(len(times))
                ]
            return self._schedules[steps]

    # -- the codec --

    def silence(self) -> list[Value]:
        return [value_of(np.zeros(shape, np.float32)) for shape in self._shapes]

    def decode(
        self, frames: Sequence[np.ndarray], states: list[Value]
    ) -> tuple[np.ndarray, list[Value]]:
        parts = []
        for start in range(0, len(frames), CODEC_FRAMES):
            feeds = {"x": value_of(np.concatenate(frames[start : start + CODEC_FRAMES]))}
            feeds |= zip(self._state_names, states, strict=True)
            samples, *states = self._codec(feeds)
            parts.append(samples.numpy())
        return np.concatenate(parts), states


def build(checkpoint: Path, eight_bits: bool, options: Mapping[str, Any]) -> VoxCPM2Graphs:
    """Load a checkpoint that has graphs. Load option: `flow_steps`. Raises CheckpointError and
    InvalidRequest."""
    check_load_options(options, LOAD_OPTIONS)
    c = with_steps(parse(read_config(checkpoint)), options.get("flow_steps"))
    table = GraphTable.read(checkpoint)
    stored = TensorFile(checkpoint / VOICES)
    voices = {name: stored.wide(name) for name in c.voices if name in stored}
    tokenize = CharacterTokenizer(checkpoint / "tokenizer.json")
    prompts = make_prompts(c, tokenize, front_end_of(c), voices)
    return VoxCPM2Graphs(c, prompts, table, eight_bits)

"""Module by module, bfloat16 gives what float32 on a CPU gives, each fed with the float32 values of the one before.

On a GPU this is the path that serves, kernels included; elsewhere the same modules without them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import silu

from stentor.engine.running.codec_state import CodecStateTable
from stentor.engine.running.prefill_batch import build_eager_batch, pieces_of
from stentor.layers.linear import linear
from stentor.layers.rng import uniform
from stentor.layers.types import torch_dtype
from stentor.models.voxcpm2.modules import FSQ
from tests.helpers.draws import Draw, drawing
from tests.helpers.tiny import DEVICE, FAMILIES, Bench, checkpoint

LEAST = 0.999
FRAMES = 6  # that are made and forced
FLIPS = 0.1  # share of levels: bfloat16 is off by some twentieth of a level, at either side of its border


@dataclass
class Draws:
    """Logits that were drawn from, and what was drawn; later runs are given the same."""

    forced: list[Tensor] | None = None
    logits: list[Tensor] = field(default_factory=list)
    drawn: list[Tensor] = field(default_factory=list)

    def __call__(self, draw: Draw) -> Tensor:
        out = (
            draw.answer()
            if self.forced is None
            else self.forced[len(self.logits)].to(draw.logits.device)
        )
        self.logits.append(draw.logits.float().cpu())
        self.drawn.append(out.cpu())
        return out


def cosine(a: Tensor, b: Tensor) -> float:
    a, b = a.double().cpu().flatten(), b.double().cpu().flatten()
    there = a.isfinite() & b.isfinite()
    assert torch.equal(a.isfinite(), b.isfinite())
    if not a[there].any():  # where no reference audio is given, its embedding is zeros
        return float(not b[there].any())
    return float(torch.nn.functional.cosine_similarity(a[there], b[there], dim=0))


def like(values: tuple[Tensor, ...], there: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return tuple(a.to(b.device, b.dtype) for a, b in zip(values, there, strict=True))


class Levels:
    """Rounding to levels is a draw, too: one level further is a jump of many roundings. The reference's are forced, as
    codes are; compared are what comes in, what is rounded, and what is made where the levels are the same."""

    def __init__(self, ref: FSQ, dut: FSQ, note: Any) -> None:
        self.note = note
        self.flips, self.count, self.name = 0, 0, ""
        ref.register_forward_hook(self.keep)
        dut.register_forward_hook(self.force)

    def keep(self, fsq: nn.Module, args: tuple[Tensor], out: Tensor) -> None:
        self.into, self.out, self.soft = args[0], out, self.softly(fsq, args[0])

    def force(self, fsq: nn.Module, args: tuple[Tensor], out: Tensor) -> Tensor:
        assert isinstance(fsq, FSQ)
        self.note(f"language model on a {self.name}", self.into, args[0])
        self.note("before rounding to levels", self.soft, self.softly(fsq, self.into.to(out)))
        levels = [(x * fsq.scale).round().cpu() for x in (self.soft, self.softly(fsq, args[0]))]
        other = levels[0] != levels[1]
        same = ~other.any(-1)
        if same.any():
            self.note("where levels are the same", self.out[same], out[same.to(out.device)])
        self.flips += int(other.sum())
        self.count += other.numel()
        return self.out.to(out)

    def softly(self, fsq: nn.Module, x: Tensor) -> Tensor:
        assert isinstance(fsq, FSQ)
        return torch.tanh(linear(x, fsq.in_proj.weight, fsq.in_proj.bias))


class Pair:
    """Run one request on the reference (float32, CPU) and on the tested model."""

    def __init__(self, family: str, path: Any) -> None:
        self.family = family
        self.ref = Bench(path, "cpu", torch.float32)
        self.dut = Bench(path, DEVICE, torch.bfloat16)
        self.found: dict[str, list[float]] = {}
        options = {"temperature": 1.0} | (
            {"ignore_eos": True} if "ignore_eos" in self.ref.model.spec.options else {}
        )
        self.groups = [[b.admit(family, 0, **options)] for b in (self.ref, self.dut)]
        self.levels: Levels | None = None
        if family == "voxcpm2":
            self.levels = Levels(
                self.ref.model.net.fsq_layer, self.dut.model.net.fsq_layer, self.note
            )

    def note(self, name: str, a: Tensor, b: Tensor) -> None:
        if a.is_floating_point() and a.numel() > 1:
            self.found.setdefault(name, []).append(cosine(a, b))

    def emit(self, h: tuple[Tensor, ...], idx: list[Tensor]) -> None:
        """Both from the reference's hidden states; draws are forced, and so is what a flow is asked."""
        num_evals = self.groups[0][0][1].num_evals
        rows = [
            b.runner.slots.rows(i, num_evals)
            for b, i in zip((self.ref, self.dut), idx, strict=True)
        ]
        draws, asked = Draws(), []
        u = [uniform(r["seed"], r["step"], self.ref.model.spec.draws) for r in rows]
        hooks = []
        if self.family == "voxcpm2":
            hooks.append(
                self.ref.model.dit.register_forward_hook(
                    lambda m, args, out: asked.append((args[0].clone(), args[1], out))
                )
            )
        with drawing(draws):
            out = self.ref.model.emit(h, rows[0], u[0])
        for hook in hooks:
            hook.remove()
        again = Draws(forced=draws.drawn)
        h_there = tuple(
            t.to(DEVICE, torch.bfloat16) if t.is_floating_point() else t.to(DEVICE) for t in h
        )
        with drawing(again):
            made = self.dut.model.emit(h_there, rows[1], u[1])
        for a, b in zip(draws.logits, again.logits, strict=True):
            self.note("logits of each draw", a, b)
        if self.family == "voxcpm2":
            net = [b.model.net for b in (self.ref, self.dut)]
            self.note(
                "flow condition",
                torch.stack(net[0].conditions(*h)),
                torch.stack(net[1].conditions(*h_there)),
            )
            logits = [
                n.stop_head(silu(n.stop_proj(x[0]))) for n, x in zip(net, (h, h_there), strict=True)
            ]
            self.note("stop logits", *logits)
            for tokens, patch, want in asked:
                there = tokens.to(DEVICE, torch.bfloat16)
                self.note(
                    "flow network", want, self.dut.model.dit(there, patch, self.dut.model.net.rope)
                )
        else:
            assert torch.equal(out.frame.cpu(), made.frame.cpu())
        self.ref.runner.slots.commit(
            rows[0], out, rows[0]["pos"] + 1 if self.started else self.length
        )
        self.started = True
        self.follow()

    started = False

    def follow(self) -> None:
        """Let the tested model continue from the reference's row, frames, and keys and values."""
        a, b = self.ref.runner, self.dut.runner
        for name, column in a.slots.table.items():
            b.slots.table[name].copy_(column)
        b.slots.frames.copy_(a.slots.frames)
        b.kv.pool.copy_(a.kv.pool)

    def prefill(self) -> None:
        batches = [
            build_eager_batch(pieces_of(g), b.model.spec, b.sizes.page_size, b.where)
            for g, b in zip(self.groups, (self.ref, self.dut), strict=True)
        ]
        self.length = batches[0].length
        x = [
            b.model.embed_prompt(p.prompt, b.runner.slots.rows(p.slot, 0))
            for b, p in zip((self.ref, self.dut), batches, strict=True)
        ]
        views = [
            b.runner.kv.prefill_view(p.pieces, p.row, p.slot, p.pos, p.max_pages, p.max_seqlen)
            for b, p in zip((self.ref, self.dut), batches, strict=True)
        ]
        h = self.step("prompt", x, views)
        self.emit(tuple(t[batches[0].last] for t in h), [p.idx for p in batches])

    def step(self, name: str, x: list[tuple[Tensor, ...]], views: list[Any]) -> tuple[Tensor, ...]:
        for a, b in zip(*x, strict=True):
            self.note(f"embedding of a {name}", a, b)
        if self.levels is not None:
            self.levels.name = name
        h = self.ref.model.backbone(x[0], views[0])
        for a, b in zip(h, self.dut.model.backbone(like(x[0], x[1]), views[1]), strict=True):
            self.note(f"backbone on a {name}", a, b)
        return h

    def decode(self) -> None:
        idx = [
            torch.zeros(1, dtype=torch.int64, device=b.where.torch) for b in (self.ref, self.dut)
        ]
        num_evals = self.groups[0][0][1].num_evals
        x, views = [], []
        for b, i in zip((self.ref, self.dut), idx, strict=True):
            rows = b.runner.slots.rows(i, num_evals)
            x.append(b.model.embed_frame(rows))
            views.append(b.runner.kv.decode_view(i, rows["pos"], self.ref.sizes.max_pages))
        self.emit(self.step("frame", x, views), idx)

    def codec(self) -> None:
        """Chunks of several lengths; each starts from the reference's state."""
        columns = self.ref.model.codec.columns
        state, at = CodecStateTable(columns, 1, torch.device("cpu")).columns, 0
        for count in (1, 2, 3):
            frames = self.ref.runner.slots.frames[:1, at : at + count]
            there = {
                n: v.to(DEVICE, self.dut.model.codec.columns[n].dtype) for n, v in state.items()
            }
            want, state = self.ref.model.codec.decode(frames, state)
            got, _ = self.dut.model.codec.decode(
                frames.to(DEVICE, torch_dtype(self.dut.model.spec.frame.dtype)), there
            )
            self.note("codec", want, got)
            at += count

    def run(self) -> dict[str, float]:
        with torch.inference_mode():
            self.prefill()
            for _ in range(FRAMES - 1):
                self.decode()
            self.codec()
        return {name: min(values) for name, values in self.found.items()}


@pytest.mark.parametrize("family", FAMILIES)
def test_every_module_in_bfloat16_points_where_float32_does(family, tmp_path):
    pair = Pair(family, checkpoint(family, tmp_path))
    found = pair.run()
    print(family, {k: round(v, 6) for k, v in found.items()})
    if pair.levels is not None:
        print(family, pair.levels.flips, "of", pair.levels.count, "levels fell on the other side")
        assert "where levels are the same" in found
        assert pair.levels.flips <= FLIPS * pair.levels.count
    assert {"embedding of a prompt", "backbone on a frame", "codec"} <= set(found)
    assert {"logits of each draw", "flow network"} & set(found)
    assert not {name: value for name, value in found.items() if not value >= LEAST}

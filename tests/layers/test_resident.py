"""One token through a whole stack in one launch, against the layers one by one: on a GPU as it is, elsewhere phase by
phase in Triton's interpreter."""

from __future__ import annotations

import importlib.util
import os

import pytest
import torch

from stentor.engine.kv import PagedKV
from stentor.layers.attention import DepthKV, Turning
from stentor.layers.rope import Rope, angles
from stentor.layers.transformer import Stack, StackConfig
from stentor.models.base import KVSpec

if importlib.util.find_spec("triton") is None:
    pytest.skip("Triton is not installed (pip install stentor[cuda])", allow_module_level=True)

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
if DEVICE == "cpu":
    os.environ["TRITON_INTERPRET"] = "1"  # what is imported while it is set is interpreted
from stentor.layers import kernels, resident  # noqa: E402

os.environ.pop("TRITON_INTERPRET", None)

if DEVICE == "cpu":
    from triton.runtime import interpreter

    _patched = interpreter._patch_lang_tensor

    def _with_loop_bounds(tensor, scope):
        """Triton 3.6 reads a loop bound by int() of an array of one element, which numpy 2.4 no longer allows."""
        _patched(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

    interpreter._patch_lang_tensor = _with_loop_bounds

if DEVICE == "cuda" and torch.cuda.get_device_capability() < (9, 0):
    pytest.skip("needs a Hopper GPU", allow_module_level=True)

TOLERANCE = 1.5e-2
WIDE = 1 if DEVICE == "cpu" else 16  # every program of a GPU has its part of every product
PAGE, LONGEST = 4, 300


class Pages(Turning):
    """What the launch is told of a token's history; nothing else of attention is asked for."""

    def __init__(self, kv: PagedKV, slot: torch.Tensor) -> None:
        self._kv, self._slot = kv, slot

    def __call__(self, layer, q, k, v):
        raise AssertionError("a launch per layer")

    def turns(self, x):
        raise AssertionError("a launch per layer")

    def turned(self, layer, q, k, v, turn):
        raise AssertionError("a launch per layer")

    def pages(self):
        return kernels.Pages(self._kv.pool, self._kv.table, self._slot)


@pytest.fixture(autouse=True)
def _seeded(monkeypatch):
    if DEVICE == "cpu":
        monkeypatch.setenv("TRITON_INTERPRET", "1")
        monkeypatch.setattr(kernels, "INTERPRETED", True)
    torch.manual_seed(5)
    with torch.inference_mode():
        yield


def stack(norms: bool, layers: int = 2, group: int = 2) -> Stack:
    c = StackConfig(64 * WIDE, 96 * WIDE, layers, 2 * group, 2, 16 if WIDE == 1 else 128, 1e-6, norms)
    made = Stack(c, first_layer=1).to(DEVICE, torch.bfloat16)
    for p in made.parameters():
        p.data = torch.randn_like(p) * (p.shape[-1] ** -0.5 if p.dim() > 1 else 1.0)
    return made


def plainly(made: Stack, run):
    """The same without the launch and any other kernel."""
    off, kernels._WANTED = kernels._WANTED, False
    try:
        return run()
    finally:
        kernels._WANTED = off


def close(got, want):
    error = float((got.float() - want.float()).norm() / want.float().norm())
    assert got.shape == want.shape
    assert error <= TOLERANCE, error


@pytest.mark.parametrize(
    ("interleaved", "in_float32", "norms"), [(True, True, False), (False, False, True), (False, True, True)]
)
def test_logits_of_a_depth_loop_are_those_of_the_layers(interleaved, in_float32, norms):
    made = stack(norms)
    made.first_layer = 0
    rope = Rope(angles(made._config.head_dim, 16, 1e4), torch.bfloat16, interleaved, in_float32).to(DEVICE)
    head = torch.randn(48, made._config.hidden, device=DEVICE).bfloat16() * 0.1
    tokens = torch.randn(4, 1, 1, made._config.hidden, device=DEVICE).bfloat16()

    def run():
        kv = DepthKV(2, 1, 8, 2, made._config.head_dim, tokens)
        out = []
        for i, x in enumerate(tokens):
            out.append(made.head(x, kv, rope, torch.tensor([i], device=DEVICE), head))
            kv.advance(1)
        return torch.cat(out)

    close(run(), plainly(made, run))
    assert made._resident is not None


@pytest.mark.parametrize("length", [0, 65, 290])
@pytest.mark.parametrize("positions", [True, False])
def test_a_token_attends_to_all_of_its_pages_and_stores_itself(length, positions):
    made = stack(norms=positions, group=4)
    c = made._config
    kvs = [PagedKV(KVSpec(3, 2, c.head_dim, torch.bfloat16), 2, 150, PAGE, 75, torch.device("cpu")) for _ in range(2)]
    kvs[0].pool.normal_()
    for kv in kvs:
        kv.pool, kv.table = kvs[0].pool.to(DEVICE).clone(), kv.table.to(DEVICE)
        kv.table[1] = torch.randperm(150, generator=torch.Generator().manual_seed(2))[:75]
    rope = Rope(angles(c.head_dim, LONGEST, 1e4), torch.bfloat16, False, False).to(DEVICE) if positions else None
    x = torch.randn(1, c.hidden, device=DEVICE).bfloat16()
    slot, pos = torch.tensor([1], device=DEVICE), torch.tensor([length], device=DEVICE)
    attend = Pages(kvs[0], slot)
    for _ in range(2):
        got = made.narrow(x, attend, rope, pos)
    kvs[1].fused = False
    view = kvs[1].decode_view(slot, pos, 75)
    want = plainly(made, lambda: made.narrow(x, view.attend, rope, pos))
    close(got, want)
    close(kvs[0].pool, kvs[1].pool)


def test_work_that_does_not_divide_is_left_to_the_layers():
    c = StackConfig(72, 101, 1, 4, 2, 16, 1e-6)
    made = Stack(c).to(DEVICE, torch.bfloat16)
    weights = [block.weights for block in made.layers]
    assert resident.make(c, weights) is None
    shape = resident.Shape(1, 72, 2, 2, 16, 100)
    assert not shape.suits(128)
    assert resident.Shape(5, 1024, 8, 2, 128, 3072).suits(128)


def test_shares_of_a_product_cover_it():
    for width, size, gate, deep in ((4096, 1024, False, False), (3072, 1024, True, False), (2560, 9728, False, True)):
        c = resident.cut(width, size, 128, resident.Tiles(), gate, deep)
        assert c.rows * c.depth * (1 + gate) <= resident.Tiles().elements
        assert (c.tiles * c.depth >= size) if deep else (c.tiles * c.rows >= width // 128 and c.depth >= size)
        assert 1 <= c.ahead <= c.tiles

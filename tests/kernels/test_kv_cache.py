"""Tokens written into pages by a kernel, against indexed assignment."""

from __future__ import annotations

import pytest
import torch

import tests.helpers.kernel_tests  # noqa: F401  (first: it imports the kernels interpreted where there is no GPU)
from stentor.kernels import kv_cache
from tests.helpers.kernel_tests import DEVICE, DTYPES, integers

pytestmark = pytest.mark.usefixtures("kernel_test")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("heads", "dim"), [(2, 12), (8, 128), (8, 160)])
def test_tokens_go_into_the_pages_of_their_slots(dtype, heads, dim):
    page, pages, slots = 4, 20, 3
    pool = torch.randn(2, pages + 1, page, heads, dim, device=DEVICE).to(dtype)
    table = torch.randperm(pages, device=DEVICE)[: slots * 6].view(slots, 6)
    slot, pos = integers(0, 0, 2, 2, 1), integers(0, 5, 3, 23, 12)
    both = torch.randn(5, 3 * heads * dim, device=DEVICE).to(dtype)
    k, v = (
        both[:, i * heads * dim : (i + 1) * heads * dim].unflatten(1, (heads, dim)) for i in (0, 2)
    )
    want = pool.clone()
    want[0, table[slot, pos // page], pos % page] = k
    want[1, table[slot, pos // page], pos % page] = v
    kv_cache.store_kv(pool, table, slot, pos, k.contiguous(), v)
    assert torch.equal(pool, want)

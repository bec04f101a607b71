"""A whole transformer stack for one token, in one launch: programs stay on the chip from the first layer to the head.

Each program multiplies the same share of every matrix, so what it needs next is known and asked for while it still
waits (weights never depend on data). Results travel between programs as packets: 64-bit words of two values, or of one
in float32, and the number of the layer they belong to. Whoever needs a value looks until its packet is there: no
barrier, no fence, no counter (the idea is NCCL's LL protocol). A packet's place is written again only after every
program has answered what depends on it, so one place per value is enough; numbers differ from launch to launch.

All programs must be on the chip at once, which a cooperative launch guarantees. `begin` and `end` run a stretch of
phases only: the interpreter, which runs programs one after another, launches every phase by itself.
"""

# ruff: noqa: ANN001, ANN202, N803
# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-untyped-call"

from __future__ import annotations

import triton
import triton.language as tl

from stentor.layers.kernels_early import LINE, prefetch

PHASES = tl.constexpr(5)
"""Of a layer: projections, attention, output projection, gate and up, down. The head comes after the last layer."""
NUMBERS = tl.constexpr(0x7FFFFFFF)
COMPILED = tl.constexpr(not triton.knobs.runtime.interpret)


@triton.jit
def _matrix(weights, layer, INDEX: tl.constexpr):
    """A layer's weight from the table of addresses."""
    at = tl.load(weights + layer * 8 + INDEX)
    return tl.multiple_of(at.to(tl.pointer_type(tl.bfloat16)), 16)


# -- packets --


def _poll(count: int) -> tl.constexpr:
    """Looks at `count` packets of a thread until all of them bear the number."""
    look = "".join(f"ld.relaxed.gpu.global.b64 ${i}, [${count + i}]; " for i in range(count))
    check = "".join(f"shr.u64 n, ${i}, 32; setp.ne.or.u64 p, n, ${2 * count}, p; " for i in range(count))
    return tl.constexpr("{ .reg .pred p; .reg .b64 n; AGAIN: " + look + "setp.ne.u32 p, 0, 0; " + check + "@p bra AGAIN; }")


POLL_1, POLL_2, POLL_4 = _poll(1), _poll(2), _poll(4)


@triton.jit
def _arrived(packets, i, mask, number, EACH: tl.constexpr):
    """Packets i, once all of them belong to layer `number`; EACH are a thread's."""
    if COMPILED:
        at = packets + tl.where(mask, i, 0)
        if EACH >= 4:
            p = tl.inline_asm_elementwise(
                POLL_4, "=&l,=&l,=&l,=&l,l,l,l,l,l,l,l,l", [at, number], dtype=tl.int64, is_pure=False, pack=4
            )
        elif EACH == 2:
            p = tl.inline_asm_elementwise(
                POLL_2, "=&l,=&l,l,l,l,l", [at, number], dtype=tl.int64, is_pure=False, pack=2
            )
        else:
            p = tl.inline_asm_elementwise(POLL_1, "=&l,l,l", [at, number], dtype=tl.int64, is_pure=False, pack=1)
    else:
        p = tl.load(packets + i, mask, 0)
        tl.device_assert(tl.sum(tl.where(mask & ((p >> 32) != number), 1, 0)) == 0)
    return tl.where(mask, p, 0)


@triton.jit
def _single(p):
    """The value of packets that hold one."""
    return p.to(tl.int32).to(tl.float32, bitcast=True)


@triton.jit
def _either(p, n):
    """Value n of the vector whose packet n // 2 is p."""
    return (((p >> ((n & 1) * 16).to(tl.int64)) & 0xFFFF) << 16).to(tl.int32).to(tl.float32, bitcast=True)


@triton.jit
def _vector(packets, start, number, SIZE: tl.constexpr, WIDE: tl.constexpr, THREADS: tl.constexpr):
    """Values start .. start + WIDE of a vector of SIZE, zeros behind its end."""
    i = start // 2 + tl.arange(0, WIDE // 2)
    p = _arrived(packets, i, i < SIZE // 2, number, WIDE // 2 // THREADS)
    low = ((p & 0xFFFF) << 16).to(tl.int32).to(tl.float32, bitcast=True)
    high = ((p >> 16) << 16).to(tl.int32).to(tl.float32, bitcast=True)
    return tl.reshape(tl.join(low, high), [WIDE])


@triton.jit
def _send(packets, y, row, end, number, ROWS: tl.constexpr):
    """Rounded values y [ROWS] at `row` and on, which is even."""
    bits = y.to(tl.bfloat16).to(tl.int16, bitcast=True).to(tl.int64) & 0xFFFF
    low, high = tl.split(tl.reshape(bits, [ROWS // 2, 2]))
    i = row // 2 + tl.arange(0, ROWS // 2)
    tl.store(packets + i, (number << 32) | (high << 16) | low, i < end // 2)


# -- products --


@triton.jit
def _ask(weight, row, end, k, SIZE: tl.constexpr, ROWS: tl.constexpr, DEPTH: tl.constexpr):
    """Weights that will be needed soon, into the L2 cache."""
    if COMPILED:
        rows = tl.minimum(row + tl.arange(0, ROWS), end - 1)
        if k < SIZE:
            prefetch(weight + k, rows.to(tl.int64)[:, None] * SIZE, SIZE - k, DEPTH // LINE)


@triton.jit
def _ask_first(weight, begin, end, SIZE: tl.constexpr, ROWS: tl.constexpr, DEPTH: tl.constexpr, AHEAD: tl.constexpr):  # fmt: skip
    """The first tiles of a product that comes later."""
    for i in tl.static_range(AHEAD):
        if DEPTH >= SIZE:
            _ask(weight, begin + i * ROWS, end, 0, SIZE, ROWS, DEPTH)
        else:
            _ask(weight, begin, end, i * DEPTH, SIZE, ROWS, DEPTH)


@triton.jit
def _tile(weight, row, end, start, SIZE: tl.constexpr, ROWS: tl.constexpr, DEPTH: tl.constexpr):
    """Weights [ROWS, DEPTH] of outputs `row` and on; what lies behind `end` is not read."""
    n = row + tl.arange(0, ROWS)
    k = start + tl.arange(0, DEPTH)
    inside = (n < end)[:, None] & (k < SIZE)[None, :]
    at = weight + n.to(tl.int64)[:, None] * SIZE + k[None, :]
    return tl.load(at, inside, 0.0, eviction_policy="evict_first")


@triton.jit
def _plain(x, SIZE: tl.constexpr, WIDE: tl.constexpr):
    """A vector of SIZE, zeros behind its end."""
    k = tl.arange(0, WIDE)
    return tl.load(x + k, k < SIZE, 0.0).to(tl.float32)


@triton.jit
def _entering(x, done, layer, number, SIZE: tl.constexpr, WIDE: tl.constexpr, THREADS: tl.constexpr):
    """The residual stream before a layer."""
    if layer == 0:
        v = _plain(x, SIZE, WIDE)
    else:
        v = _vector(done, 0, number, SIZE, WIDE, THREADS)
    return v


@triton.jit
def _product(
    weight, now, up, v, scale, begin, end, gap, residual, plain, packets, number,
    SIZE: tl.constexpr, ROWS: tl.constexpr, DEPTH: tl.constexpr, COUNT: tl.constexpr, AHEAD: tl.constexpr,
    GATE: tl.constexpr, ADD: tl.constexpr, PLAIN: tl.constexpr, SEND: tl.constexpr,
):  # fmt: skip
    """Outputs begin .. end of a product with the whole vector v, ROWS at a time, rounded as the layers round.

    `now` is the first tile, asked for before v was waited for. With GATE the other half's weights lie `gap` outputs
    behind, and `up` is the first of them.
    """
    for i in range(COUNT):
        row = begin + i * ROWS
        coming = _tile(weight, row + ROWS, end, 0, SIZE, ROWS, DEPTH)
        coming_up = coming
        if GATE:
            coming_up = _tile(weight, row + gap + ROWS, end + gap, 0, SIZE, ROWS, DEPTH)
        if COUNT > AHEAD:
            _ask(weight, row + AHEAD * ROWS, end, 0, SIZE, ROWS, DEPTH)
            if GATE:
                _ask(weight, row + gap + AHEAD * ROWS, end + gap, 0, SIZE, ROWS, DEPTH)
        y = (tl.sum(now.to(tl.float32) * v[None, :], 1) * scale).to(tl.bfloat16).to(tl.float32)
        if GATE:
            other = (tl.sum(up.to(tl.float32) * v[None, :], 1) * scale).to(tl.bfloat16).to(tl.float32)
            y = (y / (1.0 + tl.exp(-y))).to(tl.bfloat16).to(tl.float32) * other
        _finish(y, row, end, residual, plain, packets, number, ROWS, ADD, PLAIN, SEND)
        now = coming
        up = coming_up


@triton.jit
def _finish(y, row, end, residual, plain, packets, number, ROWS: tl.constexpr, ADD: tl.constexpr, PLAIN: tl.constexpr,
            SEND: tl.constexpr):  # fmt: skip
    n = row + tl.arange(0, ROWS)
    if ADD:
        y += tl.load(residual + n, n < end, 0.0).to(tl.float32)
    if PLAIN:
        tl.store(plain + n, y.to(tl.bfloat16), n < end)
    if SEND:
        _send(packets, y, row, end, number, ROWS)


@triton.jit
def _deep_product(
    weight, now, gated, begin, end, residual, packets, number,
    SIZE: tl.constexpr, ROWS: tl.constexpr, DEPTH: tl.constexpr, COUNT: tl.constexpr, AHEAD: tl.constexpr,
    THREADS: tl.constexpr,
):  # fmt: skip
    """All outputs of the program at once, with a long vector that comes DEPTH values at a time; adds `residual`."""
    total = tl.zeros([ROWS, DEPTH // 8], tl.float32)
    for i in range(COUNT):
        coming = _tile(weight, begin, end, (i + 1) * DEPTH, SIZE, ROWS, DEPTH)
        if COUNT > AHEAD:
            _ask(weight, begin, end, (i + AHEAD) * DEPTH, SIZE, ROWS, DEPTH)
        v = _vector(gated, i * DEPTH, number, SIZE, DEPTH, THREADS)
        total += tl.sum(tl.reshape(now.to(tl.float32) * v[None, :], [ROWS, DEPTH // 8, 8]), 2)
        now = coming
    y = tl.sum(total, 1).to(tl.bfloat16).to(tl.float32)
    _finish(y, begin, end, residual, residual, packets, number, ROWS, True, True, True)


# -- attention --


@triton.jit
def _turned(
    packets, start, number, at, inside, norm, cos, sin, place, eps, EACH: tl.constexpr, DIM: tl.constexpr,
    TURN: tl.constexpr,    NORM: tl.constexpr, LATE: tl.constexpr, INTERLEAVED: tl.constexpr, IN_FLOAT32: tl.constexpr,
):  # fmt: skip
    """Entries `at` of the heads that begin at `start` of the projections, after norm and RoPE at table row `place`."""
    n = start + at
    y = _either(_arrived(packets, n // 2, inside, number, EACH), n)
    if TURN:
        if INTERLEAVED:
            partner, pair, sign = at ^ 1, at // 2, tl.where(at % 2 == 0, -1.0, 1.0)
        else:
            first = at < DIM // 2
            partner = tl.where(first, at + DIM // 2, at - DIM // 2)
            pair, sign = tl.where(first, at, at - DIM // 2), tl.where(first, -1.0, 1.0)
        m = start + partner
        z = _either(tl.load(packets + m // 2, inside, 0, volatile=True), m)
        if NORM:
            factor = tl.rsqrt(tl.sum(tl.where(inside, y * y, 0.0), 1) / DIM + eps)[:, None]
            y, z = y * factor, z * factor
            if LATE:
                y, z = y.to(tl.bfloat16).to(tl.float32), z.to(tl.bfloat16).to(tl.float32)
            y = (y * tl.load(norm + at).to(tl.float32)).to(tl.bfloat16).to(tl.float32)
            z = (z * tl.load(norm + partner).to(tl.float32)).to(tl.bfloat16).to(tl.float32)
        c = tl.load(cos + place * (DIM // 2) + pair)
        s = tl.load(sin + place * (DIM // 2) + pair)
        if IN_FLOAT32:
            y = y * c + sign * z * s
        else:
            c, s = c.to(tl.bfloat16).to(tl.float32), s.to(tl.bfloat16).to(tl.float32)
            y = (y * c).to(tl.bfloat16).to(tl.float32) + sign * (z * s).to(tl.bfloat16).to(tl.float32)
    return y.to(tl.bfloat16)


@triton.jit
def _dot(a, b):
    """The interpreter multiplies 16 bits as integers."""
    if COMPILED:
        c = tl.dot(a, b)
    else:
        c = tl.dot(a.to(tl.float32), b.to(tl.float32), input_precision="ieee")
    return c


@triton.jit
def _attend(
    pool, pages, pos, program, span, projected, parts, scores, q_norm, k_norm, cos, sin, value_part, key_slot,
    number, scale, eps,
    HEADS: tl.constexpr, GROUP: tl.constexpr, DIM: tl.constexpr, PAGE: tl.constexpr, KEYS: tl.constexpr, THREADS: tl.constexpr,
    TURN: tl.constexpr, NORM: tl.constexpr, LATE: tl.constexpr, INTERLEAVED: tl.constexpr, IN_FLOAT32: tl.constexpr,
):  # fmt: skip
    """One part of the history for the queries of one key-value head: means over the part, and the logarithms of their
    mass. The first part also takes the token itself, and stores it."""
    head, part = program % HEADS, program // HEADS
    at = tl.arange(0, DIM)[None, :]
    group = tl.arange(0, 16)[:, None]
    asked = (group < GROUP) & (at < DIM)
    q_at = (head * GROUP + tl.minimum(group, GROUP - 1)) * DIM
    queries = _turned(
        projected, q_at, number, at, asked, q_norm, cos, sin, pos, eps,
        16 * DIM // THREADS, DIM, TURN, NORM, LATE, INTERLEAVED, IN_FLOAT32,
    )  # fmt: skip
    high = tl.full([16], float("-inf"), tl.float32)
    mass = tl.zeros([16], tl.float32)
    total = tl.zeros([16, DIM], tl.float32)
    if part == 0:
        whole = at >= 0
        k_at = (HEADS * GROUP + head) * DIM
        new_k = _turned(
            projected, k_at, number, at, whole, k_norm, cos, sin, pos, eps,
            DIM // THREADS, DIM, TURN, NORM, LATE, INTERLEAVED, IN_FLOAT32,
        )  # fmt: skip
        v_at = k_at + HEADS * DIM
        new_v = _turned(
            projected, v_at, number, at, whole, k_norm, cos, sin, pos, eps,
            DIM // THREADS, DIM, False, False, False, False, False,
        )  # fmt: skip
        spot = (tl.load(pages + pos // PAGE) * PAGE + pos % PAGE) * key_slot + head * DIM + at
        tl.store(pool + spot, new_k)
        tl.store(pool + value_part + spot, new_v)
        high = tl.sum(queries.to(tl.float32) * new_k.to(tl.float32), 1) * scale
        mass += 1.0
        total += new_v.to(tl.float32)
    last = tl.minimum(pos, (part + 1) * span)
    for start in range(part * span, last, KEYS):
        key = start + tl.arange(0, KEYS)
        seen = key < last
        page = tl.load(pages + key // PAGE, seen, 0)
        place = ((page * PAGE + key % PAGE) * key_slot + head * DIM)[:, None] + at
        keys = tl.load(pool + place, seen[:, None], 0.0)
        values = tl.load(pool + value_part + place, seen[:, None], 0.0)
        score = _dot(queries, tl.trans(keys)) * scale
        score = tl.where(seen[None, :], score, float("-inf"))
        top = tl.maximum(high, tl.max(score, 1))
        weight = tl.exp(score - top[:, None])
        fade = tl.exp(high - top)
        mass = mass * fade + tl.sum(weight, 1)
        total = total * fade[:, None] + _dot(weight.to(tl.bfloat16), values)
        high = top
    mean = (total / mass[:, None]).to(tl.int32, bitcast=True).to(tl.int64) & 0xFFFFFFFF
    logmass = (high + tl.log(mass)).to(tl.int32, bitcast=True).to(tl.int64) & 0xFFFFFFFF
    query = part * HEADS * GROUP + head * GROUP + tl.arange(0, 16)
    tl.store(scores + query, (number << 32) | logmass, tl.arange(0, 16) < GROUP)
    tl.store(parts + query[:, None] * DIM + at, (number << 32) | mean, asked)


@triton.jit
def _mixed(parts, scores, used, number, HEADS: tl.constexpr, DIM: tl.constexpr, SIZE: tl.constexpr, WIDE: tl.constexpr,
           THREADS: tl.constexpr):  # fmt: skip
    """Attention's output [WIDE], from its parts; HEADS counts queries."""
    k = tl.arange(0, WIDE)
    inside = k < SIZE
    high = tl.full([WIDE], float("-inf"), tl.float32)
    mass = tl.zeros([WIDE], tl.float32)
    total = tl.zeros([WIDE], tl.float32)
    for part in range(used):
        score = _single(_arrived(scores, part * HEADS + k // DIM, inside, number, WIDE // THREADS))
        mean = _single(_arrived(parts, part * SIZE + k, inside, number, WIDE // THREADS))
        top = tl.maximum(high, score)
        fade, weight = tl.exp(high - top), tl.exp(score - top)
        mass = mass * fade + weight
        total = total * fade + weight * mean
        high = top
    return tl.where(inside, total / mass, 0.0).to(tl.bfloat16).to(tl.float32)


# -- the launch --


@triton.jit
def _share(program, SIZE: tl.constexpr, PROGRAMS: tl.constexpr):
    """First output of a program, and the end: an even number each."""
    EACH: tl.constexpr = (SIZE + 2 * PROGRAMS - 1) // (2 * PROGRAMS) * 2
    return tl.minimum(program * EACH, SIZE), tl.minimum((program + 1) * EACH, SIZE)


@triton.jit
def _stack(
    x, out, logits, weights, head_norm, head, cos, sin, pool, table, slots, positions,
    counter, projected, parts, scores, attended, gated, done, table_row, pool_layer, value_part, key_slot, scale, eps,
    qk_eps,
    begin, end,
    LAYERS: tl.constexpr, HIDDEN: tl.constexpr, HEADS: tl.constexpr, GROUP: tl.constexpr, DIM: tl.constexpr,
    FFN: tl.constexpr, VOCAB: tl.constexpr, PAGE: tl.constexpr, KEYS: tl.constexpr, PROGRAMS: tl.constexpr,
    THREADS: tl.constexpr, WIDE: tl.constexpr, MIXED: tl.constexpr, DEPTH: tl.constexpr,
    QKV_ROWS: tl.constexpr, QKV_TILES: tl.constexpr, QKV_AHEAD: tl.constexpr,
    O_ROWS: tl.constexpr, O_TILES: tl.constexpr, O_AHEAD: tl.constexpr,
    UP_ROWS: tl.constexpr, UP_TILES: tl.constexpr, UP_AHEAD: tl.constexpr,
    DOWN_ROWS: tl.constexpr, DOWN_TILES: tl.constexpr, DOWN_AHEAD: tl.constexpr,
    HEAD_ROWS: tl.constexpr, HEAD_TILES: tl.constexpr, HEAD_AHEAD: tl.constexpr,
    TURN: tl.constexpr, NORM: tl.constexpr, LATE: tl.constexpr, INTERLEAVED: tl.constexpr, IN_FLOAT32: tl.constexpr,
):  # fmt: skip
    program = tl.program_id(0)
    base = tl.load(counter, volatile=True)
    pos = tl.load(positions)
    pages = table + tl.load(slots) * table_row
    span = tl.maximum(1, tl.cdiv(pos, KEYS * (PROGRAMS // HEADS))) * KEYS
    used = tl.maximum(1, tl.cdiv(pos, span))
    QUERIES: tl.constexpr = HEADS * GROUP * DIM
    QKV: tl.constexpr = QUERIES + 2 * HEADS * DIM
    qkv_at, qkv_end = _share(program, QKV, PROGRAMS)
    o_at, o_end = _share(program, HIDDEN, PROGRAMS)
    up_at, up_end = _share(program, FFN, PROGRAMS)
    head_at, head_end = _share(program, VOCAB, PROGRAMS)
    for layer in range(LAYERS):
        number = (base + layer + 1) & NUMBERS
        before = (base + layer) & NUMBERS
        phase = layer * PHASES
        qkv = _matrix(weights, layer, 1)
        o = _matrix(weights, layer, 4)
        up = _matrix(weights, layer, 6)
        down = _matrix(weights, layer, 7)
        if (begin <= phase) & (phase < end):
            now = _tile(qkv, qkv_at, qkv_end, 0, HIDDEN, QKV_ROWS, WIDE)
            gain = _plain(_matrix(weights, layer, 0), HIDDEN, WIDE)
            _ask_first(o, o_at, o_end, QUERIES, O_ROWS, MIXED, O_AHEAD)
            _ask_first(up, up_at, up_end, HIDDEN, UP_ROWS, WIDE, UP_AHEAD)
            _ask_first(up, up_at + FFN, up_end + FFN, HIDDEN, UP_ROWS, WIDE, UP_AHEAD)
            v = _entering(x, done, layer, before, HIDDEN, WIDE, THREADS)
            scale_v = tl.rsqrt(tl.sum(v * v) / HIDDEN + eps)
            _product(
                qkv, now, now, v * gain, scale_v, qkv_at, qkv_end, 0, x, out, projected, number,
                HIDDEN, QKV_ROWS, WIDE, QKV_TILES, QKV_AHEAD, False, False, False, True,
            )  # fmt: skip
        if (begin <= phase + 1) & (phase + 1 < end) & (program < used * HEADS):
            _attend(
                pool + layer * pool_layer, pages, pos, program, span, projected, parts, scores,
                _matrix(weights, layer, 2), _matrix(weights, layer, 3), cos, sin, value_part, key_slot, number, scale,
                qk_eps, HEADS, GROUP, DIM, PAGE, KEYS, THREADS, TURN, NORM, LATE, INTERLEAVED, IN_FLOAT32,
            )  # fmt: skip
        if (begin <= phase + 2) & (phase + 2 < end):
            now = _tile(o, o_at, o_end, 0, QUERIES, O_ROWS, MIXED)
            v = _mixed(parts, scores, used, number, HEADS * GROUP, DIM, QUERIES, MIXED, THREADS)
            residual = out
            if layer == 0:
                residual = x
            _product(
                o, now, now, v, 1.0, o_at, o_end, 0, residual, out, attended, number,
                QUERIES, O_ROWS, MIXED, O_TILES, O_AHEAD, False, True, True, True,
            )  # fmt: skip
        if (begin <= phase + 3) & (phase + 3 < end):
            now = _tile(up, up_at, up_end, 0, HIDDEN, UP_ROWS, WIDE)
            now_up = _tile(up, up_at + FFN, up_end + FFN, 0, HIDDEN, UP_ROWS, WIDE)
            gain = _plain(_matrix(weights, layer, 5), HIDDEN, WIDE)
            _ask_first(down, o_at, o_end, FFN, DOWN_ROWS, DEPTH, DOWN_AHEAD)
            v = _vector(attended, 0, number, HIDDEN, WIDE, THREADS)
            scale_v = tl.rsqrt(tl.sum(v * v) / HIDDEN + eps)
            _product(
                up, now, now_up, v * gain, scale_v, up_at, up_end, FFN, x, out, gated, number,
                HIDDEN, UP_ROWS, WIDE, UP_TILES, UP_AHEAD, True, False, False, True,
            )  # fmt: skip
        if (begin <= phase + 4) & (phase + 4 < end):
            now = _tile(down, o_at, o_end, 0, FFN, DOWN_ROWS, DEPTH)
            if layer + 1 < LAYERS:
                _ask_first(
                    _matrix(weights, layer + 1, 1), qkv_at, qkv_end, HIDDEN, QKV_ROWS, WIDE, QKV_AHEAD
                )
            elif VOCAB > 0:
                _ask_first(head, head_at, head_end, HIDDEN, HEAD_ROWS, WIDE, HEAD_AHEAD)
            _deep_product(
                down, now, gated, o_at, o_end, out, done, number,
                FFN, DOWN_ROWS, DEPTH, DOWN_TILES, DOWN_AHEAD, THREADS,
            )  # fmt: skip
    last = LAYERS * PHASES
    if VOCAB > 0:
        if (begin <= last) & (last < end):
            now = _tile(head, head_at, head_end, 0, HIDDEN, HEAD_ROWS, WIDE)
            gain = _plain(head_norm, HIDDEN, WIDE)
            v = _vector(done, 0, (base + LAYERS) & NUMBERS, HIDDEN, WIDE, THREADS)
            scale_v = tl.rsqrt(tl.sum(v * v) / HIDDEN + eps)
            _product(
                head, now, now, v * gain, scale_v, head_at, head_end, 0, x, logits, done, base,
                HIDDEN, HEAD_ROWS, WIDE, HEAD_TILES, HEAD_AHEAD, False, False, True, False,
            )  # fmt: skip
    if (program == 0) & (begin == 0) & (last < end):  # every program has long read it
        tl.store(counter, (base + LAYERS + 1) & NUMBERS)

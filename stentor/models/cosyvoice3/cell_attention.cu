// Attention of a head over the cells of a call and the pages of earlier cells, for calls of many rows on Hopper GPUs.
//
// A CTA has a head of a branch of a row, and four warps for each cell. All keys and values that the row has go through
// shared memory once, in blocks of KEYS:
// - The first block has those of the call's own cells. Threads store them in the row's next pages on the way.
// - The other blocks have those of earlier cells, packed: a block begins where the last one ended, within a page or not.
// - Queries and keys are operands of `wgmma` in shared memory. The scores become the operand of the second product where
//   they lie, in registers.
//
// The compiler gets as macros: FRAMES (of a cell), CELLS (of a row), HEADS (of 64 channels), PAGES (entries of a row of the
// table), DTYPE ("bf16" or "f16"), PDL, COLUMNS (KEYS: a multiple of 16 that holds the own cells), STAGES (blocks in shared
// memory), MIN_CTAS (of an SM) and the operands of a product of COLUMNS (`product_macros`).
#define THREADS (CELLS * 128)
#include <wgmma.cuh>

struct Arguments {
  const u16* qkv;  // [B, 2, TOKENS, 3 DIM]
  const float *cos, *sin;  // [B, TOKENS, 32]: they turn queries and keys of the first head
  const long long* count;  // [B]: so many frames exist
  u16* out;  // [B, 2, TOKENS, DIM]
  u16* pool;  // [pages, ..., 2 (keys, values), 2 (branches), HEADS, FRAMES, 64], from this layer on
  const long long *table, *filled;  // [B, PAGES], [B]
  long long stride_page;  // elements
  float scale;  // of scores, times log2(e)
};

constexpr int KEYS = COLUMNS, DIM = HEADS * 64, TOKENS = CELLS * FRAMES;
constexpr int TILE = KEYS * 128, STAGE = 2 * TILE;  // bytes of keys, and of values behind them
constexpr int QUERIES = 0, BLOCKS = CELLS * 64 * 128, BASES = BLOCKS + STAGES * STAGE;
constexpr int STEP = THREADS / 8;  // rows that all threads copy at once: 8 threads copy a row of 128 bytes
constexpr int STEPS = (KEYS + STEP - 1) / STEP, OWN_STEPS = (TOKENS + STEP - 1) / STEP;
constexpr int TO_VALUES = 2 * DIM * FRAMES * 2;  // bytes, in a page
constexpr float MASKED = -1.2676506e30f;  // a power of two, so that its product with a scale is exact

static_assert(KEYS % 16 == 0 && TOKENS <= KEYS && FRAMES <= 64 && PAGES <= THREADS && STAGES >= 2, "shape");

INLINE u32 turned_pair(u32 v, float c, float s) {
  const float x = from_element(v & 0xffff), y = from_element(v >> 16);
  return to_elements(x * c - y * s, y * c + x * s);
}
// RoPE of four pairs of neighbours.
INLINE uint4 turned(uint4 v, uint4 c, uint4 s) {
  return make_uint4(turned_pair(v.x, __uint_as_float(c.x), __uint_as_float(s.x)),
                    turned_pair(v.y, __uint_as_float(c.y), __uint_as_float(s.y)),
                    turned_pair(v.z, __uint_as_float(c.z), __uint_as_float(s.z)),
                    turned_pair(v.w, __uint_as_float(c.w), __uint_as_float(s.w)));
}

// Of rows g and g + 8: the largest score, and the sum of the weights that this lane has seen.
struct Seen {
  float largest[2], sum[2];
};

// Look at the scores of a block. `factor` is what the sums of so far have to be multiplied by, `shift` what is subtracted
// from each scaled score.
INLINE void look_at(const float (&s)[KEYS / 2], Seen& seen, float scale, float (&factor)[2], float (&shift)[2]) {
#pragma unroll
  for (int half = 0; half < 2; half++) {
    float most = s[2 * half];
#pragma unroll
    for (int j = 0; j < KEYS / 8; j++) most = fmaxf(most, fmaxf(s[4 * j + 2 * half], s[4 * j + 2 * half + 1]));
    most = fmaxf(most, other_lane(most, 1));
    most = fmaxf(seen.largest[half], fmaxf(most, other_lane(most, 2)));
    shift[half] = most * scale;
    factor[half] = power_of_two(seen.largest[half] * scale - shift[half]);
    seen.largest[half] = most;
    seen.sum[half] *= factor[half];
  }
}

INLINE void mask(float (&s)[KEYS / 2], int limit) {
  const int first = threadIdx.x % 4 * 2;
#pragma unroll
  for (int i = 0; i < KEYS / 2; i++)
    if (i / 4 * 8 + first + i % 2 >= limit) s[i] = MASKED;
}

// Wait for it before s is read.
INLINE void multiply_keys_async(float (&s)[KEYS / 2], u64 queries, u64 keys) {
  begin_products();
  multiply_new_async(s, queries, keys);
#pragma unroll
  for (int k = 1; k < 4; k++) multiply_async(s, queries + k * 2, keys + k * 2);
  commit_products();
}

// sums (+)= weights [64, KEYS] times values. The weights of 16 keys are made while those before are multiplied.
template <bool NEW> INLINE void multiply_values(float (&sums)[32], const float (&s)[KEYS / 2], Seen& seen, float scale,
                                                const float (&shift)[2], u64 values) {
#pragma unroll
  for (int k = 0; k < KEYS / 16; k++) {
    u32 weights[4];
#pragma unroll
    for (int i = 0; i < 4; i++) {
      const float x = power_of_two(s[8 * k + 2 * i] * scale - shift[i % 2]);
      const float y = power_of_two(s[8 * k + 2 * i + 1] * scale - shift[i % 2]);
      seen.sum[i % 2] += x + y;
      weights[i] = to_elements(x, y);
    }
    begin_products();
    if (NEW && k == 0) multiply_new_rows_async(sums, weights, values);
    else multiply_rows_async(sums, weights, values + k * (2048 >> 4));
    commit_products();
  }
  wait_products<0>();
}

KERNEL cell_attention(const Arguments a) {
  const int branch = blockIdx.x / HEADS, head = blockIdx.x % HEADS, row = branch / 2, cell = threadIdx.x / 128;
  const int piece = threadIdx.x & 7, first = threadIdx.x >> 3;  // 16 bytes of a row, and the row
  const u32 swizzled = shared_address(first * 128 + ((piece ^ (first & 7)) << 4));

  const long long page_of_thread = a.table[row * PAGES + min((int)threadIdx.x, PAGES - 1)];
  const int filled = (int)a.filled[row], kept = filled * FRAMES, blocks = (kept + KEYS - 1) / KEYS;
  wait_for_previous();
  allow_next();
  uint4 q[OWN_STEPS], k[OWN_STEPS], v[OWN_STEPS];
#pragma unroll
  for (int r = 0; r < OWN_STEPS; r++) {  // all are on their way before the first is used
    const int token = min(first + r * STEP, TOKENS - 1);
    const u16* from = a.qkv + ((u64)branch * TOKENS + token) * (3 * DIM) + head * 64 + piece * 8;
    q[r] = load_l2(from), k[r] = load_l2(from + DIM), v[r] = load_l2(from + 2 * DIM);
  }
  if (threadIdx.x < PAGES) {  // where this head of this branch begins in each page
    const u16* const in_page = a.pool + ((branch & 1) * HEADS + head) * FRAMES * 64;
    store_shared_long(shared_address(BASES + threadIdx.x * 8), (u64)(in_page + page_of_thread * a.stride_page));
  }
  __syncthreads();
  auto copy_block = [&](int i) {
    const u32 to = swizzled + BLOCKS + (i + 1) % STAGES * STAGE;
#pragma unroll
    for (int r = 0; r < STEPS; r++)
      if ((r + 1) * STEP <= KEYS || first + r * STEP < KEYS) {
        const int key = i * KEYS + first + r * STEP, at = min(key, kept - 1), page = at / FRAMES;
        const unsigned char* from = (const unsigned char*)load_shared_long(shared_address(BASES + page * 8)) +
                                    (at - page * FRAMES) * 128 + piece * 16;
        copy_async_or_zero(to + r * STEP * 128, from, key < kept);
        copy_async_or_zero(to + r * STEP * 128 + TILE, from + TO_VALUES, key < kept);
      }
  };
#pragma unroll
  for (int i = 0; i < STAGES - 1; i++) {
    if (i < blocks) copy_block(i);
    commit_copies();
  }
#pragma unroll
  for (int r = 0; r < OWN_STEPS; r++) {
    const int token = first + r * STEP, of = token / FRAMES, frame = token - of * FRAMES;
    if (token >= TOKENS) break;
    if (head == 0) {
      const u64 at = ((u64)row * TOKENS + token) * 32 + piece * 4;
      const uint4 c = load_l2(a.cos + at), s = load_l2(a.sin + at);
      q[r] = turned(q[r], c, s), k[r] = turned(k[r], c, s);
    }
    const u32 at = shared_address(QUERIES + of * 8192 + frame * 128 + ((piece ^ (frame & 7)) << 4));
    store_shared(at, q[r]);
    store_shared(swizzled + BLOCKS + r * STEP * 128, k[r]);
    store_shared(swizzled + BLOCKS + TILE + r * STEP * 128, v[r]);
    unsigned char* to =
        (unsigned char*)load_shared_long(shared_address(BASES + (filled + of) * 8)) + frame * 128 + piece * 16;
    *(uint4*)to = k[r], *(uint4*)(to + TO_VALUES) = v[r];
  }
  for (int i = TOKENS * 8 + threadIdx.x; i < KEYS * 8; i += THREADS) {  // what no key is
    store_shared(shared_address(BLOCKS + i * 16), make_uint4(0, 0, 0, 0));
    store_shared(shared_address(BLOCKS + TILE + i * 16), make_uint4(0, 0, 0, 0));
  }
  publish_shared();
  __syncthreads();

  const u64 queries = operand(shared_address(QUERIES)) + cell * (8192 >> 4), keys = operand(shared_address(BLOCKS));
  float s[KEYS / 2], sums[32], factor[2], shift[2];
  Seen seen = {{MASKED, MASKED}, {0.0f, 0.0f}};
  multiply_keys_async(s, queries, keys);
  wait_products<0>();
  mask(s, min((cell + 1) * FRAMES, (int)a.count[row]));
  look_at(s, seen, a.scale, factor, shift);
  multiply_values<true>(sums, s, seen, a.scale, shift, keys + (TILE >> 4));
  for (int i = 0; i < blocks; i++) {
    wait_copies<STAGES - 2>();
    publish_shared();
    __syncthreads();  // all have passed the products of the block before, whose place the next copies take
    const u64 block = keys + (i + 1) % STAGES * (STAGE >> 4);
    multiply_keys_async(s, queries, block);
    if (i + STAGES - 1 < blocks) copy_block(i + STAGES - 1);
    commit_copies();
    wait_products<0>();
    if (kept - i * KEYS < KEYS) mask(s, kept - i * KEYS);
    look_at(s, seen, a.scale, factor, shift);
#pragma unroll
    for (int j = 0; j < 32; j++) sums[j] *= factor[j / 2 % 2];
    multiply_values<false>(sums, s, seen, a.scale, shift, block + (TILE >> 4));
  }

  // The result goes by way of the queries' place, from which it leaves in rows of 128 bytes.
  __syncthreads();
  const int lane = threadIdx.x & 31, above = threadIdx.x / 32 * 16 + lane / 4;
#pragma unroll
  for (int half = 0; half < 2; half++) {
    float sum = seen.sum[half] + other_lane(seen.sum[half], 1);
    sum += other_lane(sum, 2);
    const float inverse = sum > 0.0f ? 1.0f / sum : 1.0f;  // a row behind its end may have no keys
    const int at = above + half * 8;
#pragma unroll
    for (int j = 0; j < 8; j++)
      store_shared_word(shared_address(QUERIES + at * 128 + ((j ^ (at & 7)) << 4) + lane % 4 * 4),
                        to_elements(sums[4 * j + 2 * half] * inverse, sums[4 * j + 2 * half + 1] * inverse));
  }
  __syncthreads();
#pragma unroll
  for (int r = 0; r < OWN_STEPS; r++) {
    const int token = first + r * STEP, of = token / FRAMES, frame = token - of * FRAMES;
    if (token >= TOKENS) break;
    *(uint4*)(a.out + ((u64)branch * TOKENS + token) * DIM + head * 64 + piece * 8) =
        load_shared(shared_address(QUERIES + of * 8192 + frame * 128 + ((piece ^ (frame & 7)) << 4)));
  }
}

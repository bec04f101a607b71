// y[M, N] = x[M, K] @ weight[N, K].T of some dozens to some hundreds of rows, with a norm before and a gate, bias or
// residual addition after.
//
// A GEMM of so many rows takes longer to start and to bring x to every SM than to read its weights, so:
// - The weights are the 64-row operand of `wgmma`, rows of x its columns, of which there are as many as rows.
// - K is split over the CTAs of a cluster, so that a CTA with many outputs reads a small part of x, and all SMs work. Their
//   sums meet in distributed shared memory.
// - The norm's weight multiplies x in shared memory, by the thread that copied it. Its sum of squares is added up there too,
//   and divides the finished sum.
// - Weights are asked for before the launch in front has ended.
// - Weights in int8 are widened to 16 bits on their way to the operand, by the thread that copied them, which every value
//   survives. Their output's scale multiplies the finished sum.
//
// The order of the sums of an output is fixed by K and SPLITS alone: a CTA adds its k in order, then the CTAs' sums are
// added in order.
//
// The compiler gets as macros: K, N (outputs, of each half with GATE), NORM, GATE, BIAS, ADD, DTYPE ("bf16" or "f16"), PDL,
// BITS (of a weight: 16, or 8 of an int8), COLUMNS (rows of x of a CTA, a multiple of 8), WARP_GROUPS (each with 64 weight rows), SPLITS (CTAs of a cluster), STAGES
// (groups of 64 k in shared memory), AHEAD (ask the L2 cache for the weights of the other groups before the launch in front
// has ended), MIN_CTAS (of an SM, by their registers), and the operands of a product of COLUMNS (`product_macros`).
#define THREADS (WARP_GROUPS * 128)
#define CLUSTER SPLITS
#include <cluster.cuh>
#include <common.cuh>

constexpr int MY_GROUPS = GROUPS / SPLITS;  // of 64 k, of a CTA
constexpr int TILE_ROWS = WARP_GROUPS * 64;  // of weights
constexpr int TILE_OUTPUTS = GATE ? TILE_ROWS / 2 : TILE_ROWS;
constexpr int STEP = THREADS / 8;  // rows that all threads copy at once: 8 threads copy a row of 128 bytes
constexpr int ROW_BYTES = GROUP * BITS / 8;  // of a weight row and group
constexpr int ROW_PIECES = ROW_BYTES / 16, WEIGHT_STEP = THREADS / ROW_PIECES;  // rows of weights that are copied at once
constexpr int WEIGHT_STEPS = TILE_ROWS / WEIGHT_STEP, X_STEPS = (COLUMNS + STEP - 1) / STEP;
constexpr int WEIGHT_BYTES = TILE_ROWS * ROW_BYTES, STAGE_BYTES = WEIGHT_BYTES + COLUMNS * 128;
constexpr int WIDE_STAGES = BITS == 8 ? 3 : 0, WIDE_BYTES = TILE_ROWS * 128;  // operands of widened weights
constexpr int WIDE = STAGES * STAGE_BYTES, COPIED_BYTES = WIDE + WIDE_STAGES * WIDE_BYTES;
constexpr int PITCH = TILE_ROWS + 4;  // of sums [COLUMNS, TILE_ROWS], in place of the stages. 4: without bank conflicts
constexpr int SQUARES = COPIED_BYTES > COLUMNS * PITCH * 4 ? COPIED_BYTES : COLUMNS * PITCH * 4;
constexpr int ROW_SQUARES = SQUARES + COLUMNS * 8 * 4;  // SQUARES [COLUMNS, 8] of threads, ROW_SQUARES [COLUMNS]
constexpr int QUADS = TILE_OUTPUTS / 4, OWN_ROWS = (COLUMNS + SPLITS - 1) / SPLITS;
constexpr int ITEMS = (OWN_ROWS * QUADS + THREADS - 1) / THREADS;  // four outputs each, of a thread
constexpr int AT_ONCE = ITEMS < 4 ? ITEMS : 4;

static_assert(GROUPS % SPLITS == 0 && N % TILE_OUTPUTS == 0 && COLUMNS % 8 == 0, "shape");
static_assert(THREADS % QUADS == 0 && STAGES >= 3 && STAGES <= MY_GROUPS && !(GATE && BIAS), "options");

INLINE u32 square_pair(u32 v, float& sum) {
  const float low = from_element(v & 0xffff), high = from_element(v >> 16);
  sum += low * low;
  sum += high * high;
  return v;
}

// What a unit of x becomes in shared memory, and its squares.
INLINE uint4 normed(uint4 v, uint4 weight, float& squares) {
  square_pair(v.x, squares), square_pair(v.y, squares), square_pair(v.z, squares), square_pair(v.w, squares);
  return make_uint4(multiply_pairs(v.x, weight.x), multiply_pairs(v.y, weight.y), multiply_pairs(v.z, weight.z),
                    multiply_pairs(v.w, weight.w));
}

// Two weights in int8: bytes 0 and 1 of `w`, or 2 and 3 with SECOND. Every value is exact.
template <bool SECOND> INLINE u32 widen_pair(u32 w) {
  constexpr bool BF16 = DTYPE[0] == 'b';
  // A byte below the bits of 128 (bf16) or 1024 (f16) adds itself, where the mantissa has a place for it. In bf16 its last
  // place for the sign doubles 128, so 128 or 256 is taken off again.
  const u32 p = byte_permute(BF16 ? w : w ^ 0x80808080, BF16 ? 0x43434343 : 0x64646464, SECOND ? 0x4342 : 0x4140);
  return BF16 ? add_pairs(p & 0xff7fff7f, (p & 0x00800080) ^ 0xc300c300) : add_pairs(p, 0xe480e480);
}
INLINE uint4 widen(u32 first, u32 second) {
  return make_uint4(widen_pair<false>(first), widen_pair<true>(first), widen_pair<false>(second), widen_pair<true>(second));
}

INLINE float4 multiply(float4 a, float4 b) { return make_float4(a.x * b.x, a.y * b.y, a.z * b.z, a.w * b.w); }

template <int LIMIT> INLINE void wait_copies_upto(int pending) {
  if (pending >= LIMIT) wait_copies<LIMIT>();
  else if constexpr (LIMIT > 0) wait_copies_upto<LIMIT - 1>(pending);
}

INLINE float inverse_rms(int row, float eps, bool wanted) {
  float sum = 0.0f;
#pragma unroll
  for (int s = 0; s < SPLITS; s++) sum += load_remote_sum(remote(shared_address(ROW_SQUARES + row * 4), s), wanted);
  return rsqrtf(sum / K + eps);
}

INLINE float4 sum_splits(u32 address, bool wanted) {
  float4 sum = load_remote_sums(remote(address, 0), wanted);
#pragma unroll
  for (int s = 1; s < SPLITS; s++) {
    const float4 v = load_remote_sums(remote(address, s), wanted);
    sum.x += v.x; sum.y += v.y; sum.z += v.z; sum.w += v.w;
  }
  return sum;
}

CLUSTER_KERNEL cluster_gemm(const Arguments a) {
  const int piece = threadIdx.x & 7, first = threadIdx.x >> 3;  // 16 bytes of a row, and the row
  const int split = blockIdx.x % SPLITS, first_output = blockIdx.x / SPLITS * TILE_OUTPUTS, first_row = blockIdx.y * COLUMNS;
  const int k = split * MY_GROUPS * GROUP + piece * 8;
  const u32 swizzled = shared_address(first * 128 + ((piece ^ (first & 7)) << 4));

  // With GATE, rows 0 to 7 of 16 are of the gate and rows 8 to 15 of what it multiplies.
  auto weight_row = [&](int row) { return GATE ? row / 16 * 8 + row % 8 + (row & 8 ? N : 0) : row; };
  const int own_piece = threadIdx.x % ROW_PIECES, own_row = threadIdx.x / ROW_PIECES;  // of weights
  const unsigned char* weights = a.weight + ((u64)first_output * K + split * MY_GROUPS * GROUP) * BITS / 8;
  const unsigned char* weight = weights + (u64)weight_row(own_row) * K * BITS / 8 + own_piece * 16;
  const u32 copied = BITS == 8 ? shared_address(threadIdx.x * 16) : swizzled;
  auto copy_weights = [&](int i, int stage) {
#pragma unroll
    for (int r = 0; r < WEIGHT_STEPS; r++)
      copy_async(copied + stage * STAGE_BYTES + r * WEIGHT_STEP * ROW_BYTES,
                 weight + (u64)r * (GATE ? WEIGHT_STEP / 2 : WEIGHT_STEP) * K * BITS / 8 + i * ROW_BYTES);
  };
  auto widen_weights = [&](int stage, int wide_stage) {
#pragma unroll
    for (int r = 0; r < WEIGHT_STEPS; r++) {
      const uint4 w = load_shared(copied + stage * STAGE_BYTES + r * WEIGHT_STEP * ROW_BYTES);
      const u32 row = shared_address(WIDE + wide_stage * WIDE_BYTES + (own_row + r * WEIGHT_STEP) * 128);
      store_shared(row + ((own_piece * 2 ^ own_row & 7) << 4), widen(w.x, w.y));
      store_shared(row + ((own_piece * 2 + 1 ^ own_row & 7) << 4), widen(w.z, w.w));
    }
  };
  auto has_x = [&](int r) { return (r + 1) * STEP <= COLUMNS || first + r * STEP < COLUMNS; };
  const u16* x = a.x + (u64)(first_row + first) * a.stride_x + k;
  auto copy_x = [&](int i, int stage) {
#pragma unroll
    for (int r = 0; r < X_STEPS; r++)
      if (has_x(r)) {
        const bool exists = first_row + first + r * STEP < a.rows;
        copy_async_or_zero(swizzled + stage * STAGE_BYTES + WEIGHT_BYTES + r * STEP * 128,
                           exists ? x + (u64)r * STEP * a.stride_x + i * GROUP : a.x, exists);
      }
  };
#pragma unroll
  for (int i = 0; i < STAGES; i++) copy_weights(i, i);
  if (AHEAD && threadIdx.x < TILE_ROWS)
    prefetch_l2(weights + (u64)weight_row(threadIdx.x) * K * BITS / 8 + STAGES * ROW_BYTES, (MY_GROUPS - STAGES) * ROW_BYTES);
  const int quad = threadIdx.x % QUADS;  // of a thread's outputs
  const float* scale = a.scale + first_output + quad * 4;
  const float4 scale_above = BITS == 8 ? load_sums(scale) : make_float4(1.0f, 1.0f, 1.0f, 1.0f);
  const float4 scale_below = BITS == 8 && GATE ? load_sums(scale + N) : scale_above;
  uint4 norm[2];
  if (NORM) norm[0] = load_l2(a.norm + k);
  wait_for_previous();
  allow_next();  // after the wait: CTAs of the next launch would otherwise take the place of this one's
#pragma unroll
  for (int i = 0; i < STAGES; i++) {
    copy_x(i, i);
    commit_copies();  // with all weights, if it is the first
  }

  float sums[COLUMNS / 2] = {};
  float squares[X_STEPS] = {};
  const u64 weight_operand = operand(shared_address(BITS == 8 ? WIDE : 0)) + threadIdx.x / 128 * (8192 >> 4);
  const u64 x_operand = operand(shared_address(WEIGHT_BYTES));
#pragma unroll
  for (int i = 0; i < MY_GROUPS; i++) {
    const int stage = i % STAGES;
    if (NORM && i + 1 < MY_GROUPS) norm[(i + 1) % 2] = load_l2(a.norm + k + (i + 1) * GROUP);
    wait_copies_upto<STAGES - 1>(i < 2 ? STAGES - 1 - i : STAGES - 3);
    if (NORM) {
#pragma unroll
      for (int r = 0; r < X_STEPS; r++)
        if (has_x(r)) {
          const u32 at = swizzled + stage * STAGE_BYTES + WEIGHT_BYTES + r * STEP * 128;
          store_shared(at, normed(load_shared(at), norm[i % 2], squares[r]));
        }
    }
    if (BITS == 8) widen_weights(stage, i % 3);  // whose products of group i - 3 all have passed
    publish_shared();
    __syncthreads();
    if (i >= 2) {  // all have passed the products of group i - 2
      if (i - 2 + STAGES < MY_GROUPS) {
        copy_weights(i - 2 + STAGES, (i - 2) % STAGES);
        copy_x(i - 2 + STAGES, (i - 2) % STAGES);
      }
      commit_copies();
    }
    begin_products();
#pragma unroll
    for (int j = 0; j < 4; j++) {
      const int at = (stage * STAGE_BYTES + j * 32) >> 4, wide = (i % 3 * WIDE_BYTES + j * 32) >> 4;
      multiply_async(sums, weight_operand + (BITS == 8 ? wide : at), x_operand + at);
    }
    commit_products();
    wait_products<1>();
  }

  // Four outputs of row `split`, `split` + SPLITS, ... of this CTA's columns.
  auto item = [&](int i) { return (int)threadIdx.x + i * THREADS; };
  auto item_row = [&](int i) { return item(i) / QUADS * SPLITS + split; };
  auto exists = [&](int i) { return i < ITEMS && item_row(i) < COLUMNS && first_row + item_row(i) < a.rows; };
  uint2 added[ADD ? ITEMS : 1];
  if (ADD) {
#pragma unroll
    for (int i = 0; i < ITEMS; i++) {
      if (exists(i))
        added[i] = load_l2_pair(a.residual + (u64)(first_row + item_row(i)) * a.stride_residual + first_output + quad * 4);
    }
  }
  wait_products<0>();
  if (NORM) {
#pragma unroll
    for (int r = 0; r < X_STEPS; r++)
      if (has_x(r))
        store_shared_sum(shared_address(SQUARES + ((first + r * STEP) * 8 + piece) * 4), squares[r]);
  }
  __syncthreads();  // all have multiplied: their sums take the place of what was copied
  const int lane = threadIdx.x & 31, above = threadIdx.x / 32 * 16 + lane / 4;
  const u32 kept = shared_address((lane % 4 * 2 * PITCH + above) * 4);
#pragma unroll
  for (int j = 0; j < COLUMNS / 8; j++) {
    const u32 at = kept + j * 8 * PITCH * 4;
    store_shared_sum(at, sums[4 * j]);
    store_shared_sum(at + PITCH * 4, sums[4 * j + 1]);
    store_shared_sum(at + 32, sums[4 * j + 2]);
    store_shared_sum(at + PITCH * 4 + 32, sums[4 * j + 3]);
  }
  if (NORM) {
    for (int row = threadIdx.x; row < COLUMNS; row += THREADS) {
      const float4 v = load_shared_sums(shared_address(SQUARES + row * 32));
      const float4 w = load_shared_sums(shared_address(SQUARES + row * 32 + 16));
      store_shared_sum(shared_address(ROW_SQUARES + row * 4), v.x + v.y + v.z + v.w + w.x + w.y + w.z + w.w);
    }
  }
  sync_cluster();

#pragma unroll
  for (int begin = 0; begin < ITEMS; begin += AT_ONCE) {
    float4 all_sums[AT_ONCE], ups[AT_ONCE];
    float scales[AT_ONCE];
#pragma unroll
    for (int i = 0; i < AT_ONCE; i++) {  // all are on their way before the first is used
      const int row = item_row(begin + i);
      const bool wanted = exists(begin + i);
      const u32 at = shared_address((row * PITCH + (GATE ? quad / 2 * 16 + quad % 2 * 4 : quad * 4)) * 4);
      all_sums[i] = sum_splits(at, wanted);
      if (GATE) ups[i] = sum_splits(at + 32, wanted);
      if (NORM) scales[i] = inverse_rms(row, a.eps, wanted);
    }
#pragma unroll
    for (int i = 0; i < AT_ONCE; i++) {
      if (!exists(begin + i)) continue;
      const int row = first_row + item_row(begin + i), n = first_output + quad * 4;
      const uint2 bias = BIAS ? load_l2_pair(a.bias + n) : make_uint2(0, 0);
      const uint2 more = ADD ? added[begin + i < ITEMS ? begin + i : 0] : make_uint2(0, 0);
      auto output = [&](float sum, float up, u32 b, u32 r) -> u32 { return finished(sum, up, scales[i], b, r); };
      const float4 s = multiply(all_sums[i], scale_above), u = multiply(ups[i], scale_below);
      *(uint2*)(a.out + (u64)row * N + n) =
          make_uint2(output(s.x, u.x, bias.x, more.x) | output(s.y, u.y, bias.x >> 16, more.x >> 16) << 16,
                     output(s.z, u.z, bias.y, more.y) | output(s.w, u.w, bias.y >> 16, more.y >> 16) << 16);
    }
  }
  meet_cluster();  // before its shared memory goes, all have read it
}

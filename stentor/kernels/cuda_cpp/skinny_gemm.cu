// y[M, N] = x[M, K] @ weight[N, K].T of few rows, with a norm before and a gate, bias or residual addition after.
//
// The time is that of reading the weights once, so everything serves to have many of their bytes in flight:
// - The weights are the 16-row operand of the tensor core and rows of x its 8 columns: up to 8 rows cost what 1 costs.
// - A thread copies exactly the 16-byte pieces of weights that it will multiply itself. Shared memory is a long register
//   file: no barrier in the main loop. The k of a group of 64 are permuted alike for weights and x to make this so.
// - K is split over the warps of a CTA, each of which reads its part of x from the L2 cache into registers once.
//
// The order of the sums of an output is fixed by K and WARPS alone. A warp adds its groups of 64 k in order, then the
// warps' sums are added in order. A row is the same bit for bit in any company and with any tile, if WARPS is the same.
//
// The compiler gets as macros: K, N (outputs, of each half with GATE), NORM, GATE, BIAS, ADD, DTYPE ("bf16" or "f16"), PDL,
// WARPS, ROW_TILES (of 8 rows, of a CTA), TILES (of 16 weight rows, of a CTA), HALF (tiles have 8 weight rows), BATCH and
// BATCHES (groups of 64 k whose x a warp keeps in registers at a time, and how often), STAGES (copies in flight of a warp)
// and MIN_CTAS (of an SM).
#define THREADS (WARPS * 32)
#define ROW_TILE 8
#include <skinny.cuh>

constexpr int GROUP_BYTES = GROUP * 2, ROW_BYTES = K * 2;  // of weights
constexpr int UNIT_BYTES = TILE_ROWS * GROUP_BYTES;
constexpr int STAGE_BYTES = WARPS * UNIT_BYTES;
constexpr int X_BUFFERS = BATCHES > 1 ? 2 : 1;

constexpr int SUMS = STAGES * STAGE_BYTES;  // addresses in shared memory, after the weights
constexpr int SQUARES = SUMS + WARPS * SLOTS * 16;

// The sum of one output, added over the warps in their order.
INLINE float4 sum_warps(int slot) {
  float4 sum = load_shared_sums(shared_address(SUMS + slot * 16));
#pragma unroll
  for (int w = 1; w < WARPS; w++) {
    const float4 v = load_shared_sums(shared_address(SUMS + (w * SLOTS + slot) * 16));
    sum.x += v.x; sum.y += v.y; sum.z += v.z; sum.w += v.w;
  }
  return sum;
}

KERNEL skinny_gemm(const Arguments a) {
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, g = lane >> 2, t = lane & 3;
  const int first_tile = blockIdx.x * TILES, first_row = blockIdx.y * CTA_ROWS;
  const int first_group = warp * WARP_GROUPS, k = first_group * GROUP + t * 8;
  auto has_group = [&](int i) { return EVEN_GROUPS || first_group + i < GROUPS; };
  auto has_tile = [&](int i) { return EVEN_TILES || first_tile + i < ALL_TILES; };

  // A unit is group j of a tile. Batches of groups come first, so that x is read once: `tile` counts all tiles of each.
  const unsigned char* upper =
      a.weight + (u64)(first_tile * TILE_OUTPUTS + g) * ROW_BYTES + first_group * GROUP_BYTES + t * 16;
  const unsigned char* lower = upper + (u64)(GATE ? N : 8) * ROW_BYTES;
  const u32 own = shared_address(warp * UNIT_BYTES + lane * 16);  // what this lane copies to the first stage
  auto copy_unit = [&](int tile, int j_of_batch, u32 stage) {
    const int b = BATCHES > 1 ? tile / TILES : 0, i = tile - b * TILES, j = b * BATCH + j_of_batch;
    if (has_group(j) && has_tile(i)) {
      const u32 to = own + stage;
      const u64 from = (u64)i * TILE_OUTPUTS * ROW_BYTES + j * GROUP_BYTES;
      copy_async(to, upper + from);
      copy_async(to + 512, upper + from + 64);
      if (!HALF) copy_async(to + 1024, lower + from), copy_async(to + 1536, lower + from + 64);
    }
    commit_copies();
  };
#pragma unroll
  for (int u = 0; u < STAGES; u++) copy_unit(u / BATCH, u % BATCH, u * STAGE_BYTES);

  Part norm[NORM && BATCHES == 1 ? BATCH : 1];
  auto load_norm = [&](int i) {
    const u16* p = a.norm + k + i * GROUP;
    return Part{load_l2(p), load_l2(p + 32)};
  };
  if (NORM && BATCHES == 1) {
#pragma unroll
    for (int j = 0; j < BATCH; j++)
      if (has_group(j)) norm[j] = load_norm(j);
  }
  wait_for_previous();
  allow_next();  // after the wait: CTAs of the next launch would otherwise take the place of this one's

  Part x[X_BUFFERS][BATCH][ROW_TILES];
  auto load_x = [&](int b) {
#pragma unroll
    for (int j = 0; j < BATCH; j++)
#pragma unroll
      for (int m = 0; m < ROW_TILES; m++) {
        const int row = first_row + m * 8 + g, i = b * BATCH + j;
        Part v{make_uint4(0, 0, 0, 0), make_uint4(0, 0, 0, 0)};
        if (row < a.rows && has_group(i)) {
          const u16* p = a.x + (u64)row * a.stride_x + k + i * GROUP;
          v = Part{load_l2(p), load_l2(p + 32)};
        }
        x[b % X_BUFFERS][j][m] = v;
      }
  };
  load_x(0);

  // The slots that a thread finishes. One has two rows of x, and output n or n and n + 8 of each.
  auto slot_row = [&](int slot) { return first_row + slot / 32 % ROW_TILES * 8 + t * 2; };
  auto slot_output = [&](int slot) { return (first_tile + slot / 32 / ROW_TILES) * TILE_OUTPUTS + g; };
  auto has_slot = [&](int slot, int r) {
    return slot < SLOTS && slot_row(slot) + r < a.rows && has_tile(slot / 32 / ROW_TILES);
  };
  Added added[2][OUTPUTS];
  auto load_slot = [&](int slot) {
#pragma unroll
    for (int r = 0; r < 2; r++)
#pragma unroll
      for (int o = 0; o < OUTPUTS; o++)
        if (has_slot(slot, r)) added[r][o] = load_added(a, slot_row(slot) + r, slot_output(slot) + 8 * o);
  };
  load_slot(threadIdx.x);

  float sums[TILES][ROW_TILES][4] = {};
  u32 stage = 0;  // of the unit, in bytes
  float squares[ROW_TILES][4] = {};
#pragma unroll
  for (int b = 0; b < BATCHES; b++) {
    if (b + 1 < BATCHES) load_x(b + 1);
    auto& xb = x[b % X_BUFFERS];
    if (NORM) {
#pragma unroll
      for (int j = 0; j < BATCH; j++)
        if (has_group(b * BATCH + j)) {
          const Part weight = BATCHES == 1 ? norm[j] : load_norm(b * BATCH + j);
          const Part zero{make_uint4(0, 0, 0, 0), make_uint4(0, 0, 0, 0)};
#pragma unroll
          for (int m = 0; m < ROW_TILES; m++) {
            mma_group(squares[m], xb[j][m], zero, xb[j][m]);  // the diagonal is the sum of the squares of each row
            xb[j][m] = multiply_parts(xb[j][m], weight);
          }
        }
    }
#pragma unroll
    for (int i = 0; i < TILES; i++) {
#pragma unroll
      for (int j = 0; j < BATCH; j++) {
        wait_copies<STAGES - 1>();
        if (has_group(b * BATCH + j) && has_tile(i)) {
          const u32 from = own + stage;
          const Part above{load_shared(from), load_shared(from + 512)};
          Part below{make_uint4(0, 0, 0, 0), make_uint4(0, 0, 0, 0)};
          if (!HALF) below = Part{load_shared(from + 1024), load_shared(from + 1536)};
#pragma unroll
          for (int m = 0; m < ROW_TILES; m++) mma_group(sums[i][m], above, below, xb[j][m]);
        }
        const int next = b * TILES + i + (j + STAGES) / BATCH;
        if (next < BATCHES * TILES) copy_unit(next, (j + STAGES) % BATCH, stage);
        else commit_copies();
        stage = stage + STAGE_BYTES == STAGES * STAGE_BYTES ? 0 : stage + STAGE_BYTES;
      }
    }
  }

#pragma unroll
  for (int i = 0; i < TILES; i++)
#pragma unroll
    for (int m = 0; m < ROW_TILES; m++) {
      const float(&s)[4] = sums[i][m];
      store_shared_sums(shared_address(SUMS + (warp * SLOTS + (i * ROW_TILES + m) * 32 + lane) * 16),
                        make_float4(s[0], s[1], s[2], s[3]));
    }
  if (NORM && g / 2 == t) {  // this lane has element (g, g) of the products of rows with rows
#pragma unroll
    for (int m = 0; m < ROW_TILES; m++)
      store_shared_sum(shared_address(SQUARES + (warp * CTA_ROWS + m * 8 + g) * 4), g & 1 ? squares[m][1] : squares[m][0]);
  }
  __syncthreads();

  for (int slot = threadIdx.x; slot < SLOTS; slot += THREADS) {
    if (slot != threadIdx.x) load_slot(slot);
    const float4 sum = sum_warps(slot);
    const float above[2] = {sum.x, sum.y}, below[2] = {sum.z, sum.w};
#pragma unroll
    for (int r = 0; r < 2; r++) {
      if (!has_slot(slot, r)) continue;
      const int row = slot_row(slot) + r, n = slot_output(slot);
      const float scale = NORM ? inverse_rms(shared_address(SQUARES), row - first_row, a.eps) : 1.0f;
      store_output(a, row, n, above[r], below[r], scale, added[r][0]);
      if (OUTPUTS == 2) store_output(a, row, n + 8, below[r], 0.0f, scale, added[r][OUTPUTS - 1]);
    }
  }
}

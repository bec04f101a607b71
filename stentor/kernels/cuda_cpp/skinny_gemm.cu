// y[M, N] = x[M, K] @ weight[N, K].T of few rows, with a norm before and a gate, bias or residual addition after.
//
// The time is that of reading the weights once, so everything serves to have many of their bytes in flight:
// - The weights are the 16-row operand of the tensor core and rows of x its 8 columns: up to 8 rows cost what 1 costs.
// - A thread copies exactly the 16-byte pieces of weights that it will multiply itself. Shared memory is a long register
//   file: no barrier in the main loop. The k of a group of 64 are permuted alike for weights and x to make this so.
// - K is split over the warps of a CTA, each of which reads its part of x from the L2 cache into registers once.
// - Weights in int8 (BITS is 8) become 16 bits in registers, and their output's scale multiplies its finished sum. A quad of
//   lanes copies 64 bytes of a row, of which each lane multiplies 8 and 8: the same k as with 16 bits. So lanes read what
//   others copied, and the warp waits for itself. Their loop over tiles is rolled, and sums wait in shared memory for the
//   next batch: unrolled, the code is so long that instructions come late.
//
// The order of the sums of an output is fixed by K and WARPS alone. A warp adds its groups of 64 k in order, then the
// warps' sums are added in order. A row is the same bit for bit in any company and with any tile, if WARPS is the same.
//
// The compiler gets as macros: K, N (outputs, of each half with GATE), NORM, GATE, BIAS, ADD, DTYPE ("bf16" or "f16"), BITS
// (of a weight: 16, or 8 of an int8), PDL, WARPS, ROW_TILES (of 8 rows, of a CTA), TILES (of 16 weight rows, of a CTA), HALF (tiles have 8 weight rows), BATCH and
// BATCHES (groups of 64 k whose x a warp keeps in registers at a time, and how often), STAGES (copies in flight of a warp)
// and MIN_CTAS (of an SM).
#define THREADS (WARPS * 32)
#include <common.cuh>

constexpr int WARP_GROUPS = BATCH * BATCHES;
constexpr bool EVEN_GROUPS = WARPS * WARP_GROUPS == GROUPS;  // every warp has as many
constexpr int TILE_OUTPUTS = GATE || HALF ? 8 : 16;
constexpr int ALL_TILES = N / TILE_OUTPUTS;
constexpr bool EVEN_TILES = ALL_TILES % TILES == 0;
constexpr int TILE_ROWS = HALF ? 8 : 16;
constexpr int ROW_BYTES = K * BITS / 8, GROUP_BYTES = GROUP * BITS / 8;  // of weights
constexpr int UNIT_BYTES = TILE_ROWS * GROUP_BYTES;  // of one tile and group
constexpr int STAGE_BYTES = WARPS * UNIT_BYTES;
constexpr int UNITS = TILES * WARP_GROUPS;  // of a warp
constexpr int CTA_ROWS = ROW_TILES * 8;
constexpr int SLOTS = TILES * ROW_TILES * 32;  // a slot: the four sums of a lane for a tile and 8 rows
constexpr int X_BUFFERS = BATCHES > 1 ? 2 : 1;
constexpr bool ROLLED = BITS == 8;

constexpr int SUMS = STAGES * STAGE_BYTES;  // addresses in shared memory, after the weights
constexpr int SQUARES = SUMS + WARPS * SLOTS * 16;
constexpr int SCALES = SQUARES + (NORM ? WARPS * CTA_ROWS * 4 : 0);

static_assert(N % TILE_OUTPUTS == 0, "shape");
static_assert(WARP_GROUPS == (GROUPS + WARPS - 1) / WARPS, "the groups of a warp follow from K and WARPS");
static_assert(!(GATE && HALF) && !(GATE && BIAS) && STAGES <= UNITS, "options");

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

INLINE float inverse_rms(int row, float eps) {
  float sum = 0.0f;
#pragma unroll
  for (int w = 0; w < WARPS; w++) sum += load_shared_sum(shared_address(SQUARES + (w * CTA_ROWS + row) * 4));
  return rsqrtf(sum / K + eps);
}

INLINE void store_output(const Arguments& a, int row, int n, float sum, float up, float scale) {
  const u16 bias = BIAS ? load_l2_element(a.bias + n) : 0;
  const u16 residual = ADD ? load_l2_element(a.residual + (u64)row * a.stride_residual + n) : 0;
  a.out[(u64)row * N + n] = finished(sum, up, scale, bias, residual);
}

KERNEL skinny_gemm(const Arguments a) {
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, g = lane >> 2, t = lane & 3;
  const int first_tile = blockIdx.x * TILES, first_row = blockIdx.y * CTA_ROWS;
  const int first_group = warp * WARP_GROUPS, k = first_group * GROUP + t * 8;
  auto has_group = [&](int i) { return EVEN_GROUPS || first_group + i < GROUPS; };
  auto has_tile = [&](int i) { return EVEN_TILES || first_tile + i < ALL_TILES; };

  if (BITS == 8) {  // scales, with the copies of the first unit
    constexpr int PIECES = TILES * TILE_ROWS / 4;
#pragma unroll
    for (int first = 0; first < PIECES; first += THREADS) {
      const int piece = first + threadIdx.x, i = piece * 4 / TILE_ROWS, r = piece * 4 % TILE_ROWS;
      const float* scale = a.scale + (first_tile + i) * TILE_OUTPUTS + r + (GATE && r >= 8 ? N - 8 : 0);
      if (piece < PIECES && has_tile(i)) copy_async(shared_address(SCALES + piece * 16), scale);
    }
  }
  // A unit is group j of a tile. Batches of groups come first, so that x is read once: `tile` counts all tiles of each.
  const unsigned char* upper =
      a.weight + (u64)(first_tile * TILE_OUTPUTS + g) * ROW_BYTES + first_group * GROUP_BYTES + t * 16;
  const unsigned char* lower = upper + (u64)(GATE ? N : 8) * ROW_BYTES;
  const u32 unit = shared_address(warp * UNIT_BYTES);  // where the first stage is
  const u32 copied = unit + (BITS == 8 ? t / 2 * 256 + g * 32 + t % 2 * 16 : lane * 16);
  const u32 multiplied = unit + lane * (BITS == 8 ? 8 : 16);
  auto copy_unit = [&](int tile, int j_of_batch, u32 stage) {
    const int b = BATCHES > 1 ? tile / TILES : 0, i = tile - b * TILES, j = b * BATCH + j_of_batch;
    if (has_group(j) && has_tile(i)) {
      const u32 to = copied + stage;
      const u64 from = (u64)i * TILE_OUTPUTS * ROW_BYTES + j * GROUP_BYTES;
      copy_async(to, upper + from);
      if (BITS == 16) copy_async(to + 512, upper + from + 64);
      if (!HALF) {
        copy_async(to + UNIT_BYTES / 2, lower + from);
        if (BITS == 16) copy_async(to + 1536, lower + from + 64);
      }
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

  // 8 rows of weights of a unit, by their address.
  auto load_rows = [&](u32 from) {
    if (BITS == 8) return Part{widen(load_shared_pair(from)), widen(load_shared_pair(from + 256))};
    return Part{load_shared(from), load_shared(from + 512)};
  };
  float sums[ROLLED ? 1 : TILES][ROW_TILES][4] = {};
  const u32 kept = shared_address(SUMS + (warp * SLOTS + lane) * 16);
  auto load_sums = [&](int i) {
#pragma unroll
    for (int m = 0; m < ROW_TILES; m++) {
      const float4 s = load_shared_sums(kept + (i * ROW_TILES + m) * 512);
      sums[0][m][0] = s.x, sums[0][m][1] = s.y, sums[0][m][2] = s.z, sums[0][m][3] = s.w;
    }
  };
  auto store_sums = [&](int i) {
#pragma unroll
    for (int m = 0; m < ROW_TILES; m++) {
      float(&s)[4] = sums[ROLLED ? 0 : i][m];
      store_shared_sums(kept + (i * ROW_TILES + m) * 512, make_float4(s[0], s[1], s[2], s[3]));
      if (ROLLED) s[0] = s[1] = s[2] = s[3] = 0.0f;
    }
  };
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
#pragma unroll(ROLLED ? 1 : TILES)
    for (int i = 0; i < TILES; i++) {
      if (ROLLED && b) load_sums(i);
#pragma unroll
      for (int j = 0; j < BATCH; j++) {
        wait_copies<STAGES - 1>();
        if (BITS == 8) sync_warp();
        if (has_group(b * BATCH + j) && has_tile(i)) {
          const u32 from = multiplied + stage;
          const Part above = load_rows(from);
          Part below{make_uint4(0, 0, 0, 0), make_uint4(0, 0, 0, 0)};
          if (!HALF) below = load_rows(from + UNIT_BYTES / 2);
#pragma unroll
          for (int m = 0; m < ROW_TILES; m++) mma_group(sums[ROLLED ? 0 : i][m], above, below, xb[j][m]);
        }
        if (BITS == 8) sync_warp();  // all lanes have read what the next copies overwrite
        const int next = b * TILES + i + (j + STAGES) / BATCH;
        if (next < BATCHES * TILES) copy_unit(next, (j + STAGES) % BATCH, stage);
        else commit_copies();
        stage = stage + STAGE_BYTES == STAGES * STAGE_BYTES ? 0 : stage + STAGE_BYTES;
      }
      if (ROLLED) store_sums(i);
    }
  }

  if (!ROLLED) {
#pragma unroll
    for (int i = 0; i < TILES; i++) store_sums(i);
  }
  if (NORM && g / 2 == t) {  // this lane has element (g, g) of the products of rows with rows
#pragma unroll
    for (int m = 0; m < ROW_TILES; m++)
      store_shared_sum(shared_address(SQUARES + (warp * CTA_ROWS + m * 8 + g) * 4), g & 1 ? squares[m][1] : squares[m][0]);
  }
  __syncthreads();

  for (int slot = threadIdx.x; slot < SLOTS; slot += THREADS) {
    const int m = slot / 32 % ROW_TILES, i = slot / 32 / ROW_TILES;
    const int local = m * 8 + t * 2, row = first_row + local, n = (first_tile + i) * TILE_OUTPUTS + g;
    if (row >= a.rows || !has_tile(i)) continue;
    float4 sum = sum_warps(slot);
    if (BITS == 8) {
      const u32 scales = shared_address(SCALES + (i * TILE_ROWS + g) * 4);
      const float scale_above = load_shared_sum(scales), scale_below = HALF ? 0.0f : load_shared_sum(scales + 32);
      sum = make_float4(sum.x * scale_above, sum.y * scale_above, sum.z * scale_below, sum.w * scale_below);
    }
    const bool second = row + 1 < a.rows;
    const float scale = NORM ? inverse_rms(local, a.eps) : 1.0f;
    const float scale1 = NORM && second ? inverse_rms(local + 1, a.eps) : 1.0f;
    store_output(a, row, n, sum.x, sum.z, scale);
    if (second) store_output(a, row + 1, n, sum.y, sum.w, scale1);
    if (!GATE && !HALF) {
      store_output(a, row, n + 8, sum.z, 0.0f, scale);
      if (second) store_output(a, row + 1, n + 8, sum.w, 0.0f, scale1);
    }
  }
}

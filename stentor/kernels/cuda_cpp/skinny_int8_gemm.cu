// y[M, N] = x[M, K] @ (weight[N, K] * scale[N]).T of few rows, with weights in int8. See skinny_gemm.cu: a norm, gate, bias
// and residual, how weights are copied, and how K is split over warps are the same here.
//
// - Weights are multiplied as they are, by the tensor core's product of int8, so no instruction widens them.
// - x becomes integers of 15 bits for that, times a power of two for each row and group of 64 k. Elements down to a 64th of
//   the largest of their group are exact in bf16, others within 2^-14 of the largest. The upper and the lower byte of an
//   integer are two columns of the product: 4 rows of x are its 8 columns, and both sums end in one lane.
//   A group with an element that is not finite makes its sums NaN.
// - A warp makes the integers of its part of x once, 8 elements in a lane, and hands them over in shared memory of its own.
//
// The sum of a group is exact. A warp adds its groups in order, then the warps' sums are added in order, so a row is the
// same bit for bit in any company and with any tile, if WARPS is the same.
//
// The macros are those of skinny_gemm.cu, with ROW_TILES of 4 rows.
#define THREADS (WARPS * 32)
#define ROW_TILE 4
#include <skinny.cuh>

constexpr int UNIT_BYTES = TILE_ROWS * GROUP;
constexpr int STAGE_BYTES = WARPS * UNIT_BYTES;
constexpr int SCALE_PIECES = TILES * TILE_ROWS / 4;  // of 16 bytes

// A piece is 8 elements of x. Lanes have the same piece of different rows, or the next pieces of a row.
constexpr int PIECE_LANES = BATCH == 1 ? 8 : BATCH == 2 ? 16 : 32;
constexpr int PIECES = (BATCH * 8 + PIECE_LANES - 1) / PIECE_LANES;  // of a lane and row
constexpr int ROWS_AT_ONCE = 32 / PIECE_LANES, ROW_STEPS = CTA_ROWS / ROWS_AT_ONCE;

constexpr int SUMS = STAGES * STAGE_BYTES;  // addresses in shared memory, after the weights
constexpr int SCALES = SUMS + WARPS * SLOTS * 8;
constexpr int SQUARES = SCALES + SCALE_PIECES * 16;
constexpr int INTEGERS = SQUARES + (NORM ? WARPS * CTA_ROWS * 4 : 0);  // of a warp [ROW_TILES, BATCH, 8 columns, 64]
constexpr int INTEGER_BYTES = ROW_TILES * BATCH * 512;
constexpr int X_SCALES = INTEGERS + WARPS * INTEGER_BYTES;  // of a warp [BATCH, CTA_ROWS]
constexpr int X_SQUARES = X_SCALES + WARPS * BATCH * CTA_ROWS * 4;  // likewise

// Of a group: 16 bytes of a column, and what the sum of row `t` is multiplied by.
struct XPart {
  uint4 bytes;
  float scale;
};

INLINE float2 sum_warps(int slot) {
  float2 sum = load_shared_sum_pair(shared_address(SUMS + slot * 8));
#pragma unroll
  for (int w = 1; w < WARPS; w++) {
    const float2 v = load_shared_sum_pair(shared_address(SUMS + (w * SLOTS + slot) * 8));
    sum.x += v.x; sum.y += v.y;
  }
  return sum;
}

INLINE void unpack(float (&v)[8], uint4 u) {
  const u32 words[4] = {u.x, u.y, u.z, u.w};
#pragma unroll
  for (int i = 0; i < 4; i++) v[2 * i] = from_element(words[i] & 0xffff), v[2 * i + 1] = from_element(words[i] >> 16);
}

// Of the eight lanes of a group.
INLINE float sum_lanes(float v) {
  v += other_lane(v, 1);
  v += other_lane(v, 2);
  return v + other_lane(v, 4);
}
INLINE u32 max_lanes(u32 bits) {
#pragma unroll
  for (int mask = 1; mask < 8; mask *= 2) bits = max(bits, float_bits(other_lane(__uint_as_float(bits), mask)));
  return bits;
}

// The low 16 bits are an integer plus 128: then its second byte is the integer's upper byte, and its first byte, less 128,
// what the integer has beyond 256 times that.
INLINE u32 integer(float v, float up) { return float_bits(v * up + 12583040.0f); }  // 1.5 * 2^23 + 128

// The bytes of four integers: {lower, upper}.
INLINE uint2 split(const float* v, float up) {
  const u32 a = byte_permute(integer(v[0], up), integer(v[1], up), 0x5140);
  const u32 b = byte_permute(integer(v[2], up), integer(v[3], up), 0x5140);
  return make_uint2(byte_permute(a, b, 0x5410) ^ 0x80808080, byte_permute(a, b, 0x7632));
}

KERNEL skinny_int8_gemm(const Arguments a) {
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, g = lane >> 2, t = lane & 3;
  const int first_tile = blockIdx.x * TILES, first_row = blockIdx.y * CTA_ROWS, rows = a.rows - first_row;
  const int first_group = warp * WARP_GROUPS;
  auto has_group = [&](int i) { return EVEN_GROUPS || first_group + i < GROUPS; };
  auto has_tile = [&](int i) { return EVEN_TILES || first_tile + i < ALL_TILES; };

#pragma unroll
  for (int first = 0; first < SCALE_PIECES; first += THREADS) {  // with the copies of the first unit
    const int piece = first + threadIdx.x, i = piece * 4 / TILE_ROWS, r = piece * 4 % TILE_ROWS;
    const float* scale = a.scale + (first_tile + i) * TILE_OUTPUTS + r + (GATE && r >= 8 ? N - 8 : 0);
    if (piece < SCALE_PIECES && has_tile(i)) copy_async(shared_address(SCALES + piece * 16), scale);
  }
  const unsigned char* upper = a.weight + (u64)(first_tile * TILE_OUTPUTS + g) * K + first_group * GROUP + t * 16;
  const unsigned char* lower = upper + (u64)(GATE ? N : 8) * K;
  const u32 own = shared_address(warp * UNIT_BYTES + lane * 16);  // what this lane copies to the first stage
  auto copy_unit = [&](int tile, int j_of_batch, u32 stage) {
    const int b = BATCHES > 1 ? tile / TILES : 0, i = tile - b * TILES, j = b * BATCH + j_of_batch;
    if (has_group(j) && has_tile(i)) {
      const u64 from = (u64)i * TILE_OUTPUTS * K + j * GROUP;
      copy_async(own + stage, upper + from);
      if (!HALF) copy_async(own + stage + 512, lower + from);
    }
    commit_copies();
  };
#pragma unroll
  for (int u = 0; u < STAGES; u++) copy_unit(u / BATCH, u % BATCH, u * STAGE_BYTES);

  // Of this lane's pieces: where they begin, and whether they exist.
  const int my_row = lane / PIECE_LANES, my_piece = lane % PIECE_LANES;
  auto group_of = [&](int p) { return (p * PIECE_LANES + my_piece) / 8; };  // of the batch
  auto has_piece = [&](int b, int p) {
    return ((BATCH * 8) % PIECE_LANES == 0 || group_of(p) < BATCH) && has_group(b * BATCH + group_of(p));
  };
  auto piece_k = [&](int b, int p) { return (first_group + b * BATCH) * GROUP + (p * PIECE_LANES + my_piece) * 8; };
  uint4 norm[NORM ? PIECES : 1];
  auto load_norm = [&](int b) {
#pragma unroll
    for (int p = 0; p < PIECES; p++)
      if (has_piece(b, p)) norm[p] = load_l2(a.norm + piece_k(b, p));
  };
  if (NORM) load_norm(0);
  wait_for_previous();
  allow_next();  // after the wait: CTAs of the next launch would otherwise take the place of this one's

  const u32 integers = shared_address(INTEGERS + warp * INTEGER_BYTES);
  const u32 x_scales = shared_address(X_SCALES + warp * BATCH * CTA_ROWS * 4), x_squares = x_scales + X_SQUARES - X_SCALES;
  auto load_piece = [&](int row, int b, int p) {
    if (row >= rows || !has_piece(b, p)) return make_uint4(0, 0, 0, 0);
    return load_l2(a.x + (u64)(first_row + row) * a.stride_x + piece_k(b, p));
  };
  uint4 raw[ROW_STEPS][PIECES];
  auto load_pieces = [&](int b) {
#pragma unroll
    for (int s = 0; s < ROW_STEPS; s++)
#pragma unroll
      for (int p = 0; p < PIECES; p++) raw[s][p] = load_piece(s * ROWS_AT_ONCE + my_row, b, p);
  };
  // The integers of a batch of groups, from all lanes into shared memory.
  auto make_integers = [&](int b) {
#pragma unroll
    for (int s = 0; s < ROW_STEPS; s++) {
      if (s * ROWS_AT_ONCE >= rows) break;
      const int row = s * ROWS_AT_ONCE + my_row;
#pragma unroll
      for (int p = 0; p < PIECES; p++) {
        float v[8], squares = 0.0f;
        u32 largest = 0;  // bits of the largest absolute value, of which those of a NaN are larger than all others
        unpack(v, raw[s][p]);
        if (NORM) {
          float weight[8];
          unpack(weight, norm[p]);
#pragma unroll
          for (int i = 0; i < 8; i++) squares += v[i] * v[i], v[i] *= weight[i];
          squares = sum_lanes(squares);
        }
#pragma unroll
        for (int i = 0; i < 8; i++) largest = max(largest, float_bits(v[i]) & 0x7fffffff);
        const u32 exponent = max(max_lanes(largest) & 0x7f800000, 13u << 23);
        const u32 scale = exponent < 0x7f800000 ? exponent - (13u << 23) : 0x7fc00000;
        const float up = __uint_as_float((267u << 23) - exponent);  // the largest becomes 2^13 to 2^14
        const uint2 low = split(v, up), high = split(v + 4, up);
        if (!has_piece(b, p)) continue;
        const int j = group_of(p), e = my_piece % 8;
        const u32 to = integers + ((row / 4 * BATCH + j) * 8 + row % 4 * 2) * 64 + e * 8;
        store_shared_pair(to, make_uint2(low.y, high.y));
        store_shared_pair(to + 64, make_uint2(low.x, high.x));
        if (e == 0) {
          store_shared_sum(x_scales + (j * CTA_ROWS + row) * 4, __uint_as_float(scale));
          if (NORM) store_shared_sum(x_squares + (j * CTA_ROWS + row) * 4, squares);
        }
      }
    }
  };

  // The slots that a thread finishes. One has a row of x, and output n or n and n + 8.
  auto slot_row = [&](int slot) { return first_row + slot / 32 % ROW_TILES * 4 + t; };
  auto slot_output = [&](int slot) { return (first_tile + slot / 32 / ROW_TILES) * TILE_OUTPUTS + g; };
  auto has_slot = [&](int slot) {
    return slot < SLOTS && slot_row(slot) < a.rows && has_tile(slot / 32 / ROW_TILES);
  };
  Added added[OUTPUTS];
  auto load_slot = [&](int slot) {
#pragma unroll
    for (int o = 0; o < OUTPUTS; o++)
      if (has_slot(slot)) added[o] = load_added(a, slot_row(slot), slot_output(slot) + 8 * o);
  };

  const u32 kept = shared_address(SUMS + (warp * SLOTS + lane) * 8);
  u32 stage = 0;  // of the unit, in bytes
  float squares = 0.0f;  // of row `lane`
  load_pieces(0);
#pragma unroll(1)
  for (int b = 0; b < BATCHES; b++) {
    make_integers(b);
    if (b == 0) load_slot(threadIdx.x);
    if (b + 1 < BATCHES) {
      load_pieces(b + 1);
      if (NORM) load_norm(b + 1);
    }
    sync_warp();
    XPart x[BATCH][ROW_TILES];
#pragma unroll
    for (int j = 0; j < BATCH; j++) {
#pragma unroll
      for (int m = 0; m < ROW_TILES; m++) {
        x[j][m].bytes = load_shared(integers + ((m * BATCH + j) * 8 + g) * 64 + t * 16);
        x[j][m].scale = load_shared_sum(x_scales + (j * CTA_ROWS + m * 4 + t) * 4);
      }
      if (NORM && lane < CTA_ROWS && has_group(b * BATCH + j))
        squares += load_shared_sum(x_squares + (j * CTA_ROWS + lane) * 4);
    }
    if (BATCHES > 1) sync_warp();  // all lanes have read the integers, before those of the next batch come
#pragma unroll
    for (int i = 0; i < TILES; i++) {
      float2 sums[ROW_TILES];
#pragma unroll
      for (int m = 0; m < ROW_TILES; m++)
        sums[m] = b ? load_shared_sum_pair(kept + (i * ROW_TILES + m) * 256) : make_float2(0.0f, 0.0f);
#pragma unroll
      for (int j = 0; j < BATCH; j++) {
        wait_copies<STAGES - 1>();
        if (has_group(b * BATCH + j) && has_tile(i)) {
          const uint4 above = load_shared(own + stage);
          uint4 below = make_uint4(0, 0, 0, 0);
          if (!HALF) below = load_shared(own + stage + 512);
#pragma unroll
          for (int m = 0; m < ROW_TILES; m++) {
            int c[4] = {};
            mma_int8(c, above.x, below.x, above.y, below.y, x[j][m].bytes.x, x[j][m].bytes.y);
            mma_int8(c, above.z, below.z, above.w, below.w, x[j][m].bytes.z, x[j][m].bytes.w);
            sums[m].x += (float)(c[0] * 256 + c[1]) * x[j][m].scale;
            if (!HALF) sums[m].y += (float)(c[2] * 256 + c[3]) * x[j][m].scale;
          }
        }
        const int next = b * TILES + i + (j + STAGES) / BATCH;
        if (next < BATCHES * TILES) copy_unit(next, (j + STAGES) % BATCH, stage);
        else commit_copies();
        stage = stage + STAGE_BYTES == STAGES * STAGE_BYTES ? 0 : stage + STAGE_BYTES;
      }
#pragma unroll
      for (int m = 0; m < ROW_TILES; m++) store_shared_sum_pair(kept + (i * ROW_TILES + m) * 256, sums[m]);
    }
  }
  if (NORM && lane < CTA_ROWS) store_shared_sum(shared_address(SQUARES + (warp * CTA_ROWS + lane) * 4), squares);
  __syncthreads();

  for (int slot = threadIdx.x; slot < SLOTS; slot += THREADS) {
    if (slot != threadIdx.x) load_slot(slot);
    if (!has_slot(slot)) continue;
    const int row = slot_row(slot), n = slot_output(slot);
    const float2 sum = sum_warps(slot);
    const u32 scales = shared_address(SCALES + (slot / 32 / ROW_TILES * TILE_ROWS + g) * 4);
    const float above = sum.x * load_shared_sum(scales), below = HALF ? 0.0f : sum.y * load_shared_sum(scales + 32);
    const float scale = NORM ? inverse_rms(shared_address(SQUARES), row - first_row, a.eps) : 1.0f;
    store_output(a, row, n, above, below, scale, added[0]);
    if (OUTPUTS == 2) store_output(a, row, n + 8, below, 0.0f, scale, added[OUTPUTS - 1]);
  }
}

// The product of skinny_gemm.cu for many rows, with the same sums in the same order: K is split into SPLITS parts as it is
// over the warps there. Each part is added up by itself, and the parts are added in order.
//
// A CTA computes 128 weight rows by 128 rows of x in 8 warps, 32 by 64 each. Groups of 64 k of both come through a ring of
// STAGES in shared memory. The norm, if any, is not in here: norm_rows.cu gives x times its weight, and `scale`.
#define THREADS 256
#include <common.cuh>

constexpr int SPLIT_GROUPS = (GROUPS + SPLITS - 1) / SPLITS;
constexpr int CTA_WEIGHTS = 128, CTA_ROWS = 128;  // a CTA's rows of the two operands
constexpr int CTA_OUTPUTS = GATE ? CTA_WEIGHTS / 2 : CTA_WEIGHTS;
constexpr int OPERAND_BYTES = 128 * GROUP * 2;
constexpr int STAGE_BYTES = 2 * OPERAND_BYTES;
constexpr int WARP_TILES = 2, WARP_ROW_TILES = 8;  // tiles of 16 weight rows and of 8 rows of x, of a warp

// Piece `piece` of 16 bytes in row `row` of an operand in shared memory. The pieces of odd rows are exchanged, so that
// eight lanes that read four pieces of two rows each use all banks.
INLINE u32 piece_offset(int row, int piece) { return row * (GROUP * 2) + (piece ^ (row & 1) << 2) * 16; }

INLINE Part load_part(u32 operand, int row, int t) {
  return Part{load_shared(operand + piece_offset(row, t)), load_shared(operand + piece_offset(row, t + 4))};
}

// Row `i` of a CTA's weights. With GATE a tile of 16 has 8 rows of the gate and the same 8 of the other half.
INLINE int weight_row(int i) {
  if (!GATE) return blockIdx.x * CTA_WEIGHTS + i;
  return (i & 8 ? N : 0) + blockIdx.x * CTA_OUTPUTS + (i >> 4) * 8 + (i & 7);
}

KERNEL tiled_gemm(const Arguments a) {
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, g = lane >> 2, t = lane & 3;
  const int first_row = blockIdx.y * CTA_ROWS, warp_weights = warp / 2 * 32, warp_rows = warp % 2 * 64;

  // Rows beyond the last one repeat it: their outputs are not stored.
  const int piece = threadIdx.x % 8, copied = threadIdx.x / 8;  // and every 32nd row after it
  auto copy_group = [&](int group) {
    if (group < GROUPS) {
      const u32 to = shared_address(group % STAGES * STAGE_BYTES);
#pragma unroll
      for (int i = copied; i < 128; i += 32) {
        const int output = GATE ? blockIdx.x * CTA_OUTPUTS + (i >> 4) * 8 + (i & 7) : weight_row(i);
        const int from = output < N ? weight_row(i) : N - 1;
        const int row = min(first_row + i, a.rows - 1);
        copy_async(to + piece_offset(i, piece), a.weight + (u64)from * K + group * GROUP + piece * 8);
        copy_async(to + OPERAND_BYTES + piece_offset(i, piece),
                   a.x + (u64)row * a.stride_x + group * GROUP + piece * 8);
      }
    }
    commit_copies();
  };
  wait_for_previous();
  allow_next();
  for (int group = 0; group < STAGES - 1; group++) copy_group(group);

  float total[WARP_TILES][WARP_ROW_TILES][4] = {};
  float sums[WARP_TILES][WARP_ROW_TILES][4] = {};
  for (int group = 0, left = SPLIT_GROUPS; group < GROUPS; group++) {
    wait_copies<STAGES - 2>();
    __syncthreads();  // all copies of this group are here, and all have read the group before it
    copy_group(group + STAGES - 1);
    const u32 weights = shared_address(group % STAGES * STAGE_BYTES), rows = weights + OPERAND_BYTES;
    Part upper[WARP_TILES], lower[WARP_TILES];
#pragma unroll
    for (int i = 0; i < WARP_TILES; i++) {
      upper[i] = load_part(weights, warp_weights + i * 16 + g, t);
      lower[i] = load_part(weights, warp_weights + i * 16 + 8 + g, t);
    }
#pragma unroll
    for (int m = 0; m < WARP_ROW_TILES; m++) {
      const Part x = load_part(rows, warp_rows + m * 8 + g, t);
#pragma unroll
      for (int i = 0; i < WARP_TILES; i++) mma_group(sums[i][m], upper[i], lower[i], x);
    }
    if (--left == 0 || group == GROUPS - 1) {
      left = SPLIT_GROUPS;
#pragma unroll
      for (int i = 0; i < WARP_TILES; i++)
#pragma unroll
        for (int m = 0; m < WARP_ROW_TILES; m++)
#pragma unroll
          for (int c = 0; c < 4; c++) {
            total[i][m][c] += sums[i][m][c];
            sums[i][m][c] = 0.0f;
          }
    }
  }

#pragma unroll
  for (int m = 0; m < WARP_ROW_TILES; m++)
#pragma unroll
    for (int second = 0; second < 2; second++) {
      const int row = first_row + warp_rows + m * 8 + t * 2 + second;
      if (row >= a.rows) continue;
      const float scale = SCALED ? a.scale[row] : 1.0f;
#pragma unroll
      for (int i = 0; i < WARP_TILES; i++) {
        const int n = blockIdx.x * CTA_OUTPUTS + (warp_weights / 16 + i) * (GATE ? 8 : 16) + g;
        const float sum = second ? total[i][m][1] : total[i][m][0], other = second ? total[i][m][3] : total[i][m][2];
        if (n < N) store_output(a, row, n, sum, other, scale);
        if (!GATE && n + 8 < N) store_output(a, row, n + 8, other, 0.0f, scale);
      }
    }
}

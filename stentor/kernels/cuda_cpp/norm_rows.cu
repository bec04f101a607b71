// x[M, K] times a norm's weight, and 1 / rms of each row, with the sums of skinny_gemm.cu in the same order.
//
// A CTA has 8 rows, and a warp one of the SPLITS parts of K.
#define THREADS (SPLITS * 32)
#include <common.cuh>

constexpr int SPLIT_GROUPS = (GROUPS + SPLITS - 1) / SPLITS;

// `out` [rows, K] is x times `norm`. `scale` [rows] is written.
KERNEL norm_rows(const Arguments a) {
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, g = lane >> 2, t = lane & 3;
  const int row = blockIdx.x * 8 + g;
  wait_for_previous();
  allow_next();
  float squares[4] = {};
#pragma unroll 4
  for (int i = warp * SPLIT_GROUPS; i < min((warp + 1) * SPLIT_GROUPS, GROUPS); i++) {
    const int k = i * GROUP + t * 8;
    Part x{make_uint4(0, 0, 0, 0), make_uint4(0, 0, 0, 0)};
    const Part zero = x, weight{load_l2(a.norm + k), load_l2(a.norm + k + 32)};
    if (row < a.rows) {
      const u16* p = a.x + (u64)row * a.stride_x + k;
      x = Part{load_l2(p), load_l2(p + 32)};
    }
    mma_group(squares, x, zero, x);  // the diagonal is the sum of the squares of each row
    if (row < a.rows) {
      const Part y = multiply_parts(x, weight);
      u16* p = a.out + (u64)row * K + k;
      *reinterpret_cast<uint4*>(p) = y.low;
      *reinterpret_cast<uint4*>(p + 32) = y.high;
    }
  }
  if (g / 2 == t) store_shared_sum(shared_address((warp * 8 + g) * 4), g & 1 ? squares[1] : squares[0]);
  __syncthreads();
  if (threadIdx.x < 8 && blockIdx.x * 8 + threadIdx.x < a.rows) {
    float sum = 0.0f;
    for (int w = 0; w < SPLITS; w++) sum += load_shared_sum(shared_address((w * 8 + threadIdx.x) * 4));
    a.scale[blockIdx.x * 8 + threadIdx.x] = rsqrtf(sum / K + a.eps);
  }
}

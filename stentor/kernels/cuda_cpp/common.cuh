// The arguments of GEMMs, the products of a group and what follows a sum.
#include <device.cuh>

struct Arguments {
  const u16* x;  // [rows, K], row stride `stride_x`
  const unsigned char* weight;  // [N, K], or [2 N, K] with GATE: gate, then up
  const float* scale;  // [N], or [2 N] with GATE, of weights in int8
  const u16* norm;  // [K], where NORM
  const u16* bias;  // [N], where BIAS
  const u16* residual;  // [rows, N], row stride `stride_residual`, where ADD
  u16* out;  // [rows, N]
  int stride_x, stride_residual, rows;
  float eps;
};

constexpr int GROUP = 64;  // k that a warp multiplies at a time
constexpr int GROUPS = K / GROUP;
static_assert(K % GROUP == 0, "shape");

// A lane's part of the x of a group: k 8 t to 8 t + 7, and the same 32 further on.
struct Part {
  uint4 low, high;
};

INLINE Part multiply_parts(Part a, Part b) {
  Part r;
  r.low = make_uint4(multiply_pairs(a.low.x, b.low.x), multiply_pairs(a.low.y, b.low.y),
                     multiply_pairs(a.low.z, b.low.z), multiply_pairs(a.low.w, b.low.w));
  r.high = make_uint4(multiply_pairs(a.high.x, b.high.x), multiply_pairs(a.high.y, b.high.y),
                      multiply_pairs(a.high.z, b.high.z), multiply_pairs(a.high.w, b.high.w));
  return r;
}

// The sums of a group: `upper` is row g of the weights, `lower` row g + 8.
INLINE void mma_group(float (&c)[4], const Part& upper, const Part& lower, const Part& x) {
  mma(c, upper.low.x, lower.low.x, upper.low.y, lower.low.y, x.low.x, x.low.y);
  mma(c, upper.low.z, lower.low.z, upper.low.w, lower.low.w, x.low.z, x.low.w);
  mma(c, upper.high.x, lower.high.x, upper.high.y, lower.high.y, x.high.x, x.high.y);
  mma(c, upper.high.z, lower.high.z, upper.high.w, lower.high.w, x.high.z, x.high.w);
}

INLINE float rounded(float v) { return from_element(to_element(v)); }

INLINE float swiglu(float gate, float up) {  // rounded as the layers round
  gate = rounded(gate);
  return rounded(gate / (1.0f + __expf(-gate))) * rounded(up);
}

// An output from its finished sum. With GATE, `up` is the sum of what the gate multiplies. scale: of the norm.
INLINE u16 finished(float sum, float up, float scale, u16 bias, u16 residual) {
  float y = NORM ? sum * scale : sum;
  if (BIAS) y += from_element(bias);
  if (GATE) y = swiglu(y, NORM ? up * scale : up);
  if (ADD) y = rounded(y) + from_element(residual);
  return to_element(y);
}

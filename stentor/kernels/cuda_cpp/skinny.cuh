// What the products of few rows share: the tiles of a CTA, the sums of its warps, and how an output is finished.
// Before it: ROW_TILE (rows of x in a row tile).
#include <common.cuh>

constexpr int WARP_GROUPS = BATCH * BATCHES;
constexpr bool EVEN_GROUPS = WARPS * WARP_GROUPS == GROUPS;  // every warp has as many
constexpr int TILE_OUTPUTS = GATE || HALF ? 8 : 16;
constexpr int ALL_TILES = N / TILE_OUTPUTS;
constexpr bool EVEN_TILES = ALL_TILES % TILES == 0;
constexpr int TILE_ROWS = HALF ? 8 : 16;
constexpr int UNITS = TILES * WARP_GROUPS;  // of a warp: one tile and group
constexpr int CTA_ROWS = ROW_TILES * ROW_TILE;
constexpr int OUTPUTS = GATE || HALF ? 1 : 2;  // of a row and lane: n, or n and n + 8
constexpr int SLOTS = TILES * ROW_TILES * 32;  // a slot: the sums of a lane for a tile and a row tile

static_assert(N % TILE_OUTPUTS == 0, "shape");
static_assert(WARP_GROUPS == (GROUPS + WARPS - 1) / WARPS, "the groups of a warp follow from K and WARPS");
static_assert(!(GATE && HALF) && !(GATE && BIAS) && STAGES <= UNITS, "options");

// From the sums of squares [WARPS, CTA_ROWS] at `squares`, added over the warps in their order.
INLINE float inverse_rms(u32 squares, int row, float eps) {
  float sum = 0.0f;
#pragma unroll
  for (int w = 0; w < WARPS; w++) sum += load_shared_sum(squares + (w * CTA_ROWS + row) * 4);
  return rsqrtf(sum / K + eps);
}

// What is added to an output. It is asked for before the sums are made, since it takes as long to come as x does.
struct Added {
  u16 bias, residual;
};
INLINE Added load_added(const Arguments& a, int row, int n) {
  return {BIAS ? load_l2_element(a.bias + n) : (u16)0,
          ADD ? load_l2_element(a.residual + (u64)row * a.stride_residual + n) : (u16)0};
}

INLINE void store_output(const Arguments& a, int row, int n, float sum, float up, float scale, Added added) {
  a.out[(u64)row * N + n] = finished(sum, up, scale, added.bias, added.residual);
}

// The functions of stentor/kernels/cuda_cpp/wgmma.cuh on a CPU. Products run as late as they may, at the wait for them.
#pragma once
#include <device.cuh>

struct Async {
  float* c;
  u64 a, b;
  bool adds, rows;  // to what c has, with a in registers
  u32 registers[4];
};
static std::vector<std::deque<std::vector<Async>>> product_groups(THREADS * CLUSTER);
static std::vector<std::vector<Async>> open_products(THREADS * CLUSTER);

static void copy_async_or_zero(u32 to, const void* from, bool copy) {
  if ((uintptr_t)from % 16) abort();
  threads[current].open.push_back({to, copy ? from : nullptr});
}
static void store_shared(u32 address, uint4 v) { memcpy(shared(address, 16), &v, 16); }
static u64 operand(u32 address) {
  if (address % 1024) abort();
  return address >> 4;
}
static float element(u64 operand, int row, int k) {
  const u32 address = (u32)operand * 16 + row * 128 + k * 2;
  return from_element(load<u16>(shared(address ^ (address >> 7 & 7) << 4, 2)));
}
static void multiply_async(float (&c)[COLUMNS / 2], u64 a, u64 b) {
  open_products[current].push_back({c, a, b, true, false});
}
static void multiply_new_async(float (&c)[COLUMNS / 2], u64 a, u64 b) {
  open_products[current].push_back({c, a, b, false, false});
}
static void multiply_rows_async(float (&c)[32], const u32 (&a)[4], u64 b) {
  open_products[current].push_back({c, 0, b, true, true, {a[0], a[1], a[2], a[3]}});
}
static void multiply_new_rows_async(float (&c)[32], const u32 (&a)[4], u64 b) {
  open_products[current].push_back({c, 0, b, false, true, {a[0], a[1], a[2], a[3]}});
}
static void publish_shared() {}
static void begin_products() {}
static void commit_products() {
  product_groups[current].push_back(open_products[current]);
  open_products[current].clear();
}
// Element [row, k] of an operand that the lanes of a warp have in registers. Each has issued the same products.
static float element_of_lanes(size_t group, size_t product, int row, int k) {
  const int lane = current / 32 * 32 + row % 8 * 4 + k % 8 / 2;
  const u32 pair = product_groups[lane][group][product].registers[k / 8 * 2 + row / 8];
  return from_element(k % 2 ? pair >> 16 : pair);
}
static void run(size_t group, size_t product) {
  const Async& p = product_groups[current][group][product];
  const int lane = current % 32, warp_row = current % 128 / 32 * 16;
  for (int i = 0; i < (p.rows ? 32 : COLUMNS / 2); i++) {
    const int row = lane / 4 + i / 2 % 2 * 8, column = i / 4 * 8 + lane % 4 * 2 + i % 2;
    double sum = p.adds ? p.c[i] : 0.0;
    for (int k = 0; k < 16; k++)
      sum += p.rows ? (double)element_of_lanes(group, product, row, k) * element(p.b, k, column)
                    : (double)element(p.a, warp_row + row, k) * element(p.b, column, k);
    p.c[i] = (float)sum;
  }
}
template <int PENDING> static void wait_products() {
  auto& groups = product_groups[current];
  sync_warp();  // all lanes have issued what the others read
  const size_t ended = groups.size() > PENDING ? groups.size() - PENDING : 0;
  for (size_t g = 0; g < ended; g++)
    for (size_t p = 0; p < groups[g].size(); p++) run(g, p);
  sync_warp();
  groups.erase(groups.begin(), groups.begin() + ended);
}

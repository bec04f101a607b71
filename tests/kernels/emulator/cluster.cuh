// The functions of stentor/kernels/cuda_cpp/cluster.cuh on a CPU. Products run as late as they may, at the wait for them.
#include <device.cuh>

#define CLUSTER_KERNEL static void

struct Async {
  float* c;
  u64 a, b;
};
static std::vector<std::deque<std::vector<Async>>> product_groups(THREADS * CLUSTER);
static std::vector<std::vector<Async>> open_products(THREADS * CLUSTER);

static void copy_async_or_zero(u32 to, const void* from, bool copy) {
  if ((uintptr_t)from % 16) abort();
  threads[current].open.push_back({to, copy ? from : nullptr});
}
static void prefetch_l2(const void* p, u32 bytes) {
  if ((uintptr_t)p % 16 || bytes % 16) abort();
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
static void multiply_async(float (&c)[COLUMNS / 2], u64 a, u64 b) { open_products[current].push_back({c, a, b}); }
static void publish_shared() {}
static void begin_products() {}
static void commit_products() {
  product_groups[current].push_back(open_products[current]);
  open_products[current].clear();
}
static void run(const Async& p) {
  const int lane = current % 32, first = current % 128 / 32 * 16 + lane / 4;
  for (int i = 0; i < COLUMNS / 2; i++) {
    const int row = first + i / 2 % 2 * 8, column = i / 4 * 8 + lane % 4 * 2 + i % 2;
    double sum = p.c[i];
    for (int k = 0; k < 16; k++) sum += (double)element(p.a, row, k) * element(p.b, column, k);
    p.c[i] = (float)sum;
  }
}
template <int PENDING> static void wait_products() {
  auto& groups = product_groups[current];
  for (; groups.size() > PENDING; groups.pop_front())
    for (const Async& p : groups.front()) run(p);
}
static void sync_cluster() { wait_at(cluster_barrier, THREADS * CLUSTER); }
static void meet_cluster() { sync_cluster(); }
static u32 remote(u32 address, u32 rank) { return address | (rank + 1) << 24; }
static float4 load_remote_sums(u32 address) { return load_shared_sums(address); }
static float load_remote_sum(u32 address) { return load_shared_sum(address); }
static uint2 load_l2_pair(const void* p) {
  if ((uintptr_t)p % 8) abort();
  return load<uint2>(p);
}

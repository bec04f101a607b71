// The functions of stentor/kernels/cuda_cpp/cluster.cuh on a CPU.
#include <wgmma.cuh>

#define CLUSTER_KERNEL static void

static void prefetch_l2(const void* p, u32 bytes) {
  if ((uintptr_t)p % 16 || bytes % 16) abort();
}
static void sync_cluster() { wait_at(cluster_barrier, THREADS * CLUSTER); }
static void meet_cluster() { sync_cluster(); }
static u32 remote(u32 address, u32 rank) { return address | (rank + 1) << 24; }
static float4 load_remote_sums(u32 address, bool wanted) { return wanted ? load_shared_sums(address) : make_float4(0, 0, 0, 0); }
static float load_remote_sum(u32 address, bool wanted) { return wanted ? load_shared_sum(address) : 0; }
static uint2 load_l2_pair(const void* p) {
  if ((uintptr_t)p % 8) abort();
  return load<uint2>(p);
}

// Clusters of CTAs on Hopper GPUs, beside wgmma.cuh. tests/kernels/emulator has the same functions for a CPU.
#include <wgmma.cuh>

#define CLUSTER_KERNEL extern "C" __global__ void __cluster_dims__(CLUSTER, 1, 1) __launch_bounds__(THREADS, MIN_CTAS)

// Ask the L2 cache for `bytes`, a multiple of 16.
INLINE void prefetch_l2(const void* p, u32 bytes) {
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(p), "r"(bytes) : "memory");
}
// All CTAs of the cluster, and what they wrote to shared memory.
INLINE void sync_cluster() {
  asm volatile("barrier.cluster.arrive;\nbarrier.cluster.wait;" ::: "memory");
}
// All CTAs of the cluster have come here. Nothing is said of memory.
INLINE void meet_cluster() {
  asm volatile("barrier.cluster.arrive.relaxed;\nbarrier.cluster.wait;" ::: "memory");
}
// The same address in CTA `rank` of the cluster.
INLINE u32 remote(u32 address, u32 rank) {
  u32 r;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(r) : "r"(address), "r"(rank));
  return r;
}
// Zero where not `wanted`. Whoever reads another CTA's memory must use it before they meet for the last time: a read that
// nobody waits for may come after that CTA has left, and the launch fails.
INLINE float4 load_remote_sums(u32 address, bool wanted) {
  float4 v = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
  asm volatile("{.reg .pred p;\nsetp.ne.u32 p, %5, 0;\n@p ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [%4];}"
               : "+f"(v.x), "+f"(v.y), "+f"(v.z), "+f"(v.w) : "r"(address), "r"((u32)wanted) : "memory");
  return v;
}
INLINE float load_remote_sum(u32 address, bool wanted) {
  float v = 0.0f;
  asm volatile("{.reg .pred p;\nsetp.ne.u32 p, %2, 0;\n@p ld.shared::cluster.f32 %0, [%1];}"
               : "+f"(v) : "r"(address), "r"((u32)wanted) : "memory");
  return v;
}
INLINE uint2 load_l2_pair(const void* p) {
  uint2 v;
  asm volatile("ld.global.cg.v2.u32 {%0, %1}, [%2];" : "=r"(v.x), "=r"(v.y) : "l"(p) : "memory");
  return v;
}

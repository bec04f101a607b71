// What cluster_gemm.cu asks of Hopper GPUs beside device.cuh. tests/kernels/emulator has the same functions for a CPU.
#include <device.cuh>

#define CLUSTER_KERNEL extern "C" __global__ void __cluster_dims__(CLUSTER, 1, 1) __launch_bounds__(THREADS, MIN_CTAS)

// As `copy_async`, or zeros.
INLINE void copy_async_or_zero(u32 shared, const void* global, bool copy) {
  const u32 bytes = copy ? 16 : 0;
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(shared), "l"(global), "r"(bytes)
               : "memory");
}
// Ask the L2 cache for `bytes`, a multiple of 16.
INLINE void prefetch_l2(const void* p, u32 bytes) {
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(p), "r"(bytes) : "memory");
}
INLINE void store_shared(u32 address, uint4 v) {
  asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w)
               : "memory");
}

// Rows of 128 bytes of shared memory as an operand: 8 rows after each other, in which bits 4 to 6 of an address are
// exclusive-or'ed with bits 7 to 9. The first row begins at a multiple of 1024.
INLINE u64 operand(u32 address) { return (u64)(address >> 4 & 0x3fff) | (u64)1 << 16 | (u64)64 << 32 | (u64)1 << 62; }

// c[64, COLUMNS] += a[64, 16] b[COLUMNS, 16].T of four warps, asynchronously. With lane = 4 g + t of warp w, c[4 j] and
// c[4 j + 1] are row 16 w + g at columns 8 j + 2 t and 8 j + 2 t + 1, c[4 j + 2] and c[4 j + 3] are row 16 w + g + 8.
INLINE void multiply_async(float (&c)[COLUMNS / 2], u64 a, u64 b) {
  asm volatile("wgmma.mma_async.sync.aligned.m64n" COLUMNS_TEXT "k16.f32." DTYPE "." DTYPE " {" SUM_NUMBERS
               "}, %" A_NUMBER ", %" B_NUMBER ", 1, 1, 1, 0, 0;"
               : SUM_OPERANDS : "l"(a), "l"(b));
}
// Before products: what threads wrote to shared memory, and their sums, are seen by them.
INLINE void publish_shared() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
INLINE void begin_products() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
INLINE void commit_products() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int PENDING> INLINE void wait_products() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
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
INLINE float4 load_remote_sums(u32 address) {
  float4 v;
  asm volatile("ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w) : "r"(address) : "memory");
  return v;
}
INLINE float load_remote_sum(u32 address) {
  float v;
  asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(v) : "r"(address) : "memory");
  return v;
}
INLINE uint2 load_l2_pair(const void* p) {
  uint2 v;
  asm volatile("ld.global.cg.v2.u32 {%0, %1}, [%2];" : "=r"(v.x), "=r"(v.y) : "l"(p) : "memory");
  return v;
}

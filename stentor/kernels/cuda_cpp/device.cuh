// What a kernel asks of the hardware. tests/kernels/emulator has the same functions for a CPU. No headers, for NVRTC.
#pragma once
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

#define KERNEL extern "C" __global__ void __launch_bounds__(THREADS, MIN_CTAS)
#define INLINE __device__ __forceinline__

// Shared memory is addressed in bytes from its beginning.
extern __shared__ __align__(1024) unsigned char shared_memory[];
INLINE u32 shared_address(u32 offset) { return (u32)__cvta_generic_to_shared(shared_memory) + offset; }

// Copy 16 bytes from global to shared memory, asynchronously. An L2 cache hint here is an illegal instruction on an H200.
INLINE void copy_async(u32 shared, const void* global) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16;" ::"r"(shared), "l"(global) : "memory");
}
INLINE void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int PENDING> INLINE void wait_copies() { asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory"); }

INLINE void sync_warp() { __syncwarp(); }

INLINE uint4 load_shared(u32 address) {
  uint4 v;
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "r"(address) : "memory");
  return v;
}
INLINE void store_shared_pair(u32 address, uint2 v) {
  asm volatile("st.shared.v2.u32 [%0], {%1, %2};" ::"r"(address), "r"(v.x), "r"(v.y) : "memory");
}
INLINE float4 load_shared_sums(u32 address) {
  float4 v;
  asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w) : "r"(address) : "memory");
  return v;
}
INLINE void store_shared_sums(u32 address, float4 v) {
  asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};"
               ::"r"(address), "f"(v.x), "f"(v.y), "f"(v.z), "f"(v.w) : "memory");
}
INLINE float2 load_shared_sum_pair(u32 address) {
  float2 v;
  asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(v.x), "=f"(v.y) : "r"(address) : "memory");
  return v;
}
INLINE void store_shared_sum_pair(u32 address, float2 v) {
  asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(address), "f"(v.x), "f"(v.y) : "memory");
}
INLINE float load_shared_sum(u32 address) {
  float v;
  asm volatile("ld.shared.f32 %0, [%1];" : "=f"(v) : "r"(address) : "memory");
  return v;
}
INLINE void store_shared_sum(u32 address, float v) {
  asm volatile("st.shared.f32 [%0], %1;" ::"r"(address), "f"(v) : "memory");
}

INLINE u64 load_shared_long(u32 address) {
  u64 v;
  asm volatile("ld.shared.u64 %0, [%1];" : "=l"(v) : "r"(address) : "memory");
  return v;
}
INLINE void store_shared_long(u32 address, u64 v) {
  asm volatile("st.shared.u64 [%0], %1;" ::"r"(address), "l"(v) : "memory");
}
INLINE void store_shared_word(u32 address, u32 v) {
  asm volatile("st.shared.u32 [%0], %1;" ::"r"(address), "r"(v) : "memory");
}

INLINE float4 load_sums(const float* p) { return *(const float4*)p; }

// Through the L2 cache: another SM may have written this a moment ago.
INLINE uint4 load_l2(const void* p) {
  uint4 v;
  asm volatile("ld.global.cg.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p) : "memory");
  return v;
}
INLINE u16 load_l2_element(const void* p) {
  u16 v;
  asm volatile("ld.global.cg.u16 %0, [%1];" : "=h"(v) : "l"(p) : "memory");
  return v;
}

// c[16, 8] += a[16, 16] b[16, 8] of a warp. With lane = 4 g + t, a0 and a2 are row g of a, a1 and a3 row g + 8, b0 and b1
// column g of b, c[0] and c[1] row g of c at columns 2 t and 2 t + 1, c[2] and c[3] row g + 8.
// a0, a1 and b0 hold the same two k, a2, a3 and b1 two others. Which ones does not matter to the sum.
INLINE void mma(float (&c)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32." DTYPE "." DTYPE ".f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]) : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

// c[16, 8] += a[16, 32] b[32, 8] in int8, with the same rows and columns. a0, a1 and b0 hold the same four k, a2, a3 and b1
// four others.
INLINE void mma_int8(int (&c)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
  asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3]) : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

// Two elements of 16 bits in a register. Before Hopper there is no product of bf16 alone, so -0 is added, which is exact.
INLINE u32 multiply_pairs(u32 a, u32 b) {
  u32 r;
  asm("fma.rn." DTYPE "x2 %0, %1, %2, %3;" : "=r"(r) : "r"(a), "r"(b), "r"(0x80008000));
  return r;
}
INLINE u32 add_pairs(u32 a, u32 b) {  // a times 1, as there is no sum of bf16 alone either
  u32 r;
  asm("fma.rn." DTYPE "x2 %0, %1, %2, %3;" : "=r"(r) : "r"(a), "r"(DTYPE[0] == 'b' ? 0x3f803f80 : 0x3c003c00), "r"(b));
  return r;
}
INLINE u32 byte_permute(u32 a, u32 b, u32 selector) { return __byte_perm(a, b, selector); }
INLINE u16 to_element(float v) {
  u16 r;
  asm("cvt.rn." DTYPE ".f32 %0, %1;" : "=h"(r) : "f"(v));
  return r;
}
INLINE u32 to_elements(float low, float high) {
  u32 r;
  asm("cvt.rn." DTYPE "x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
  return r;
}
INLINE u32 float_bits(float v) { return __float_as_uint(v); }
INLINE float power_of_two(float v) {
  float r;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(v));
  return r;
}
// The value of the lane whose number differs from this one's in the bits of `mask`.
INLINE float other_lane(float v, int mask) { return __shfl_xor_sync(0xffffffff, v, mask); }
INLINE float from_element(u16 v) {
  if (DTYPE[0] == 'b') return __uint_as_float((u32)v << 16);
  float r;
  asm("cvt.f32.f16 %0, %1;" : "=f"(r) : "h"(v));
  return r;
}

// Programmatic dependent launch. Before `wait_for_previous`, only weights may be read.
INLINE void allow_next() {
  if (PDL) asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}
INLINE void wait_for_previous() {
  if (PDL) asm volatile("griddepcontrol.wait;" ::: "memory");
}

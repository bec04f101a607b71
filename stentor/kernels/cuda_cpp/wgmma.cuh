// `wgmma` of Hopper GPUs and what feeds it, beside device.cuh. tests/kernels/emulator has the same functions for a CPU.
#pragma once
#include <device.cuh>

// As `copy_async`, or zeros.
INLINE void copy_async_or_zero(u32 shared, const void* global, bool copy) {
  const u32 bytes = copy ? 16 : 0;
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(shared), "l"(global), "r"(bytes)
               : "memory");
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
// The same, beginning with zeros.
INLINE void multiply_new_async(float (&c)[COLUMNS / 2], u64 a, u64 b) {
  asm volatile("wgmma.mma_async.sync.aligned.m64n" COLUMNS_TEXT "k16.f32." DTYPE "." DTYPE " {" SUM_NUMBERS
               "}, %" A_NUMBER ", %" B_NUMBER ", 0, 1, 1, 0, 0;"
               : NEW_SUM_OPERANDS : "l"(a), "l"(b));
}
// c[64, 64] += a[64, 16] b[16, 64] of four warps, asynchronously, with a in registers and rows of 64 elements as `operand` b.
// With lane = 4 g + t of warp w, a[0] holds k 2 t and 2 t + 1 of row 16 w + g, a[1] the same of row 16 w + g + 8, a[2] and
// a[3] have k + 8. So the sums of a product become an a where they lie.
#define SUMS_8(kind, i) \
  kind(c[i]), kind(c[i + 1]), kind(c[i + 2]), kind(c[i + 3]), kind(c[i + 4]), kind(c[i + 5]), kind(c[i + 6]), kind(c[i + 7])
#define MULTIPLY_ROWS(kind, adds) \
  asm volatile("wgmma.mma_async.sync.aligned.m64n64k16.f32." DTYPE "." DTYPE \
               " {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
               "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, " \
               "{%32, %33, %34, %35}, %36, " adds ", 1, 1, 1;" \
               : SUMS_8(kind, 0), SUMS_8(kind, 8), SUMS_8(kind, 16), SUMS_8(kind, 24) \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b))
INLINE void multiply_rows_async(float (&c)[32], const u32 (&a)[4], u64 b) { MULTIPLY_ROWS("+f", "1"); }
// The same, beginning with zeros.
INLINE void multiply_new_rows_async(float (&c)[32], const u32 (&a)[4], u64 b) { MULTIPLY_ROWS("=f", "0"); }
// Before products: what threads wrote to shared memory, and their sums, are seen by them.
INLINE void publish_shared() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
INLINE void begin_products() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
INLINE void commit_products() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int PENDING> INLINE void wait_products() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
}


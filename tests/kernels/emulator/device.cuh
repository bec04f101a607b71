// The functions of stentor/kernels/cuda_cpp/device.cuh on a CPU: tests run a kernel's own source without a GPU.
//
// Each thread is a coroutine. The CTAs of a cluster run together, clusters one after the other. An asynchronous copy arrives as late as it may, at
// the wait that asks for it, and shared memory begins as NaN: a kernel that waits too little computes NaN.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <ucontext.h>
#include <vector>

typedef uint16_t u16;
typedef uint32_t u32;
typedef uint64_t u64;
using std::max;
using std::min;
struct uint2 { u32 x, y; };
struct uint4 { u32 x, y, z, w; };
struct float2 { float x, y; };
struct float4 { float x, y, z, w; };
struct Index { int x = 0, y = 0, z = 0; };

#ifndef CLUSTER
#define CLUSTER 1
#endif
#define KERNEL static void
#define INLINE static inline
#define __restrict__
static uint2 make_uint2(u32 x, u32 y) { return {x, y}; }
static uint4 make_uint4(u32 x, u32 y, u32 z, u32 w) { return {x, y, z, w}; }
static float2 make_float2(float x, float y) { return {x, y}; }
static float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
static float rsqrtf(float v) { return 1.0f / std::sqrt(v); }
#define __expf std::exp

static Index threadIdx, blockIdx;

struct Copy { u32 to; const void* from; };
struct Thread {
  ucontext_t context;
  std::vector<char> stack;
  std::deque<std::vector<Copy>> groups;
  std::vector<Copy> open;
  bool done = false;
};
struct Warp {  // a product of all 32 lanes
  u32 a[32][4], b[32][2];
  float c[32][4];
  int sums[32][4];
  int arrived = 0, at_barrier = 0;
  u64 round = 0, barrier_round = 0;
};
struct Barrier {
  int arrived = 0;
  u64 round = 0;
};
static std::vector<Thread> threads(THREADS * CLUSTER);
static std::vector<Warp> warps(THREADS / 32 * CLUSTER);
static std::vector<unsigned char> shared_memory[CLUSTER];
static ucontext_t scheduler;
static int current;  // thread of the cluster
static Barrier cta_barriers[CLUSTER], cluster_barrier;

static void yield() { swapcontext(&threads[current].context, &scheduler); }

static void wait_at(Barrier& b, int count) {
  const u64 round = b.round;
  if (++b.arrived == count) { b.arrived = 0; b.round++; }
  while (b.round == round) yield();
}
static void __syncthreads() { wait_at(cta_barriers[current / THREADS], THREADS); }

static void sync_warp() {
  Warp& w = warps[current / 32];
  const u64 round = w.barrier_round;
  if (++w.at_barrier == 32) { w.at_barrier = 0; w.barrier_round++; }
  while (w.barrier_round == round) yield();
}

// An address has its CTA in the highest bits, where it is not this thread's own.
static unsigned char* shared(u32 address, u32 size) {
  auto& memory = shared_memory[address >> 24 ? (address >> 24) - 1 : current / THREADS];
  address &= 0xffffff;
  if (address + size > memory.size() || address % size) abort();
  return &memory[address];
}
static u32 shared_address(u32 offset) { return offset; }
static void copy_async(u32 to, const void* from) {
  if ((uintptr_t)from % 16) abort();
  threads[current].open.push_back({to, from});
}
static void commit_copies() {
  Thread& t = threads[current];
  t.groups.push_back(t.open);
  t.open.clear();
}
template <int PENDING> static void wait_copies() {
  auto& groups = threads[current].groups;
  for (; groups.size() > PENDING; groups.pop_front())
    for (const Copy& c : groups.front())
      if (c.from) memcpy(shared(c.to, 16), c.from, 16);
      else memset(shared(c.to, 16), 0, 16);
}
template <class T> static T load(const void* p) { T v; memcpy(&v, p, sizeof v); return v; }
static uint4 load_shared(u32 address) { return load<uint4>(shared(address, 16)); }
static void store_shared_pair(u32 address, uint2 v) { memcpy(shared(address, 8), &v, 8); }
static float2 load_shared_sum_pair(u32 address) { return load<float2>(shared(address, 8)); }
static void store_shared_sum_pair(u32 address, float2 v) { memcpy(shared(address, 8), &v, 8); }
static float4 load_shared_sums(u32 address) { return load<float4>(shared(address, 16)); }
static float load_shared_sum(u32 address) { return load<float>(shared(address, 4)); }
static void store_shared_sums(u32 address, float4 v) { memcpy(shared(address, 16), &v, 16); }
static void store_shared_sum(u32 address, float v) { memcpy(shared(address, 4), &v, 4); }
static u64 load_shared_long(u32 address) { return load<u64>(shared(address, 8)); }
static void store_shared_long(u32 address, u64 v) { memcpy(shared(address, 8), &v, 8); }
static void store_shared_word(u32 address, u32 v) { memcpy(shared(address, 4), &v, 4); }
static float4 load_sums(const float* p) {
  if ((uintptr_t)p % 16) abort();
  return load<float4>(p);
}
static uint4 load_l2(const void* p) {
  if ((uintptr_t)p % 16) abort();
  return load<uint4>(p);
}
static u16 load_l2_element(const void* p) { return load<u16>(p); }

static const bool BF16 = strcmp(DTYPE, "bf16") == 0;
static float from_element(u16 v) {
  if (!BF16) { _Float16 h; memcpy(&h, &v, 2); return h; }
  u32 bits = (u32)v << 16;
  return load<float>(&bits);
}
static u16 to_element(float v) {
  if (!BF16) { _Float16 h = v; return load<u16>(&h); }
  if (v != v) return 0x7fff;
  u32 bits = load<u32>(&v);
  return (bits + 0x7fff + (bits >> 16 & 1)) >> 16;  // to nearest, ties to even
}
static u32 to_elements(float low, float high) { return (u32)to_element(high) << 16 | to_element(low); }
static float __uint_as_float(u32 v) { return load<float>(&v); }
static u32 float_bits(float v) { return load<u32>(&v); }
static float power_of_two(float v) { return std::exp2(v); }
static float other_lane(float v, int mask) {
  static std::vector<float> values(THREADS * CLUSTER);
  values[current] = v;
  sync_warp();
  const float found = values[current ^ mask];
  sync_warp();
  return found;
}
static u32 multiply_pairs(u32 a, u32 b) {
  u16 low = to_element(from_element(a) * from_element(b));
  return (u32)to_element(from_element(a >> 16) * from_element(b >> 16)) << 16 | low;
}
static u32 add_pairs(u32 a, u32 b) {
  u16 low = to_element(from_element(a) + from_element(b));
  return (u32)to_element(from_element(a >> 16) + from_element(b >> 16)) << 16 | low;
}
static u32 byte_permute(u32 a, u32 b, u32 selector) {
  const u64 bytes = (u64)b << 32 | a;
  u32 r = 0;
  for (int i = 0; i < 4; i++) r |= (u32)(bytes >> (selector >> 4 * i & 7) * 8 & 0xff) << 8 * i;
  return r;
}

// As the warp does: the operands of all lanes, then the products. Those of an output are added at once.
// product: the sum of the products of two words. sums: of all lanes.
template <class Sum, class Product>
static void multiply_warp(Sum (&sums)[32][4], Product product, Sum (&c)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
  Warp& w = warps[current / 32];
  const int lane = current % 32;
  const u32 a[4] = {a0, a1, a2, a3};
  memcpy(w.a[lane], a, sizeof a);
  w.b[lane][0] = b0, w.b[lane][1] = b1;
  memcpy(sums[lane], c, sizeof c);
  const u64 round = w.round;
  if (++w.arrived == 32) {
    for (int l = 0; l < 32; l++)
      for (int i = 0; i < 4; i++) {
        const int row = l / 4 + (i >= 2 ? 8 : 0), column = l % 4 * 2 + i % 2;
        double sum = sums[l][i];
        for (int t = 0; t < 4; t++)
          for (int half = 0; half < 2; half++)
            sum += product(w.a[row % 8 * 4 + t][row / 8 + half * 2], w.b[column * 4 + t][half]);
        sums[l][i] = (Sum)sum;
      }
    w.arrived = 0;
    w.round++;
  }
  while (w.round == round) yield();
  memcpy(c, sums[lane], sizeof c);
}
static void mma(float (&c)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
  auto product = [](u32 x, u32 y) {
    return (double)from_element(x) * from_element(y) + (double)from_element(x >> 16) * from_element(y >> 16);
  };
  multiply_warp(warps[current / 32].c, product, c, a0, a1, a2, a3, b0, b1);
}
static void mma_int8(int (&c)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
  auto product = [](u32 x, u32 y) {
    int sum = 0;
    for (int k = 0; k < 32; k += 8) sum += (int8_t)(x >> k) * (int8_t)(y >> k);
    return (double)sum;
  };
  multiply_warp(warps[current / 32].sums, product, c, a0, a1, a2, a3, b0, b1);
}
static void allow_next() {}
static void wait_for_previous() {}

// Hopper's instructions beside those of ptx.cuh, one thin function each: clusters, barriers in
// shared memory (mbarrier), the bulk tensor copy. Matrix products of a warpgroup are in wgmma.cuh.
// Source: the PTX instruction set's manual, sections "mbarrier", "cp.async.bulk.tensor",
// "setmaxnreg".
#pragma once

#include <cstdint>

#include "kernels/cuda/device/ptx.cuh"

namespace lorad::kernels::cuda::ptx {

// ---- clusters ----

__device__ inline uint32_t ClusterRank() {
  uint32_t rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}

__device__ inline void ClusterSync() {
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}

// 16 bytes at the same address of the shared memory of block `rank` of the cluster.
__device__ inline uint4 LoadSharedAt(uint32_t address, uint32_t rank) {
  uint4 v;
  asm volatile(
      "{\n"
      ".reg .b32 remote;\n"
      "mapa.shared::cluster.u32 remote, %4, %5;\n"
      "ld.shared::cluster.v4.u32 {%0, %1, %2, %3}, [remote];\n"
      "}"
      : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
      : "r"(address), "r"(rank)
      : "memory");
  return v;
}

// Two floats, never read before a barrier that stands before this: until then the registers may be
// another's.
__device__ inline float2 LoadPair(const float* from) {
  float2 value;
  asm volatile("ld.global.v2.f32 {%0, %1}, [%2];"
               : "=f"(value.x), "=f"(value.y)
               : "l"(__cvta_generic_to_global(from))
               : "memory");
  return value;
}

// ---- mbarriers ----

__device__ inline void InitBarrier(uint32_t barrier, uint32_t arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}

// Makes initialized barriers known to the other block of the cluster and to the copy engine.
__device__ inline void FenceBarrierInit() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

__device__ inline void Arrive(uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

// Arrives, and makes the phase wait for `bytes` of copies.
__device__ inline void ArriveExpect(uint32_t barrier, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
               : "memory");
}

// Arrives at the barrier at the same address in block `rank` of the cluster.
__device__ inline void ArriveAt(uint32_t barrier, uint32_t rank) {
  uint32_t remote;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(remote) : "r"(barrier), "r"(rank));
  asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(remote) : "memory");
}

__device__ inline bool TryWait(uint32_t barrier, uint32_t parity) {
  uint32_t done;
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%1], %2;\n"
      "selp.u32 %0, 1, 0, done;\n"
      "}\n"
      : "=r"(done)
      : "r"(barrier), "r"(parity)
      : "memory");
  return done != 0;
}

// Waits for the end of the phase of that parity.
__device__ inline void Wait(uint32_t barrier, uint32_t parity) {
  while (!TryWait(barrier, parity)) {
  }
}

// Counts as one of the threads of SyncThreads without waiting.
__device__ inline void ArriveThreads(int id, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

// ---- the bulk tensor copy ----

// Shared memory written by ordinary stores may be read by the copy engine after this and a barrier.
__device__ inline void FenceSharedWrites() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// A tensor map in device memory that the host wrote may be used by this block after this.
__device__ inline void AcquireTensorMap(const void* map) {
  asm volatile("fence.proxy.tensormap::generic.acquire.sys [%0], 128;" ::"l"(map) : "memory");
}

__device__ inline void PrefetchTensorMap(const void* map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

// Box at (column, row) to shared memory; its bytes are counted by `barrier`.
__device__ inline void LoadBox(uint32_t to, const void* map, int column, int row,
                               uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
      " [%0], [%1, {%2, %3}], [%4];" ::"r"(to),
      "l"(map), "r"(column), "r"(row), "r"(barrier)
      : "memory");
}

// The same to every block of the cluster in `blocks`, at the same addresses of its shared memory.
__device__ inline void LoadBoxToAll(uint32_t to, const void* map, int column, int row,
                                    uint32_t barrier, uint16_t blocks) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
      ".multicast::cluster [%0], [%1, {%2, %3}], [%4], %5;" ::"r"(to),
      "l"(map), "r"(column), "r"(row), "r"(barrier), "h"(blocks)
      : "memory");
}

// `bytes` to shared memory, counted by `barrier`; all of them, and both addresses, multiples of 16.
__device__ inline void CopyBulk(uint32_t to, const void* from, uint32_t bytes, uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
          "r"(to),
      "l"(from), "r"(bytes), "r"(barrier)
      : "memory");
}

__device__ inline void StoreBox(const void* map, int column, int row, uint32_t from) {
  asm volatile(
      "cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%0, {%1, %2}], [%3];" ::"l"(map),
      "r"(column), "r"(row), "r"(from)
      : "memory");
}

__device__ inline void CommitStores() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }

// Until all but the last `kGroups` groups of this thread's stores have read shared memory.
template <int kGroups>
__device__ inline void WaitStoresRead() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(kGroups) : "memory");
}

// ---- matrices of 8x8 bf16 to shared memory, as LoadMatrices takes them ----

__device__ inline void StoreMatrices(uint32_t address, const uint32_t (&r)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address),
               "r"(r[0]), "r"(r[1]), "r"(r[2]), "r"(r[3])
               : "memory");
}

// ---- registers of a warpgroup ----

template <int kRegisters>
__device__ inline void GiveRegisters() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <int kRegisters>
__device__ inline void TakeRegisters() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

}  // namespace lorad::kernels::cuda::ptx

// Microbatches and adapters for tests of the LoRA linear's layout. Pointers into device memory are
// made up: a layout never follows them.
#pragma once

#include <cstdint>
#include <random>
#include <vector>

#include "kernels/cuda/lora/layout.h"

namespace lorad::kernels::cuda::testing {

// A microbatch and the adapters of all slots in one linear group, with a device. The scratch memory
// is just enough: a layout that takes more fails an assertion.
struct LoraMicrobatch {
  std::vector<std::vector<LoraTarget>> adapters;  // by slot
  std::vector<Segment> segments;
  LoraLayoutInput device;  // all else is filled in: inputs, dtype, and the device's members count

  // Adds a segment behind the others. Its dropout key is its own.
  void Append(int64_t rows, int32_t slot, Mode mode, int64_t first_position = 0);
  int64_t tokens() const;
  // Whether the segment's rows have an adapter, and whether that drops features of theirs.
  bool HasAdapter(const Segment& segment) const;
  bool Drops(const Segment& segment) const;
  // Whether the two are of one party. REQUIRES: both have an adapter.
  bool SameParty(const Segment& x, const Segment& y) const;
  const std::vector<LoraTarget>& AdapterOf(const Segment& segment) const {
    return adapters[static_cast<size_t>(segment.slot)];
  }
  int32_t WidthOf(const Segment& segment) const;  // padded ranks of its adapter

  LoraLayout LayOut() const;
};

// The made-up memory.
inline constexpr int64_t kMasksAt = int64_t{1} << 40;
uint8_t* MaskMemory();
int32_t* OverflowOf(size_t slot);
// A target of `rank` ranks; `dtype` decides whether it has copies.
LoraTarget TargetOf(int64_t rank, int64_t first_output, int64_t outputs, float dropout,
                    int64_t inputs, DType dtype);

using Generator = std::mt19937_64;
LoraMicrobatch RandomMicrobatch(Generator& random);

}  // namespace lorad::kernels::cuda::testing

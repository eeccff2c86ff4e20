#include "tests/kernels/cuda/lora/microbatch.h"

#include <algorithm>
#include <cmath>

namespace lorad::kernels::cuda::testing {
namespace {

int64_t RandomInteger(Generator& random, int64_t low, int64_t high) {
  return std::uniform_int_distribution<int64_t>(low, high)(random);
}

bool OneIn(Generator& random, int64_t count) { return RandomInteger(random, 1, count) == 1; }

// Of no memory that is there.
template <typename T>
T* MadeUp() {
  static uintptr_t last = uintptr_t{1} << 30;
  return reinterpret_cast<T*>(last += 4096);
}

std::vector<LoraTarget> RandomAdapter(Generator& random, int64_t inputs, DType dtype) {
  constexpr int64_t kRanks[] = {1, 8, 16, 17, 32, 40, 64, 65, 200};
  constexpr float kDropouts[] = {0, 0, 1e-6f, 0.05f, 0.5f};  // the third rounds to none
  std::vector<LoraTarget> targets;
  int64_t output = 0;
  for (int64_t left = RandomInteger(random, 0, 3); left > 0; --left) {
    output += 8 * RandomInteger(random, 0, 3);
    const int64_t outputs = OneIn(random, 2) ? 256 : 8 * RandomInteger(random, 1, 1500);
    targets.push_back(TargetOf(kRanks[RandomInteger(random, 0, 8)], output, outputs,
                               kDropouts[RandomInteger(random, 0, 4)], inputs, dtype));
    output += outputs;
  }
  return targets;
}

}  // namespace

uint8_t* MaskMemory() { return reinterpret_cast<uint8_t*>(kMasksAt); }

int32_t* OverflowOf(size_t slot) { return reinterpret_cast<int32_t*>(4096 + 4 * slot); }

LoraTarget TargetOf(int64_t rank, int64_t first_output, int64_t outputs, float dropout,
                    int64_t inputs, DType dtype) {
  static int32_t index = 0;
  index = (index + 1) % 60;
  LoraTarget target = {.first_output = first_output,
                       .outputs = outputs,
                       .rank = rank,
                       .a = MadeUp<float>(),
                       .b = MadeUp<float>(),
                       .scale = 0.5f + static_cast<float>(index),
                       .dropout = dropout,
                       .layer = index / 7,
                       .target = index % 7,
                       .da = MadeUp<int64_t>(),
                       .db = MadeUp<int64_t>()};
  if (dtype == DType::kFloat32) return target;
  const int64_t padded = PaddedRank(rank);
  target.a_copy = {MadeUp<void>(), padded, inputs, inputs, dtype, Device::kCuda};
  target.b_copy = {MadeUp<void>(), outputs, padded, padded, dtype, Device::kCuda};
  return target;
}

void LoraMicrobatch::Append(int64_t rows, int32_t slot, Mode mode, int64_t first_position) {
  const auto index = static_cast<uint32_t>(segments.size());
  segments.push_back({.first_row = tokens(),
                      .rows = rows,
                      .first_position = first_position,
                      .slot = slot,
                      .mode = mode,
                      .dropout = {.seed = 1000 + index, .step = 7 + index, .sequence = 3 * index}});
}

int64_t LoraMicrobatch::tokens() const {
  return segments.empty() ? 0 : segments.back().first_row + segments.back().rows;
}

bool LoraMicrobatch::HasAdapter(const Segment& segment) const {
  return segment.slot >= 0 && segment.mode != Mode::kReference && !AdapterOf(segment).empty();
}

bool LoraMicrobatch::Drops(const Segment& segment) const {
  const auto& targets = AdapterOf(segment);
  return segment.mode == Mode::kTrain &&
         std::any_of(targets.begin(), targets.end(), [](const LoraTarget& target) {
           return std::lround(65536 * target.dropout) > 0;
         });
}

bool LoraMicrobatch::SameParty(const Segment& x, const Segment& y) const {
  return x.slot == y.slot && Drops(x) == Drops(y);
}

int32_t LoraMicrobatch::WidthOf(const Segment& segment) const {
  int64_t width = 0;
  for (const LoraTarget& target : AdapterOf(segment)) width += (target.rank + 15) / 16 * 16;
  return static_cast<int32_t>(width);
}

LoraLayout LoraMicrobatch::LayOut() const {
  LoraLayoutInput input = device;
  const std::vector<Chunk> chunks = ChunksOf(segments);
  std::vector<LoraSlot> slots;
  for (size_t i = 0; i < adapters.size(); ++i) slots.push_back({adapters[i], OverflowOf(i)});
  input.tokens = tokens();
  input.segments = segments;
  input.chunks = chunks;
  input.slots = slots;
  input.mask = MaskMemory();
  input.mask_bytes = tokens() * ((device.inputs + 255) / 256 * 32);
  for (size_t i = 0; i < segments.size(); ++i) {
    if (!HasAdapter(segments[i])) continue;
    const auto first = std::find_if(segments.begin(), segments.end(), [&](const Segment& other) {
      return HasAdapter(other) && SameParty(other, segments[i]);
    });
    const int64_t width = WidthOf(segments[i]);
    if (first == segments.begin() + static_cast<int64_t>(i)) input.columns += width;
    input.own_columns = std::max(input.own_columns, width);
    input.masks = std::max(input.masks, static_cast<int64_t>(AdapterOf(segments[i]).size()));
  }
  return LayOutLora(input);
}

LoraMicrobatch RandomMicrobatch(Generator& random) {
  LoraMicrobatch batch;
  LoraLayoutInput& device = batch.device;
  device.inputs = 8 * RandomInteger(random, 1, 600);
  device.dtype = OneIn(random, 4) ? DType::kFloat32 : DType::kBfloat16;
  device.fast_kernels = !OneIn(random, 4);
  device.hopper = !OneIn(random, 3);
  device.multiprocessors =
      OneIn(random, 2) ? 132 : static_cast<int32_t>(RandomInteger(random, 1, 132));
  device.chunks_together = 1 << RandomInteger(random, 0, 2);
  const int64_t slots = RandomInteger(random, 1, 6);
  for (int64_t i = 0; i < slots; ++i) {
    batch.adapters.push_back(RandomAdapter(random, device.inputs, device.dtype));
  }
  const int64_t rows_max = OneIn(random, 2) ? 120 : 1100;
  for (int64_t left = RandomInteger(random, 1, 20); left > 0; --left) {
    const auto mode = static_cast<Mode>(OneIn(random, 2) ? 0 : RandomInteger(random, 0, 2));
    batch.Append(RandomInteger(random, 1, rows_max),
                 static_cast<int32_t>(RandomInteger(random, -1, slots - 1)), mode,
                 kChunkTokens * (OneIn(random, 3) ? RandomInteger(random, 0, 3) : 0));
  }
  return batch;
}

}  // namespace lorad::kernels::cuda::testing

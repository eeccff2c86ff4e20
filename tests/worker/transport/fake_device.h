// A device whose memory is the host's and whose operations are done when they are called. Its
// copies are not: each lane has a thread that does them later, at times of a seed.
#pragma once

#include <cstdint>
#include <memory>

#include "kernels/device_copies.h"

namespace lorad::worker {

struct FakeDevice {
  int64_t delay_us_max = 200;  // of a copy
  bool shares = true;          // or refuses to
  bool opens = true;           // what others share, or refuses to
  // Whether operations wait for a Lead, as they do; else who reads what was copied waits for the
  // end of the lane.
  bool leads = true;
};

// Two of one process can open each other's memory.
std::unique_ptr<kernels::DeviceCopies> MakeFakeCopies(const FakeDevice& device = {});

}  // namespace lorad::worker

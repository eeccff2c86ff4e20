#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "kernels/backend.h"
#include "storage/tensors/safetensors.h"
#include "worker/engine/slot.h"

namespace lorad::worker {

// Reads a shard (docs/formats/checkpoint.md) into a slot as its bytes come by, tensor by tensor:
// holds the header and at most one piece. Every master of the slot must be there in its shape, the
// moments for all tensors or for none (a fresh start: they stay zero); with `whole` anything else
// in the file is refused, without it (one stage of several) it is skipped, as moments are that a
// slot that only answers has no place for.
class SlotContentReader {
 public:
  SlotContentReader(kernels::Backend* backend, Slot* slot, bool whole);

  absl::Status Append(std::string_view piece);
  // All bytes have come. Sets the slot's step from the metadata.
  absl::Status Finish();

  const std::string& numerics_id() const { return numerics_id_; }

 private:
  absl::Status ReadHeader();
  absl::Status Plan(const storage::SafetensorsHeader& header);
  void Fill(std::string_view* data);

  struct Run {
    uint64_t bytes = 0;
    kernels::TensorView target;  // empty: skipped
  };

  kernels::Backend* const backend_;
  Slot* const slot_;
  const bool whole_;
  std::string prefix_;
  bool have_header_ = false;
  std::vector<Run> runs_;  // in the order of the file
  size_t run_ = 0;
  uint64_t run_done_ = 0;     // bytes of runs_[run_]
  std::vector<float> piece_;  // aligned copy on its way to the device
  std::string carry_;         // the bytes of a value that a piece cut
  int64_t step_ = 0;
  std::string numerics_id_;
};

}  // namespace lorad::worker

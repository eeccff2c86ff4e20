// Where things lie below --data-dir (docs/formats/data_dir.md).
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace lorad::server {

class DataDir {
 public:
  explicit DataDir(std::string root);

  const std::string& root() const { return root_; }
  // The whole path of a path that the core named ("datasets/x-12.jsonl", "checkpoints/JOB/50").
  std::string Full(std::string_view path) const;
  // A new whole path under uploads/, for a file or a directory. Any thread. Uploads that are left
  // there are removed at start.
  std::string NewUpload() const;

 private:
  std::string root_;
  mutable std::atomic<uint64_t> uploads_{0};
};

// The content that a worker asks for in FetchSlotContent, and LOAD_SLOT names: where its tensors
// come from.
struct SlotContent {
  enum class Kind {
    kCheckpoint,         // to go on from: master and moments
    kCheckpointWeights,  // init_from a checkpoint: master alone
    kAdapter,            // init_from an imported adapter (PEFT directory): master alone
  };
  Kind kind;
  std::string path;  // below the data directory
};

// "checkpoint:PATH", "weights:PATH", "adapter:PATH".
std::string ToText(const SlotContent& content);
absl::StatusOr<SlotContent> ParseSlotContent(std::string_view text);

}  // namespace lorad::server

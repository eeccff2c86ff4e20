// The files in a data directory that no record names.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "server/core/events/data_dir.h"
#include "storage/files/files.h"

namespace lorad::server {

// Puts away what no record names: what was on its way in, being written or being removed before a
// crash is removed; what is whole moves to lost/, for a record may have named it in a store that is
// newer than this one. No link is followed, for what it leads to may be anybody's. Each Clear
// returns lines for the log. One thread at a time.
class Leftovers {
 public:
  // `data_dir` and `files` outlive it. `in_use`: paths below the data directory that records name.
  // `settled`: folders that nothing is written into any more ("checkpoints/JOB"); there may be
  // 100,000 of them, and a start need not wait until each was looked into.
  Leftovers(const DataDir& data_dir, storage::Files& files, std::vector<std::string> in_use,
            std::vector<std::string> settled);

  // All but what lies in the settled folders. Before anything else is written.
  absl::StatusOr<std::vector<std::string>> ClearUnsettled();
  // The next `folders_max` of the settled folders; any of them may be gone by now.
  absl::StatusOr<std::vector<std::string>> ClearSettled(size_t folders_max);
  bool done() const { return settled_.empty(); }

 private:
  absl::Status RemoveAll(const std::string& folder, const std::string& suffix);
  absl::Status SweepCheckpoints();
  absl::Status SweepJob(const std::string& folder);
  bool HoldsUsed(const std::string& folder);
  absl::StatusOr<size_t> Sweep(const std::string& folder);
  bool IsWhole(const std::string& path);
  absl::Status MoveToLost(const std::string& path);
  absl::StatusOr<std::vector<std::string>> TakeNotes(const absl::Status& status);

  const DataDir& data_dir_;
  storage::Files& files_;
  std::vector<std::string> in_use_;   // sorted
  std::vector<std::string> settled_;  // sorted; those that were not looked into yet
  std::vector<std::string> notes_;
};

}  // namespace lorad::server

// A store in memory that is as durable as the real one: each turn is one write and one sync of a
// file, and is there once the sync has succeeded.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "storage/files/files.h"
#include "tests/sim/disk/memory_store.h"

namespace lorad::sim {

class MarkedStore final : public MemoryStore {
 public:
  // Turns are written to the file at `path`, which need not be there. `files` outlives this.
  MarkedStore(storage::Files& files, std::string path) : files_(files), path_(std::move(path)) {}

  // At each start of the process; what fails here fails every Apply.
  absl::Status Open();
  // After a failure that leaves the file's end unknown every Apply fails alike.
  absl::Status Apply(const std::vector<storage::Mutation>& mutations) override;

 private:
  absl::Status Mark();

  storage::Files& files_;
  const std::string path_;
  absl::Status broken_;
};

}  // namespace lorad::sim

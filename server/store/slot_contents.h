// The content that a slot starts from, as it lies in the data directory.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "server/core/events/data_dir.h"
#include "storage/adapters/shard_reader.h"
#include "storage/files/files.h"

namespace lorad::server {

// To read it for a slot of `job`. Errors as of ShardReader. `files` must outlive it.
absl::StatusOr<std::unique_ptr<storage::ShardReader>> OpenSlotContent(storage::Files& files,
                                                                      const DataDir& data_dir,
                                                                      const SlotContent& content,
                                                                      const std::string& job);

}  // namespace lorad::server

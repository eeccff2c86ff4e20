// The work on a data directory before the core runs.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/core/events/data_dir.h"
#include "server/core/events/stored_state.h"
#include "storage/files/files.h"
#include "storage/job_store.h"

namespace lorad::server {

// Makes the folders of a data directory. DATA_DIR_INVALID if it cannot be one.
absl::Status MakeFolders(const DataDir& data_dir, storage::Files& files);

// STORE_MISSING if what was stored lies there without its store: beginning with an empty one, every
// file would look like a crash's leftover.
absl::Status CheckStoreIsThere(const DataDir& data_dir, storage::Files& files);

// Reads what the core begins with.
absl::StatusOr<StoredState> ReadStore(storage::JobStore& store);

// Gives a store that has none its identity, durably: 16 hex digits. Errors: of JobStore::Apply.
absl::StatusOr<std::string> Identify(storage::JobStore& store, uint64_t random);

}  // namespace lorad::server

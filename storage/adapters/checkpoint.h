#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "storage/adapters/manifest.h"
#include "storage/adapters/peft.h"
#include "storage/files/files.h"
#include "storage/tensors/safetensors.h"

namespace lorad::storage {

// The checkpoints of jobs. Page: docs/formats/checkpoint.md.
//
// Two forms. A shard is one safetensors file as it travels between worker and coordinator: for
// every adapter matrix "<peft key>" (master), "<peft key>.exp_avg", "<peft key>.exp_avg_sq"
// (AdamW's moments; both absent where training starts over), all float32; metadata job, step,
// numerics_id. Of several stages each has the matrices of its blocks. A checkpoint is a directory:
// adapter_config.json + adapter_model.safetensors (PEFT's layout, so the directory is an adapter),
// optimizer.safetensors, state.json and manifest.json, which is written last and holds size and
// sha256 of each. Errors about content: reason CHECKPOINT_INVALID.

inline constexpr char kOptimizerFile[] = "optimizer.safetensors";
inline constexpr char kStateFile[] = "state.json";
inline constexpr char kFirstMomentSuffix[] = ".exp_avg";
inline constexpr char kSecondMomentSuffix[] = ".exp_avg_sq";

struct CheckpointState {
  std::string job;
  int64_t step = 0;  // steps done
  std::string numerics_id;

  bool operator==(const CheckpointState&) const = default;
};

struct Checkpoint {
  std::string directory;
  CheckpointState state;
  std::vector<ListedFile> files;  // the manifest's, sorted by name; without the manifest itself
};

// ---- shards ----

// Metadata of a shard ("job", "step", "numerics_id"), for writers and readers.
std::map<std::string, std::string> ShardMetadata(const CheckpointState& state);
absl::StatusOr<CheckpointState> ShardState(const SafetensorsHeader& header);

// ---- shard -> checkpoint ----

// Makes `directory` from the shards of all stages, atomically through `files`: all is written and
// synced under directory + ".tmp" (what a crash left there is removed first), the manifest last,
// then renamed, then the parent synced. The shards are read piece by piece and left where they are;
// how the matrices lie in them changes no byte of what is written. Where the same checkpoint is
// there already, whole, it is returned and nothing is written: a commit may be tried again.
// REQUIRES: the parent exists, durably. Refused: a state other than `expected`, tensors other than
// float32, missing moments, a matrix twice, matrices that do not fit `config`, a value that is not
// finite.
// Errors of the disk pass through.
absl::StatusOr<Checkpoint> CommitCheckpoint(Files& files,
                                            const std::vector<std::string>& shard_paths,
                                            const CheckpointState& expected,
                                            const PeftConfig& config, const std::string& directory);

// ---- at rest ---- (as a shard again: shard_reader.h)

// Reads manifest and state; every file must be there in its size. With `verify` also its sha256.
absl::StatusOr<Checkpoint> OpenCheckpoint(Files& files, const std::string& directory, bool verify);

}  // namespace lorad::storage

// The content that a slot starts from, as a shard (checkpoint.h), read piece by piece: whoever
// sends it asks for the next piece when the last one is gone, and no thread waits in between.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "storage/adapters/checkpoint.h"
#include "storage/files/files.h"
#include "storage/files/sha256.h"
#include "storage/tensors/safetensors_file.h"

namespace lorad::storage {

// Reads through Files alone, nothing by a mapping: what the disk cannot give is an error. A
// checkpoint that is not as it was committed (a file that is gone, another size, another sha256
// than the manifest's) is DATA_LOSS with the file's path, reason CHECKPOINT_CORRUPT: known for
// certain only behind the last byte, so nothing may be used before the end. A job's folder that is
// not there at all is NOT_FOUND: its disk may not be mounted. Not thread-safe; `files` must outlive
// it.
class ShardReader {
 public:
  // A checkpoint, masters and moments. The state is the checkpoint's.
  static absl::StatusOr<std::unique_ptr<ShardReader>> OfCheckpoint(Files& files,
                                                                   const std::string& directory);
  // Its masters alone, as a shard of `job` at step 0: how init_from a checkpoint starts.
  static absl::StatusOr<std::unique_ptr<ShardReader>> OfWeights(Files& files,
                                                                const std::string& directory,
                                                                const std::string& job);
  // An adapter in PEFT's layout likewise, converted to float32. Damage is found by its manifest; of
  // one that an older version imported nothing says what it must be, but its own form: errors as of
  // PeftAdapter.
  static absl::StatusOr<std::unique_ptr<ShardReader>> OfAdapter(Files& files,
                                                                const std::string& directory,
                                                                const std::string& job);

  // Makes a shard of these matrices, with their moments, alone, which are fewer bytes to send;
  // files are read whole all the same where their sums say whether they are good. Names of matrices
  // that are not there are passed over. REQUIRES: before the first Next.
  void Only(const std::set<std::string, std::less<>>& matrices);

  // The next piece, of at most 1 MiB; empty: that was all, and all of it is good.
  absl::StatusOr<std::string> Next();

 private:
  // A file whose tensors are read in the order in which they lie in it, hashed on the way.
  struct Source {
    SafetensorsFile file;
    std::string sha256;  // what it must have; empty: nobody knows
    Sha256 sha;
  };

  explicit ShardReader(Files& files) : files_(files) {}
  absl::Status AddSource(const std::string& path, const std::string& sha256);
  absl::Status AddSource(const Checkpoint& checkpoint, const std::string& name);
  // A tensor on its way from its file to the shard.
  struct Reading {
    TensorInfo tensor;  // as it lies in its file
    size_t source = 0;
    bool wanted = true;  // else it is hashed and left out
  };

  // All sources are there.
  void Plan(const CheckpointState& state);
  // Empty: it is read.
  absl::StatusOr<std::string> ReadTensor(const Reading& reading);
  absl::Status CheckSums();

  Files& files_;
  std::vector<Source> sources_;
  bool committed_ = false;  // what is wrong is damage: it was whole once
  std::map<std::string, std::string> metadata_;
  std::vector<Reading> readings_;              // in the order of a shard of them all
  std::unique_ptr<SafetensorsLayout> layout_;  // of those that are wanted
  uint64_t prefix_sent_ = 0;
  size_t reading_ = 0;  // that is next,
  uint64_t done_ = 0;   // and how many bytes of it, as they lie in its file
};

// CHECKPOINT_CORRUPT where the state of a checkpoint is not that of its folder, ../JOB/STEP: whole
// in itself, it lies where another one was committed. What cannot be read is its reader's to say.
absl::Status CheckPlace(Files& files, const std::string& directory);

// Reads a whole checkpoint: OK, or the errors that a reader of it has, and CheckPlace.
absl::Status VerifyCheckpoint(Files& files, const std::string& directory);

}  // namespace lorad::storage

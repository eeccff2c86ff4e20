// What the files of a base model hold, part by part, for workers whose files have other times.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "lorad/worker/v1/worker.pb.h"
#include "storage/models/model_directory.h"

namespace lorad::server {

using ModelParts = std::vector<worker::v1::ModelPart>;

// Those that were read last, by the fingerprint of their directory: reading takes as long as the
// disk and SHA-256 do (15 GB in ten seconds and more). Any thread.
class KnownModelParts {
 public:
  std::shared_ptr<const ModelParts> Find(const std::string& fingerprint) const;
  void Keep(const std::string& fingerprint, ModelParts parts);

 private:
  mutable std::mutex mutex_;
  // Shared with who is being told.
  std::deque<std::pair<std::string, std::shared_ptr<const ModelParts>>> kept_
      ABSL_GUARDED_BY(mutex_);
};

// Reads one after the other, from the disk unless they are known. Not thread-safe.
class ModelPartsReader {
 public:
  // `known` must outlive it. FAILED_PRECONDITION (MODEL_CHANGED) where the files at `path` are not
  // those of `fingerprint` any more; errors of ModelDirectory::Open.
  static absl::StatusOr<std::unique_ptr<ModelPartsReader>> Open(const std::string& path,
                                                                const std::string& fingerprint,
                                                                KnownModelParts& known);

  // False: that was the last.
  absl::StatusOr<bool> Next(worker::v1::ModelPart* part);

 private:
  ModelPartsReader(storage::ModelDirectory directory, KnownModelParts& known);

  const storage::ModelDirectory directory_;
  KnownModelParts& known_;
  const std::vector<std::string> names_;
  const std::shared_ptr<const ModelParts> found_;  // null: they are to be read
  ModelParts read_;
  size_t next_ = 0;
};

}  // namespace lorad::server

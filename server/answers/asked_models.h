// The parts of base models by which they are asked, kept while they are asked: a tokenizer takes a
// quarter of a second to read, and some 10 MB.
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "lorad/v1/models.pb.h"
#include "storage/datasets/text_model.h"
#include "storage/models/model_directory.h"

namespace lorad::server {

// Immutable once made: any number of threads.
struct AskedModel {
  storage::ModelDirectory directory;
  storage::TextModel text;
  std::vector<int32_t> ends;  // EndTokens
};

class AskedModels {
 public:
  // Of the model as it was registered: FAILED_PRECONDITION (MODEL_CHANGED) where its files are
  // others now. Reads them where it is not one of the kAskedModelsKept that were asked last: for a
  // thread that may. Any thread; one reads at a time.
  absl::StatusOr<std::shared_ptr<const AskedModel>> Get(const v1::Model& model);

 private:
  using Kept = std::pair<std::string, std::shared_ptr<const AskedModel>>;

  std::mutex mutex_;
  std::list<Kept> kept_ ABSL_GUARDED_BY(mutex_);  // by what they are of; the last asked first
};

inline constexpr std::size_t kAskedModelsKept = 4;

}  // namespace lorad::server

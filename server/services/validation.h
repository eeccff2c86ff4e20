// Checking a dataset for a model, a piece at a time: what ValidateDataset does, without its stream.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <string_view>

#include "absl/status/statusor.h"
#include "lorad/v1/datasets.pb.h"
#include "lorad/v1/models.pb.h"
#include "storage/datasets/dataset.h"
#include "storage/datasets/dataset_encode.h"

namespace lorad::server {

// The limits of every dataset that clients send.
storage::DatasetLimits UploadLimits();

// One thread at a time.
class Validation {
 public:
  // Loads what rows are encoded by. INVALID_ARGUMENT; errors of the model's directory.
  static absl::StatusOr<std::unique_ptr<Validation>> Open(
      const v1::ValidateDatasetRequest::Config& config, const v1::Model& model);

  // The next bytes of the file.
  absl::Status Add(std::string_view bytes) { return scanner_.Add(bytes); }
  // After the last ones: the report is the last message.
  void Finish();

  // The messages to send, in sequence: rows that were asked for, at last the report.
  std::deque<v1::ValidateDatasetResponse>& messages() { return messages_; }

 private:
  Validation(const v1::ValidateDatasetRequest::Config& config, storage::EncodeOptions options,
             storage::TextModel text);

  const storage::TextModel text_;
  std::deque<v1::ValidateDatasetResponse> messages_;
  storage::DatasetEncoder encoder_;
  storage::DatasetScanner scanner_;
};

}  // namespace lorad::server

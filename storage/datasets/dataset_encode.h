// Rows to token ids and labels (docs/formats/dataset.md, "What is trained on").
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "storage/datasets/dataset.h"
#include "storage/datasets/text_model.h"
#include "storage/tokenization/encoding.h"

namespace lorad::storage {

inline constexpr int32_t kNotTrained = -100;

struct EncodeOptions {
  int32_t max_length = 1024;
  bool refuse_overflow = false;  // a longer row is an error, else cut at the right
};

struct EncodedRow {
  std::vector<int32_t> ids;
  std::vector<int32_t> labels;    // as long; kNotTrained where not trained on; the engine shifts
  std::string text;               // as rendered; empty for rows of tokens
  std::vector<TextSpan> trained;  // of text, ascending; before any cut
  bool truncated = false;
};

// Labels that the engine trains on: those behind the first token.
int64_t TrainedTokens(const std::vector<int32_t>& labels);

// InvalidArgument (reason DATASET_INVALID, or TEMPLATE_* from the template) says what is wrong with
// the row: no template, template rejects it, no end-of-text token, too long, an id outside of the
// vocabulary, no trained token.
absl::StatusOr<EncodedRow> EncodeRow(const DatasetRow& row, const TextModel& model,
                                     const EncodeOptions& options);

// The text with « and » around what is trained on, cut after about `length` bytes.
std::string MarkTrained(const EncodedRow& row, size_t length = 2000);

// Encodes every row that it is given, counts, and hands them on. A part of a DatasetScanner.
class DatasetEncoder {
 public:
  using OnEncoded = std::function<absl::Status(int64_t row, int64_t line, const EncodedRow&)>;
  DatasetEncoder(const TextModel& model, const EncodeOptions& options, OnEncoded on_encoded);

  // A DatasetScanner::OnRow.
  absl::Status Encode(int64_t row, int64_t line, const DatasetRow& content);
  // Adds what was counted to a scanner's report.
  void Complete(DatasetReport* report) const;

 private:
  const TextModel& model_;
  const EncodeOptions options_;
  OnEncoded on_encoded_;
  DatasetReport counted_;
};

}  // namespace lorad::storage

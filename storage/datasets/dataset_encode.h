// Rows to token ids and labels (docs/formats/dataset.md, "What is trained on").
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "storage/datasets/dataset.h"
#include "storage/datasets/row_render.h"
#include "storage/datasets/text_model.h"
#include "storage/tokenization/encoding.h"

namespace lorad::storage {

inline constexpr int32_t kNotTrained = -100;

// What becomes of a row that is longer than max_length.
enum class Overflow {
  kTruncate,  // cut at the right
  kRefuse,    // an error
  kSkip,      // cut at the right; a row of which no token is trained on, cut or not, is left out
};
std::string_view ToText(Overflow overflow);  // "truncate", "error", "skip"
std::string_view ToText(TrainOn train_on);   // "assistant", "all"

struct EncodeOptions {
  int32_t max_length = 1024;
  Overflow overflow = Overflow::kTruncate;
  TrainOn train_on = TrainOn::kAssistant;
};

// A sequence of tokens: a row, or a part of one.
struct EncodedRow {
  std::vector<int32_t> ids;
  std::vector<int32_t> labels;  // as long; kNotTrained where not trained on; the engine shifts
  std::string text = {};        // as rendered; empty for rows of tokens
  std::vector<TextSpan> trained = {};  // of text, ascending; before any cut
  bool truncated = false;
  int32_t sequence = 0;  // its place among the row's
};

struct EncodedRows {
  std::vector<EncodedRow> sequences;
  int64_t skipped = 0;  // with Overflow::kSkip: those of which no token is trained on
};

// Labels that the engine trains on: those behind the first token.
int64_t TrainedTokens(const std::vector<int32_t>& labels);

// InvalidArgument (reason DATASET_INVALID, or TEMPLATE_* from the template) says what is wrong with
// the row: no template, template rejects it, no end-of-text token, too long, an id outside of the
// vocabulary; and, with the reason ROW_UNTRAINED, that no token of a sequence is trained on.
absl::StatusOr<EncodedRows> EncodeRow(const DatasetRow& row, const TextModel& model,
                                      const EncodeOptions& options);

// The text with « and » around what is trained on, cut after about `length` bytes.
std::string MarkTrained(const EncodedRow& row, size_t length = 2000);

// Encodes every row that it is given, counts, and hands them on. A part of a DatasetScanner.
class DatasetEncoder {
 public:
  using OnEncoded = std::function<absl::Status(int64_t row, int64_t line, const EncodedRow&)>;
  DatasetEncoder(const TextModel& model, const EncodeOptions& options, OnEncoded on_encoded);

  // A DatasetScanner::OnRow. `on_encoded` is called for each of a row's sequences.
  absl::Status Encode(int64_t row, int64_t line, const DatasetRow& content);
  // Adds what was counted to a scanner's report. That every row was left out is an error in it.
  void Complete(DatasetReport* report) const;

 private:
  void AddUntrained(int64_t line);

  const TextModel& model_;
  const EncodeOptions options_;
  OnEncoded on_encoded_;
  DatasetReport counted_;
};

}  // namespace lorad::storage

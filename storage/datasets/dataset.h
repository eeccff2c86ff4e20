// Training rows as JSON Lines: reading them in bounded memory. Page: docs/formats/dataset.md.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "storage/datasets/chat_template.h"
#include "storage/datasets/value_builder.h"

namespace lorad::storage {

class Files;

// Values as in lorad.v1's Dataset.Format.
enum class DatasetFormat {
  kMessages = 1,
  kPromptCompletion = 2,
  kInstruction = 3,
  kText = 4,
  kTokens = 5,
};
// "messages", "prompt_completion", "instruction", "text", "tokens".
std::string_view ToText(DatasetFormat format);

struct DatasetLimits {
  int64_t file_bytes = int64_t{4} << 30;
  int64_t rows = 10'000'000;
  int64_t row_bytes = 16 << 20;
  int depth = 32;           // nested arrays and objects in a row
  int messages = 4096;      // of one conversation
  ValueLimits values = {};  // of a row's messages and tools
  int64_t errors_listed = 1000;
};

// ---- one row ----

struct MessagesRow {  // {"conversations", ...} rows too
  std::vector<ChatMessage> messages;
  ChatInputs inputs = {};
};
struct PromptCompletionRow {  // {"instruction", ...} rows too, once their prompt text is made
  std::string prompt, completion;
};
struct PromptCompletionMessagesRow {
  std::vector<ChatMessage> prompt, completion;
  ChatInputs inputs = {};
};
struct InstructionRow {
  std::string instruction, input, output;
};
struct TextRow {
  std::string text;
};
struct TokensRow {
  std::vector<int32_t> input_ids, labels;
};
using DatasetRow = std::variant<MessagesRow, PromptCompletionRow, PromptCompletionMessagesRow,
                                InstructionRow, TextRow, TokensRow>;
DatasetFormat FormatOf(const DatasetRow& row);

// One line, without its end, as a row of any format. InvalidArgument (reason DATASET_INVALID; no
// line number) says what is wrong, for bad JSON and bad UTF-8 with the column (characters, from 1).
absl::StatusOr<DatasetRow> ParseRow(std::string_view line, const DatasetLimits& limits = {});

// ---- a file of rows ----

struct RowError {
  int64_t line = 0;  // from 1
  std::string reason;
};

// Lines of a file, from 1, both ends included.
struct LineRange {
  int64_t first = 0, last = 0;
};
// "3, 9-12"; what would take it beyond `bytes` is counted: "3, 9-12 and 40 more".
std::string ToText(const std::vector<LineRange>& lines, size_t bytes);

struct DatasetReport {
  std::optional<DatasetFormat> format;
  int64_t rows = 0;
  int64_t size_bytes = 0;
  // With a model alone:
  int64_t tokens = 0;
  int64_t trained_tokens = 0;
  int64_t truncated_rows = 0;
  int64_t sequences = 0;     // that are trained on: more than rows where templates rewrite turns
  int64_t skipped_rows = 0;  // sequences left out for want of a trained token (Overflow::kSkip)
  int32_t longest_tokens = 0;
  std::string sample;  // the first good row as rendered, trained text between guillemets, cut short
  // Sorted by line, at most DatasetLimits::errors_listed; 0 = the file as a whole.
  std::vector<RowError> errors;
  int64_t error_count = 0;
  // With a model alone: the bad rows of which no token is trained on, however many; ascending.
  std::vector<LineRange> untrained_lines;
};
// OK, or InvalidArgument (reason DATASET_INVALID) with the first error and the count of others.
absl::Status ToStatus(const DatasetReport& report);

// Takes a file in chunks as they come and parses each row, one line at a time: memory stays at one
// row. Lines end in LF or CRLF; a byte order mark at the front and blank lines are skipped (blank
// lines count as lines); the last line may lack its end. All rows must be of the format (for
// prompt and completion also: strings or messages) of the first good one.
class DatasetScanner {
 public:
  // Called for every good row: its number from 0, its line from 1. An error it returns counts as an
  // error of that row.
  using OnRow = std::function<absl::Status(int64_t row, int64_t line, const DatasetRow& content)>;

  explicit DatasetScanner(const DatasetLimits& limits = {}, OnRow on_row = nullptr);

  // RESOURCE_EXHAUSTED (reason DATASET_LIMIT) once the file is over a limit as a whole; bad rows
  // are not errors of this call.
  absl::Status Add(std::string_view bytes);
  // Call once, at the end: an empty file is an error in the report.
  DatasetReport Finish();

  const DatasetReport& report() const { return report_; }

 private:
  absl::Status EndLine(std::string_view line);
  void AddError(std::string reason);

  DatasetLimits limits_;
  OnRow on_row_;
  DatasetReport report_;
  std::string partial_;     // a line whose end has not come yet
  bool skipping_ = false;   // the rest of a line over the limit
  int64_t line_ = 1;        // being read
  int64_t first_line_ = 0;  // of the row that decided the format
  size_t kind_ = 0;         // index in DatasetRow of that row
};

// OK, or DATA_LOSS (reason DATASET_CHANGED) where the bytes that were read of the file `path` have
// another sha256 than those that were uploaded.
absl::Status CheckDataset(const std::string& path, std::string_view sha256,
                          std::string_view uploaded);

// Runs a whole file through a scanner, 1 MiB at a time. DATA_LOSS (reason DATASET_CHANGED) where
// the bytes that it was given are not those of `sha256`: then neither its report nor an error of a
// row is one of the dataset, and what `on_row` was given is of no use. DATASET_UNREADABLE;
// CANCELLED once `cancel` is set.
absl::StatusOr<DatasetReport> ScanDataset(Files& files, const std::string& path,
                                          std::string_view sha256, const DatasetLimits& limits = {},
                                          DatasetScanner::OnRow on_row = nullptr,
                                          const std::atomic<bool>* cancel = nullptr);

}  // namespace lorad::storage

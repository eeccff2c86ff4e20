#include "storage/datasets/dataset.h"

#include <algorithm>
#include <cassert>

#include "absl/strings/str_cat.h"
#include "storage/files/errors.h"
#include "storage/files/files.h"
#include "storage/files/sha256.h"

namespace lorad::storage {
namespace {

constexpr uint64_t kChunkBytes = 1 << 20;
constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";

bool IsBlank(std::string_view line) {
  return line.find_first_not_of(" \t\r") == std::string_view::npos;
}

std::string Describe(size_t kind) {
  constexpr std::string_view kNames[] = {"messages",
                                         "prompt and completion strings",
                                         "prompt and completion messages",
                                         "instruction",
                                         "text",
                                         "tokens"};
  static_assert(std::size(kNames) == std::variant_size_v<DatasetRow>);
  return std::string(kNames[kind]);
}

}  // namespace

std::string_view ToText(DatasetFormat format) {
  switch (format) {
    case DatasetFormat::kMessages:
      return "messages";
    case DatasetFormat::kPromptCompletion:
      return "prompt_completion";
    case DatasetFormat::kInstruction:
      return "instruction";
    case DatasetFormat::kText:
      return "text";
    case DatasetFormat::kTokens:
      return "tokens";
  }
  assert(false);
  return "";
}

std::string ToText(const std::vector<LineRange>& lines, size_t bytes) {
  std::string text;
  int64_t left = 0;
  for (const LineRange& range : lines) {
    const std::string next = range.first == range.last ? absl::StrCat(range.first)
                                                       : absl::StrCat(range.first, "-", range.last);
    if (left > 0 || text.size() + next.size() + 2 > bytes) {
      left += range.last - range.first + 1;
    } else {
      absl::StrAppend(&text, text.empty() ? "" : ", ", next);
    }
  }
  if (left > 0) absl::StrAppend(&text, " and ", left, " more");
  return text;
}

DatasetFormat FormatOf(const DatasetRow& row) {
  constexpr DatasetFormat kFormats[] = {DatasetFormat::kMessages,
                                        DatasetFormat::kPromptCompletion,
                                        DatasetFormat::kPromptCompletion,
                                        DatasetFormat::kInstruction,
                                        DatasetFormat::kText,
                                        DatasetFormat::kTokens};
  static_assert(std::size(kFormats) == std::variant_size_v<DatasetRow>);
  return kFormats[row.index()];
}

absl::Status ToStatus(const DatasetReport& report) {
  if (report.error_count == 0) return absl::OkStatus();
  const RowError& first = report.errors.front();
  std::string message =
      first.line == 0 ? first.reason : absl::StrCat("line ", first.line, ": ", first.reason);
  if (report.error_count > 1) {
    absl::StrAppend(&message, " (and ", report.error_count - 1, " more bad rows)");
  }
  return Refuse("DATASET_INVALID", message);
}

DatasetScanner::DatasetScanner(const DatasetLimits& limits, OnRow on_row)
    : limits_(limits), on_row_(std::move(on_row)) {}

absl::Status DatasetScanner::Add(std::string_view bytes) {
  report_.size_bytes += static_cast<int64_t>(bytes.size());
  if (report_.size_bytes > limits_.file_bytes) {
    absl::Status status = absl::ResourceExhaustedError(
        absl::StrCat("the file is longer than ", limits_.file_bytes, " bytes; split it"));
    status.SetPayload(Absl(kReasonPayload), absl::Cord("DATASET_LIMIT"));
    return status;
  }
  while (!bytes.empty()) {
    const size_t end = bytes.find('\n');
    const std::string_view piece = bytes.substr(0, end);
    if (!skipping_ &&
        static_cast<int64_t>(partial_.size() + piece.size()) > limits_.row_bytes + 1) {  // + CR
      AddError(absl::StrCat("longer than ", limits_.row_bytes, " bytes"));
      ++report_.rows;
      skipping_ = true;
      partial_ = std::string();
    }
    if (end == std::string_view::npos) {
      if (!skipping_) partial_.append(piece);
      break;
    }
    absl::Status status;
    if (!skipping_ && partial_.empty()) {
      status = EndLine(piece);
    } else if (!skipping_) {
      partial_.append(piece);
      status = EndLine(partial_);
    }
    if (!status.ok()) return status;
    partial_.clear();
    skipping_ = false;
    ++line_;
    bytes.remove_prefix(end + 1);
  }
  return absl::OkStatus();
}

DatasetReport DatasetScanner::Finish() {
  if (!skipping_ && !partial_.empty()) {
    // A limit on rows that the very last one breaks is reported as its error.
    if (absl::Status status = EndLine(partial_); !status.ok()) {
      AddError(std::string(status.message()));
    }
    partial_.clear();
  }
  if (report_.rows == 0 && report_.error_count == 0) {
    report_.errors.push_back(RowError{0, "the file has no rows"});
    report_.error_count = 1;
  }
  return report_;
}

absl::Status DatasetScanner::EndLine(std::string_view line) {
  if (line_ == 1 && line.substr(0, kByteOrderMark.size()) == kByteOrderMark) {
    line.remove_prefix(kByteOrderMark.size());
  }
  if (!line.empty() && line.back() == '\r') line.remove_suffix(1);
  if (IsBlank(line)) return absl::OkStatus();
  if (report_.rows >= limits_.rows) {
    absl::Status status = absl::ResourceExhaustedError(
        absl::StrCat("the file has more than ", limits_.rows, " rows; split it"));
    status.SetPayload(Absl(kReasonPayload), absl::Cord("DATASET_LIMIT"));
    return status;
  }
  const int64_t row = report_.rows++;
  absl::StatusOr<DatasetRow> content = ParseRow(line, limits_);
  if (!content.ok()) {
    AddError(std::string(content.status().message()));
    return absl::OkStatus();
  }
  if (!report_.format) {
    report_.format = FormatOf(*content);
    kind_ = content->index();
    first_line_ = line_;
  } else if (content->index() != kind_) {
    AddError(absl::StrCat("a row of ", Describe(content->index()), " in a file of ",
                          Describe(kind_), " (line ", first_line_, "); one file has one format"));
    return absl::OkStatus();
  }
  if (!on_row_) return absl::OkStatus();
  if (absl::Status status = on_row_(row, line_, *content); !status.ok()) {
    AddError(std::string(status.message()));
  }
  return absl::OkStatus();
}

void DatasetScanner::AddError(std::string reason) {
  ++report_.error_count;
  if (static_cast<int64_t>(report_.errors.size()) < limits_.errors_listed) {
    report_.errors.push_back(RowError{line_, std::move(reason)});
  }
}

absl::Status CheckDataset(const std::string& path, std::string_view sha256,
                          std::string_view uploaded) {
  if (sha256 == uploaded) return absl::OkStatus();
  return WithReason(absl::StatusCode::kDataLoss, "DATASET_CHANGED",
                    absl::StrCat(path,
                                 ": the file is not what was uploaded any more; put it back from a "
                                 "backup, or delete the dataset and upload it again"));
}

// The file may change at any time, so what is hashed is what is scanned, to the end.
absl::StatusOr<DatasetReport> ScanDataset(Files& files, const std::string& path,
                                          std::string_view sha256, const DatasetLimits& limits,
                                          DatasetScanner::OnRow on_row,
                                          const std::atomic<bool>* cancel) {
  DatasetScanner scanner(limits, std::move(on_row));
  Sha256 hash;
  absl::Status status;
  for (uint64_t offset = 0;;) {
    if (cancel != nullptr && *cancel) return absl::CancelledError(path + ": no longer wanted");
    absl::StatusOr<std::string> chunk = files.ReadRange(path, offset, kChunkBytes);
    if (!chunk.ok()) {
      return WithReason(chunk.status().code(), "DATASET_UNREADABLE",
                        std::string(chunk.status().message()));
    }
    hash.Update(*chunk);
    if (status.ok()) status = scanner.Add(*chunk);
    offset += chunk->size();
    if (chunk->size() < kChunkBytes) break;
  }
  if (absl::Status same = CheckDataset(path, hash.HexDigest(), sha256); !same.ok()) return same;
  if (!status.ok()) return status;
  return scanner.Finish();
}

}  // namespace lorad::storage

#include "server/services/validation.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/calls/call.h"
#include "server/errors/errors.h"
#include "server/validation/limits.h"
#include "storage/models/model_directory.h"

namespace lorad::server {
namespace {

constexpr size_t kReasonBytesMax = 500;
constexpr size_t kTextBytesMax = 1 << 20;

v1::ValidateDatasetResponse ReportMessage(const storage::DatasetReport& report) {
  v1::ValidateDatasetResponse response;
  v1::DatasetReport& message = *response.mutable_report();
  message.set_format(report.format ? static_cast<v1::Dataset::Format>(*report.format)
                                   : v1::Dataset::FORMAT_UNSPECIFIED);
  message.set_rows(report.rows);
  message.set_tokens(report.tokens);
  message.set_trained_tokens(report.trained_tokens);
  message.set_truncated_rows(report.truncated_rows);
  message.set_sequences(report.sequences);
  message.set_skipped_rows(report.skipped_rows);
  message.set_longest_tokens(report.longest_tokens);
  for (const storage::LineRange& range : report.untrained_lines) {
    v1::LineRange* lines = message.add_untrained_lines();
    lines->set_first(range.first);
    lines->set_last(range.last);
  }
  message.set_error_count(report.error_count);
  message.set_sample(Quotable(report.sample, kTextBytesMax));
  for (const storage::RowError& error : report.errors) {
    v1::RowError* row = message.add_errors();
    row->set_line(error.line);
    row->set_reason(Quotable(error.reason, kReasonBytesMax));
  }
  return response;
}

v1::ValidateDatasetResponse RowMessage(int64_t row, const storage::EncodedRow& encoded) {
  v1::ValidateDatasetResponse response;
  v1::EncodedRow& message = *response.mutable_row();
  message.set_row(row);
  message.set_sequence(encoded.sequence);
  message.set_text(Quotable(encoded.text, kTextBytesMax));
  message.mutable_input_ids()->Add(encoded.ids.begin(), encoded.ids.end());
  message.mutable_labels()->Add(encoded.labels.begin(), encoded.labels.end());
  // Nothing foretells the first token, whatever the row says of it.
  if (!encoded.labels.empty()) message.set_labels(0, storage::kNotTrained);
  return response;
}

absl::Status CheckConfig(const v1::ValidateDatasetRequest::Config& config,
                         const storage::EncodeOptions& options, const v1::Model& model) {
  RequestCheck check;
  const int positions = model.max_position_embeddings();
  if (options.max_length < 2 || options.max_length > positions) {
    check.Field("config.max_length", absl::StrCat("must be between 2 and the model's ", positions,
                                                  " positions, got ", options.max_length));
  }
  using Training = v1::TrainingConfig;
  if (!Training::Overflow_IsValid(config.overflow())) {
    check.Field("config.overflow", absl::StrCat("must be TRUNCATE, ERROR or SKIP, got ",
                                                static_cast<int>(config.overflow())));
  } else if (config.refuse_overflow() && config.overflow() != Training::OVERFLOW_UNSPECIFIED &&
             config.overflow() != Training::ERROR) {
    check.Field("config.refuse_overflow", "says ERROR, and config.overflow something else");
  }
  if (!Training::TrainOn_IsValid(config.train_on())) {
    check.Field("config.train_on", absl::StrCat("must be ASSISTANT or ALL, got ",
                                                static_cast<int>(config.train_on())));
  }
  const int64_t begin = config.print_rows_begin();
  const int64_t end = config.print_rows_end();
  if (begin < 0 || end < begin || end - begin > kPrintRowsMax) {
    check.Field("config.print_rows_end",
                absl::StrCat("must be at least print_rows_begin and at most ", kPrintRowsMax,
                             " rows after it, got ", begin, " and ", end));
  }
  return check.status();
}

}  // namespace

storage::DatasetLimits UploadLimits() {
  storage::DatasetLimits limits;
  limits.file_bytes = kDatasetBytesMax;
  return limits;
}

absl::StatusOr<std::unique_ptr<Validation>> Validation::Open(
    const v1::ValidateDatasetRequest::Config& config, const v1::Model& model) {
  storage::EncodeOptions options;
  using Training = v1::TrainingConfig;
  if (config.overflow() == Training::ERROR || config.refuse_overflow()) {
    options.overflow = storage::Overflow::kRefuse;
  } else if (config.overflow() == Training::SKIP) {
    options.overflow = storage::Overflow::kSkip;
  }
  if (config.train_on() == Training::ALL) options.train_on = storage::TrainOn::kAll;
  options.max_length = config.has_max_length() ? config.max_length()
                                               : std::min(1024, model.max_position_embeddings());
  if (absl::Status status = CheckConfig(config, options, model); !status.ok()) return status;
  absl::StatusOr<storage::ModelDirectory> directory = storage::ModelDirectory::Open(model.path());
  if (!directory.ok()) return directory.status();
  absl::StatusOr<storage::TextModel> text =
      storage::LoadTextModel(*directory, model.chat_template());
  if (!text.ok()) return text.status();
  return std::unique_ptr<Validation>(new Validation(config, options, *std::move(text)));
}

Validation::Validation(const v1::ValidateDatasetRequest::Config& config,
                       storage::EncodeOptions options, storage::TextModel text)
    : text_(std::move(text)),
      encoder_(text_, options,
               [this, begin = config.print_rows_begin(), end = config.print_rows_end()](
                   int64_t row, int64_t, const storage::EncodedRow& encoded) {
                 if (row >= begin && row < end) messages_.push_back(RowMessage(row, encoded));
                 return absl::OkStatus();
               }),
      scanner_(UploadLimits(),
               [this](int64_t row, int64_t line, const storage::DatasetRow& content) {
                 return encoder_.Encode(row, line, content);
               }) {}

void Validation::Finish() {
  storage::DatasetReport report = scanner_.Finish();
  encoder_.Complete(&report);
  messages_.push_back(ReportMessage(report));
}

}  // namespace lorad::server

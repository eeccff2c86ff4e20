#include "storage/datasets/dataset_encode.h"

#include <algorithm>
#include <cassert>

#include "absl/strings/str_cat.h"
#include "storage/files/errors.h"

namespace lorad::storage {
namespace {

constexpr std::string_view kReason = "DATASET_INVALID";
constexpr std::string_view kUntrained = "ROW_UNTRAINED";
// Of lines that are kept: 1.6 MB.
constexpr size_t kLineRangesMax = 100'000;

// The first token that is trained on where trained text begins at `begin`: the tokens of what
// stands before, by itself, and those of the whole row part there (TRL's rule). It may lie before
// `begin`: a token that straddles the place holds the answer's first characters.
absl::StatusOr<size_t> FirstTrained(const Tokenizer& tokenizer, const RenderedRow& rendered,
                                    const Encoding& whole, size_t begin) {
  if (begin == 0) return whole.inserted_front;
  absl::StatusOr<Encoding> prompt = tokenizer.Encode(
      std::string_view(rendered.text).substr(0, begin), rendered.add_special_tokens);
  if (!prompt.ok()) return prompt.status();
  const auto parting =
      std::mismatch(prompt->ids.begin(), prompt->ids.end(), whole.ids.begin(), whole.ids.end());
  return static_cast<size_t>(parting.second - whole.ids.begin());
}

// From its first token on a span is trained on up to the last token that begins inside; with what
// the post-processor puts behind the text, where the span goes to its end.
absl::Status LabelAnswers(const Tokenizer& tokenizer, const RenderedRow& rendered,
                          const Encoding& encoding, std::vector<int32_t>* labels) {
  const size_t text_end = encoding.ids.size() - encoding.inserted_back;
  for (const TextSpan& span : rendered.trained) {
    if (span.begin == span.end) continue;
    absl::StatusOr<size_t> first = FirstTrained(tokenizer, rendered, encoding, span.begin);
    if (!first.ok()) return first.status();
    size_t end = *first;
    while (end < text_end && encoding.spans[end].begin < span.end) ++end;
    if (span.end == rendered.text.size()) end = encoding.ids.size();
    for (size_t i = *first; i < end; ++i) (*labels)[i] = encoding.ids[i];
  }
  return absl::OkStatus();
}

// Every token that overlaps a mark, as transformers makes its assistant mask. Both are in order.
void LabelMarked(const RenderedRow& rendered, const Encoding& encoding,
                 std::vector<int32_t>* labels) {
  auto span = rendered.trained.begin();
  for (size_t i = 0; i < encoding.ids.size(); ++i) {
    const TextSpan& token = encoding.spans[i];
    while (span != rendered.trained.end() && token.begin >= span->end) ++span;
    if (span == rendered.trained.end()) return;
    if (token.end > span->begin) (*labels)[i] = encoding.ids[i];
  }
}

absl::StatusOr<EncodedRow> EncodeText(RenderedRow rendered, const Tokenizer& tokenizer) {
  absl::StatusOr<Encoding> encoding = tokenizer.Encode(rendered.text, rendered.add_special_tokens);
  if (!encoding.ok()) return encoding.status();
  EncodedRow row;
  row.labels.assign(encoding->ids.size(), kNotTrained);
  if (rendered.marked) {
    LabelMarked(rendered, *encoding, &row.labels);
  } else {
    absl::Status labelled = LabelAnswers(tokenizer, rendered, *encoding, &row.labels);
    if (!labelled.ok()) return labelled;
  }
  row.text = std::move(rendered.text);
  row.trained = std::move(rendered.trained);
  row.ids = std::move(encoding->ids);
  return row;
}

// The row's sequences, whole.
absl::StatusOr<std::vector<EncodedRow>> EncodeWhole(const DatasetRow& content,
                                                    const TextModel& model, TrainOn train_on) {
  std::vector<EncodedRow> rows;
  if (const auto* tokens = std::get_if<TokensRow>(&content)) {
    rows.push_back({.ids = tokens->input_ids, .labels = tokens->labels});
    return rows;
  }
  if (model.tokenizer == nullptr) {
    return Refuse(kReason,
                  "the base model's directory has no tokenizer.json: it takes rows of input_ids "
                  "and labels alone");
  }
  absl::StatusOr<std::vector<RenderedRow>> rendered = RenderRow(content, model, train_on);
  if (!rendered.ok()) return rendered.status();
  for (RenderedRow& text : *rendered) {
    absl::StatusOr<EncodedRow> encoded = EncodeText(std::move(text), *model.tokenizer);
    if (!encoded.ok()) return encoded.status();
    encoded->sequence = static_cast<int32_t>(rows.size());
    rows.push_back(*std::move(encoded));
  }
  return rows;
}

absl::Status CheckIds(const EncodedRow& row, int64_t vocabulary) {
  for (size_t i = 0; i < row.ids.size(); ++i) {
    for (int32_t id : {row.ids[i], row.labels[i]}) {
      if (id < vocabulary) continue;
      return Refuse(kReason,
                    absl::StrCat("token id ", id, " at position ", i,
                                 " is outside of the base model's vocabulary of ", vocabulary));
    }
  }
  return absl::OkStatus();
}

// Checks a sequence and cuts it where it is too long.
absl::Status Fit(const TextModel& model, const EncodeOptions& options, EncodedRow* row) {
  if (absl::Status status = CheckIds(*row, model.vocabulary); !status.ok()) return status;
  if (TrainedTokens(row->labels) == 0) {
    return Refuse(kUntrained, "no token of the row is trained on (the first one never is)");
  }
  const size_t tokens = row->ids.size();
  const size_t limit = static_cast<size_t>(options.max_length);
  if (tokens <= limit) return absl::OkStatus();
  if (options.overflow == Overflow::kRefuse) {
    return Refuse(kReason, absl::StrCat("the row has ", tokens, " tokens, more than the ", limit,
                                        " of max_length"));
  }
  row->ids.resize(limit);
  row->labels.resize(limit);
  row->truncated = true;
  if (TrainedTokens(row->labels) > 0) return absl::OkStatus();
  return Refuse(kUntrained, absl::StrCat("no trained token is left once the row's ", tokens,
                                         " tokens are cut to the ", limit, " of max_length"));
}

bool IsUntrained(const absl::Status& status) {
  return status.GetPayload(Absl(kReasonPayload)) == absl::Cord(Absl(kUntrained));
}

}  // namespace

std::string_view ToText(Overflow overflow) {
  return overflow == Overflow::kTruncate ? "truncate"
         : overflow == Overflow::kRefuse ? "error"
                                         : "skip";
}

std::string_view ToText(TrainOn train_on) {
  return train_on == TrainOn::kAssistant ? "assistant" : "all";
}

int64_t TrainedTokens(const std::vector<int32_t>& labels) {
  if (labels.empty()) return 0;
  return static_cast<int64_t>(labels.size()) - 1 -
         std::count(labels.begin() + 1, labels.end(), kNotTrained);
}

absl::StatusOr<EncodedRows> EncodeRow(const DatasetRow& content, const TextModel& model,
                                      const EncodeOptions& options) {
  assert(options.max_length > 0);
  absl::StatusOr<std::vector<EncodedRow>> whole = EncodeWhole(content, model, options.train_on);
  if (!whole.ok()) return whole.status();
  EncodedRows out;
  for (EncodedRow& row : *whole) {
    absl::Status status = Fit(model, options, &row);
    if (status.ok()) {
      out.sequences.push_back(std::move(row));
    } else if (options.overflow == Overflow::kSkip && IsUntrained(status)) {
      ++out.skipped;
    } else {
      return status;
    }
  }
  return out;
}

std::string MarkTrained(const EncodedRow& row, size_t length) {
  std::string text;
  size_t at = 0;
  for (const TextSpan& span : row.trained) {
    if (at >= length) break;
    text.append(row.text, at, span.begin - at);
    absl::StrAppend(&text, "«", row.text.substr(span.begin, span.end - span.begin), "»");
    at = span.end;
  }
  text.append(row.text, at, std::string::npos);
  if (text.size() <= length) return text;
  while (length > 0 && (static_cast<unsigned char>(text[length]) & 0xC0) == 0x80) --length;
  text.resize(length);
  return text + "…";
}

DatasetEncoder::DatasetEncoder(const TextModel& model, const EncodeOptions& options,
                               OnEncoded on_encoded)
    : model_(model), options_(options), on_encoded_(std::move(on_encoded)) {}

absl::Status DatasetEncoder::Encode(int64_t row, int64_t line, const DatasetRow& content) {
  absl::StatusOr<EncodedRows> encoded = EncodeRow(content, model_, options_);
  if (!encoded.ok()) {
    if (IsUntrained(encoded.status())) AddUntrained(line);
    return encoded.status();
  }
  counted_.skipped_rows += encoded->skipped;
  for (const EncodedRow& sequence : encoded->sequences) {
    const int32_t tokens = static_cast<int32_t>(sequence.ids.size());
    if (counted_.sample.empty()) counted_.sample = MarkTrained(sequence);
    ++counted_.sequences;
    counted_.tokens += tokens;
    counted_.trained_tokens += TrainedTokens(sequence.labels);
    counted_.truncated_rows += sequence.truncated ? 1 : 0;
    counted_.longest_tokens = std::max(counted_.longest_tokens, tokens);
    if (!on_encoded_) continue;
    if (absl::Status status = on_encoded_(row, line, sequence); !status.ok()) return status;
  }
  return absl::OkStatus();
}

// REQUIRES: lines ascend.
void DatasetEncoder::AddUntrained(int64_t line) {
  std::vector<LineRange>& lines = counted_.untrained_lines;
  if (!lines.empty() && lines.back().last + 1 == line) {
    lines.back().last = line;
  } else if (lines.size() < kLineRangesMax) {
    lines.push_back({line, line});
  }
}

void DatasetEncoder::Complete(DatasetReport* report) const {
  report->tokens = counted_.tokens;
  report->trained_tokens = counted_.trained_tokens;
  report->truncated_rows = counted_.truncated_rows;
  report->sequences = counted_.sequences;
  report->skipped_rows = counted_.skipped_rows;
  report->untrained_lines = counted_.untrained_lines;
  report->longest_tokens = counted_.longest_tokens;
  report->sample = counted_.sample;
  if (report->error_count > 0 || counted_.sequences > 0) return;
  report->errors.push_back(RowError{0, absl::StrCat("no row is left: of none of the ", report->rows,
                                                    " is a token trained on; raise max_length")});
  report->error_count = 1;
}

}  // namespace lorad::storage

// Any bytes as a file of rows: the first byte is the size of the chunks it comes in. The report
// does not depend on them; every good row is encoded to what the engine may rely on, or refused.

#include <algorithm>
#include <cassert>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "storage/datasets/dataset.h"
#include "storage/datasets/dataset_encode.h"
#include "tests/storage/letter_tokenizer.h"

namespace {

using namespace lorad::storage;

constexpr std::string_view kTemplate =
    "{% for m in messages %}<{{ m['role'] }}>{{ m['content'] }}{{ eos_token }}{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}";

TextModel* MakeModel() {
  auto* model = new TextModel();
  model->tokenizer = std::make_unique<LetterTokenizer>();
  model->chat_template =
      std::make_unique<const ChatTemplate>(ChatTemplate::Parse(kTemplate).value());
  model->tokens.eos_token = "<e>";
  model->vocabulary = 258;
  return model;
}

// Reasons go into messages whose strings must be UTF-8: what cuts one must not cut a character.
void CheckReason(const std::string& reason) {
  assert(!reason.empty());
  const auto row = ParseRow("\"" + reason + "\"");
  assert(!row.ok());
  assert(row.status().message().find("not UTF-8") != 0);
}

void CheckEncoded(const EncodedRow& row, size_t max_length) {
  assert(!row.ids.empty() && row.ids.size() <= max_length);
  assert(row.labels.size() == row.ids.size());
  assert(TrainedTokens(row.labels) > 0);
  for (size_t i = 0; i < row.ids.size(); ++i) {
    assert(row.ids[i] >= 0 && row.ids[i] < 258);
    assert(row.labels[i] == kNotTrained || (row.labels[i] >= 0 && row.labels[i] < 258));
  }
  size_t end = 0;
  for (const TextSpan& span : row.trained) {
    assert(span.begin >= end && span.end >= span.begin && span.end <= row.text.size());
    end = span.end;
  }
  CheckReason("sample " + MarkTrained(row, 40));
}

DatasetReport Scan(std::string_view bytes, size_t chunk, DatasetScanner::OnRow on_row) {
  DatasetLimits limits;
  limits.row_bytes = 2048;
  limits.rows = 64;
  limits.depth = 8;
  limits.messages = 8;
  limits.errors_listed = 16;
  DatasetScanner scanner(limits, std::move(on_row));
  for (size_t at = 0; at < bytes.size(); at += chunk) {
    if (!scanner.Add(bytes.substr(at, chunk)).ok()) break;
  }
  return scanner.Finish();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const TextModel* const model = MakeModel();
  if (size == 0) return 0;
  const std::string_view bytes(reinterpret_cast<const char*>(data + 1), size - 1);
  const DatasetReport whole = Scan(bytes, bytes.size() + 1, [&](int64_t, int64_t line, auto& row) {
    assert(line > 0);
    const auto encoded = EncodeRow(row, *model, {.max_length = 64});
    if (!encoded.ok()) return absl::OkStatus();
    for (const EncodedRow& sequence : encoded->sequences) CheckEncoded(sequence, 64);
    return absl::OkStatus();
  });
  assert(whole.rows > 0 || whole.error_count > 0);
  for (const RowError& error : whole.errors) CheckReason(error.reason);
  const DatasetReport parts = Scan(bytes, std::max<size_t>(1, data[0]), nullptr);
  assert(parts.format == whole.format && parts.rows == whole.rows);
  assert(parts.error_count == whole.error_count);
  for (size_t i = 0; i < whole.errors.size(); ++i) {
    assert(parts.errors[i].line == whole.errors[i].line);
    assert(parts.errors[i].reason == whole.errors[i].reason);
  }
  return 0;
}

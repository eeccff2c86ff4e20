// One line of JSON to a row, through nlohmann's event parser: what a row does not use is never
// kept, so memory stays near the line's own size however it is made.
#include <algorithm>
#include <array>
#include <limits>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "storage/datasets/dataset.h"
#include "storage/files/errors.h"

namespace lorad::storage {
namespace {

using nlohmann::json;

constexpr std::string_view kReason = "DATASET_INVALID";
constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";

// Bytes of the well-formed UTF-8 character at `at`, 0 if it is none (Unicode 15, table 3-7).
size_t CharacterBytes(std::string_view text, size_t at) {
  const auto byte = [&](size_t i) {
    return at + i < text.size() ? static_cast<unsigned char>(text[at + i]) : 0u;
  };
  const unsigned first = byte(0);
  if (first < 0x80) return 1;
  const auto follows = [&](size_t i, unsigned low = 0x80, unsigned high = 0xBF) {
    return byte(i) >= low && byte(i) <= high;
  };
  if (first >= 0xC2 && first <= 0xDF) return follows(1) ? 2 : 0;
  if (first >= 0xE0 && first <= 0xEF) {
    const unsigned low = first == 0xE0 ? 0xA0 : 0x80, high = first == 0xED ? 0x9F : 0xBF;
    return follows(1, low, high) && follows(2) ? 3 : 0;
  }
  if (first >= 0xF0 && first <= 0xF4) {
    const unsigned low = first == 0xF0 ? 0x90 : 0x80, high = first == 0xF4 ? 0x8F : 0xBF;
    return follows(1, low, high) && follows(2) && follows(3) ? 4 : 0;
  }
  return 0;
}

// Columns count characters, from 1.
int64_t ColumnOf(std::string_view line, size_t byte) {
  const std::string_view before = line.substr(0, byte);
  return 1 + std::count_if(before.begin(), before.end(),
                           [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; });
}

// A key as an error quotes it: its first characters.
std::string Shorten(std::string_view key) {
  size_t bytes = std::min<size_t>(key.size(), 40);
  while (bytes < key.size() && bytes > 0 &&
         (static_cast<unsigned char>(key[bytes]) & 0xC0) == 0x80) {
    --bytes;
  }
  return std::string(key.substr(0, bytes));
}

absl::Status CheckCharacters(std::string_view line) {
  for (size_t at = 0; at < line.size();) {
    const size_t bytes = CharacterBytes(line, at);
    if (bytes == 0) {
      return Refuse(kReason, absl::StrCat("not UTF-8 at column ", ColumnOf(line, at)));
    }
    if (line[at] == '\0') {  // nlohmann takes it for the end of the text
      return Refuse(kReason, absl::StrCat("a zero byte at column ", ColumnOf(line, at)));
    }
    at += bytes;
  }
  return absl::OkStatus();
}

// A key of a row that some format uses.
struct Field {
  enum class Kind { kAbsent, kNull, kString, kMessages, kIntegers, kEmptyList, kOther };
  std::string_view name;
  bool takes_messages = false;
  bool takes_integers = false;
  Kind kind = Kind::kAbsent;
  std::string text = {};
  std::vector<ChatMessage> messages = {};
  std::vector<int32_t> integers = {};
  std::string error = {};  // the first thing wrong inside

  bool present() const { return kind != Kind::kAbsent; }
};

struct Fields {
  Field messages{.name = "messages", .takes_messages = true};
  Field prompt{.name = "prompt", .takes_messages = true};
  Field completion{.name = "completion", .takes_messages = true};
  Field instruction{.name = "instruction"};
  Field input{.name = "input"};
  Field output{.name = "output"};
  Field text{.name = "text"};
  Field input_ids{.name = "input_ids", .takes_integers = true};
  Field labels{.name = "labels", .takes_integers = true};
  std::vector<std::string> keys;  // all of the row's, the first few

  std::array<Field*, 9> all() {
    return {&messages, &prompt, &completion, &instruction, &input,
            &output,   &text,   &input_ids,  &labels};
  }
};

// Depth 0: outside; 1: in the row; 2: in a list that is a field's value; 3: in a message.
class RowHandler : public nlohmann::json_sax<json> {
 public:
  RowHandler(std::string_view line, const DatasetLimits& limits, Fields* fields)
      : line_(line), limits_(limits), fields_(*fields) {}

  const absl::Status& status() const { return status_; }

  bool null() override { return Scalar(Field::Kind::kNull); }
  bool boolean(bool) override { return Scalar(Field::Kind::kOther); }
  bool number_integer(int64_t value) override { return Integer(value); }
  bool number_unsigned(uint64_t value) override {
    return Integer(value <= static_cast<uint64_t>(std::numeric_limits<int64_t>::max())
                       ? static_cast<int64_t>(value)
                       : std::numeric_limits<int64_t>::max());
  }
  bool number_float(double, const std::string&) override { return Scalar(Field::Kind::kOther); }
  bool binary(binary_t&) override { return Scalar(Field::Kind::kOther); }

  bool string(std::string& value) override {
    if (depth_ == 1 && field_ != nullptr) field_->text = std::move(value);
    if (InMessage()) {
      SetMessage(std::move(value));
      return true;
    }
    return Scalar(Field::Kind::kString);
  }

  bool start_object(size_t) override {
    if (depth_ == 2 && field_ != nullptr && field_->takes_messages) {
      StartMessage();
    } else if (depth_ == 1 && field_ != nullptr) {
      field_->kind = Field::Kind::kOther;
    } else if (depth_ >= 2) {
      Nested("an object");
    }
    return Deeper();
  }

  bool key(std::string& value) override {
    if (depth_ == 1) return RowKey(value);
    if (InMessage()) message_key_ = value;
    return true;
  }

  bool end_object() override {
    --depth_;
    if (depth_ == 2 && in_message_) EndMessage();
    return true;
  }

  bool start_array(size_t) override {
    if (depth_ == 0) return Fail("a row must be an object, not a list");
    if (depth_ == 1 && field_ != nullptr) field_->kind = Field::Kind::kEmptyList;
    if (depth_ >= 2) Nested("a list");
    return Deeper();
  }

  bool end_array() override {
    --depth_;
    return true;
  }

  bool parse_error(size_t position, const std::string&, const json::exception& error) override {
    // "[json.exception.parse_error.101] parse error at line 1, column 9: syntax error while ..."
    std::string what = error.what();
    const size_t colon = what.find(": ");
    if (colon != std::string::npos) what.erase(0, colon + 2);
    // Its quotation may end inside a character.
    std::erase_if(what, [](char c) { return c < ' ' || c > '~'; });
    if (what.size() > 300) what.resize(300);
    const size_t byte = std::min(position == 0 ? 0 : position - 1, line_.size());
    return Fail(absl::StrCat("not JSON at column ", ColumnOf(line_, byte), ": ", what));
  }

 private:
  bool Fail(std::string_view what) {
    if (status_.ok()) status_ = Refuse(kReason, what);
    return false;
  }

  void FieldError(std::string what) {
    if (field_ != nullptr && field_->error.empty()) field_->error = std::move(what);
  }

  std::string Entry() const { return absl::StrCat(Absl(field_->name), "[", entry_, "]"); }

  bool InMessage() const { return depth_ == 3 && in_message_; }

  bool Deeper() {
    if (++depth_ > limits_.depth) {
      return Fail(absl::StrCat("nested deeper than ", limits_.depth, " levels"));
    }
    if (depth_ == 2) entry_ = 0;
    return true;
  }

  bool RowKey(const std::string& name) {
    field_ = nullptr;
    for (Field* field : fields_.all()) {
      if (field->name != name) continue;
      if (field->present()) return Fail(absl::StrCat("key \"", name, "\" stands twice"));
      field_ = field;
    }
    if (fields_.keys.size() < 8) fields_.keys.push_back(Shorten(name));
    return true;
  }

  bool Scalar(Field::Kind kind) {
    if (depth_ == 0) return Fail("a row must be an object");
    if (field_ == nullptr) return true;
    if (depth_ == 1) field_->kind = kind;
    if (depth_ == 2) {
      if (field_->takes_messages) FieldError(Entry() + " must be a message object");
      if (field_->takes_integers) FieldError(Entry() + " must be a whole number");
      ++entry_;
    }
    if (InMessage()) WrongInMessage("");
    return true;
  }

  bool Integer(int64_t value) {
    if (depth_ != 2 || field_ == nullptr || !field_->takes_integers) {
      return Scalar(Field::Kind::kOther);
    }
    field_->kind = Field::Kind::kIntegers;
    if (value < std::numeric_limits<int32_t>::min() ||
        value > std::numeric_limits<int32_t>::max()) {
      FieldError(absl::StrCat(Entry(), " is out of range"));
      value = 0;
    }
    field_->integers.push_back(static_cast<int32_t>(value));
    ++entry_;
    return true;
  }

  // A list or object where none is expected.
  void Nested(std::string_view what) {
    if (field_ == nullptr) return;
    if (depth_ == 2) {
      FieldError(absl::StrCat(Entry(), " must not be ", Absl(what)));
      ++entry_;
    } else if (InMessage()) {
      WrongInMessage(what);
    }
  }

  void StartMessage() {
    field_->kind = Field::Kind::kMessages;
    in_message_ = true;
    message_ = ChatMessage();
    has_role_ = has_content_ = false;
    message_key_.clear();
  }

  void SetMessage(std::string value) {
    if (message_key_ == "role" && !has_role_) {
      message_.role = std::move(value);
      has_role_ = true;
    } else if (message_key_ == "content" && !has_content_) {
      message_.content = std::move(value);
      has_content_ = true;
    } else {
      WrongInMessage("a string");
    }
  }

  void WrongInMessage(std::string_view what) {
    const std::string key = Shorten(message_key_);
    if (key == "role" ? has_role_ : (key == "content" && has_content_)) {
      FieldError(absl::StrCat(Entry(), " has \"", key, "\" twice"));
    } else if (key == "role" || key == "content") {
      FieldError(absl::StrCat(Entry(), ".", key, " must be a string", what.empty() ? "" : ", not ",
                              Absl(what)));
    } else {
      FieldError(absl::StrCat(Entry(), " has a key \"", key,
                              "\"; a message has \"role\" and \"content\" alone"));
    }
  }

  void EndMessage() {
    in_message_ = false;
    if (!has_role_ || !has_content_) {
      FieldError(absl::StrCat(Entry(), " has no ", has_role_ ? "content" : "role"));
    }
    if (entry_ >= limits_.messages) {
      FieldError(
          absl::StrCat(Absl(field_->name), " has more than ", limits_.messages, " messages"));
    } else {
      field_->messages.push_back(std::move(message_));
    }
    ++entry_;
  }

  const std::string_view line_;
  const DatasetLimits& limits_;
  Fields& fields_;
  absl::Status status_;
  int depth_ = 0;
  Field* field_ = nullptr;  // whose value is being read; null: of a key that no format uses
  int64_t entry_ = 0;       // in the list at depth 2
  bool in_message_ = false;
  ChatMessage message_;
  bool has_role_ = false, has_content_ = false;
  std::string message_key_;
};

absl::Status CheckField(const Field& field, std::initializer_list<Field::Kind> kinds,
                        std::string_view expected) {
  if (!field.error.empty()) return Refuse(kReason, field.error);
  if (std::find(kinds.begin(), kinds.end(), field.kind) != kinds.end()) return absl::OkStatus();
  return Refuse(kReason, absl::StrCat(Absl(field.name),
                                      field.present() ? " must be " : " is missing: it must be ",
                                      Absl(expected)));
}

absl::Status CheckString(const Field& field) {
  return CheckField(field, {Field::Kind::kString}, "a string");
}

bool HasAssistant(const std::vector<ChatMessage>& messages) {
  return std::any_of(messages.begin(), messages.end(),
                     [](const ChatMessage& message) { return message.role == "assistant"; });
}

absl::StatusOr<DatasetRow> MakeTokens(Fields& fields) {
  for (const Field* field : {&fields.input_ids, &fields.labels}) {
    if (absl::Status status =
            CheckField(*field, {Field::Kind::kIntegers}, "a list of one or more whole numbers");
        !status.ok()) {
      return status;
    }
  }
  TokensRow row{std::move(fields.input_ids.integers), std::move(fields.labels.integers)};
  if (row.input_ids.size() != row.labels.size()) {
    return Refuse(kReason,
                  absl::StrCat("input_ids has ", row.input_ids.size(), " entries and labels ",
                               row.labels.size(), "; they must be aligned"));
  }
  for (size_t i = 0; i < row.labels.size(); ++i) {
    if (row.input_ids[i] < 0) {
      return Refuse(kReason, absl::StrCat("input_ids[", i, "] is ", row.input_ids[i]));
    }
    if (row.labels[i] < 0 && row.labels[i] != -100) {
      return Refuse(kReason, absl::StrCat("labels[", i, "] is ", row.labels[i],
                                          "; a label is a token id, or -100"));
    }
  }
  return row;
}

absl::StatusOr<DatasetRow> MakeMessages(Fields& fields) {
  if (absl::Status status =
          CheckField(fields.messages, {Field::Kind::kMessages}, "a list of one or more messages");
      !status.ok()) {
    return status;
  }
  if (!HasAssistant(fields.messages.messages)) {
    return Refuse(kReason, "messages has no turn of role \"assistant\" to train on");
  }
  return MessagesRow{std::move(fields.messages.messages)};
}

absl::StatusOr<DatasetRow> MakePromptCompletion(Fields& fields) {
  using Kind = Field::Kind;
  for (const Field* field : {&fields.prompt, &fields.completion}) {
    if (absl::Status status = CheckField(*field, {Kind::kString, Kind::kMessages},
                                         "a string or a list of one or more messages");
        !status.ok()) {
      return status;
    }
  }
  if (fields.prompt.kind != fields.completion.kind) {
    return Refuse(kReason, "prompt and completion must both be strings or both lists of messages");
  }
  if (fields.prompt.kind == Kind::kString) {
    return PromptCompletionRow{std::move(fields.prompt.text), std::move(fields.completion.text)};
  }
  if (!HasAssistant(fields.completion.messages)) {
    return Refuse(kReason, "completion has no turn of role \"assistant\" to train on");
  }
  return PromptCompletionMessagesRow{std::move(fields.prompt.messages),
                                     std::move(fields.completion.messages)};
}

absl::StatusOr<DatasetRow> MakeInstruction(Fields& fields) {
  if (fields.input.kind == Field::Kind::kAbsent || fields.input.kind == Field::Kind::kNull) {
    fields.input.kind = Field::Kind::kString;
  }
  for (const Field* field : {&fields.instruction, &fields.input, &fields.output}) {
    if (absl::Status status = CheckString(*field); !status.ok()) return status;
  }
  return InstructionRow{std::move(fields.instruction.text), std::move(fields.input.text),
                        std::move(fields.output.text)};
}

// A row's keys decide its format; of several, the first in this order.
absl::StatusOr<DatasetRow> MakeRow(Fields& fields) {
  if (fields.input_ids.present()) return MakeTokens(fields);
  if (fields.messages.present()) return MakeMessages(fields);
  if (fields.prompt.present() && fields.completion.present()) return MakePromptCompletion(fields);
  if (fields.instruction.present() && fields.output.present()) return MakeInstruction(fields);
  if (fields.text.present()) {
    if (absl::Status status = CheckString(fields.text); !status.ok()) return status;
    return TextRow{std::move(fields.text.text)};
  }
  return Refuse(kReason, absl::StrCat("unknown format: the row's keys are (",
                                      absl::StrJoin(fields.keys, ", "),
                                      "); expected messages; prompt and completion; instruction "
                                      "and output; text; or input_ids and labels"));
}

}  // namespace

absl::StatusOr<DatasetRow> ParseRow(std::string_view line, const DatasetLimits& limits) {
  if (static_cast<int64_t>(line.size()) > limits.row_bytes) {
    return Refuse(kReason, absl::StrCat("longer than ", limits.row_bytes, " bytes"));
  }
  if (line.substr(0, kByteOrderMark.size()) == kByteOrderMark) {  // nlohmann would skip it
    return Refuse(kReason, "a byte order mark at column 1; it may stand at the file's start alone");
  }
  if (absl::Status status = CheckCharacters(line); !status.ok()) return status;
  Fields fields;
  RowHandler handler(line, limits, &fields);
  if (!json::sax_parse(line.begin(), line.end(), &handler)) return handler.status();
  return MakeRow(fields);
}

}  // namespace lorad::storage

// One line of JSON to a row, through nlohmann's event parser: what a row does not use is never
// kept, so memory stays near the line's own size however it is made.
#include <algorithm>
#include <array>
#include <limits>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "storage/datasets/dataset.h"
#include "storage/datasets/messages.h"
#include "storage/datasets/value_builder.h"
#include "storage/files/errors.h"

namespace lorad::storage {
namespace {

using jinja::Value;
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
  enum class Kind { kAbsent, kNull, kString, kList, kObject, kIntegers, kEmptyList, kOther };
  std::string_view name;
  bool keeps_values = false;  // lists and objects, as `value`
  bool takes_integers = false;
  Kind kind = Kind::kAbsent;
  std::string text = {};
  jinja::Value value = {};
  std::vector<int32_t> integers = {};
  std::string error = {};  // the first thing wrong inside

  bool present() const { return kind != Kind::kAbsent; }
};

struct Fields {
  Field messages{.name = "messages", .keeps_values = true};
  Field conversations{.name = "conversations", .keeps_values = true};
  Field prompt{.name = "prompt", .keeps_values = true};
  Field completion{.name = "completion", .keeps_values = true};
  Field tools{.name = "tools", .keeps_values = true};
  Field kwargs{.name = "chat_template_kwargs", .keeps_values = true};
  Field chat_template{.name = "chat_template"};
  Field instruction{.name = "instruction"};
  Field input{.name = "input"};
  Field output{.name = "output"};
  Field text{.name = "text"};
  Field input_ids{.name = "input_ids", .takes_integers = true};
  Field labels{.name = "labels", .takes_integers = true};
  std::vector<std::string> keys;  // all of the row's, the first few

  std::array<Field*, 13> all() {
    return {&messages,    &conversations, &prompt, &completion, &tools,     &kwargs, &chat_template,
            &instruction, &input,         &output, &text,       &input_ids, &labels};
  }
};

// Depth 0: outside; 1: in the row; 2: in a list or object that is a field's value.
class RowHandler : public nlohmann::json_sax<json> {
 public:
  RowHandler(std::string_view line, const DatasetLimits& limits, Fields* fields)
      : line_(line), limits_(limits), fields_(*fields), builder_(limits.values) {}

  const absl::Status& status() const { return status_; }

  bool null() override { return Scalar(Field::Kind::kNull, Value::MakeNone()); }
  bool boolean(bool value) override { return Scalar(Field::Kind::kOther, Value::MakeBool(value)); }
  bool number_integer(int64_t value) override { return Integer(value); }
  bool number_unsigned(uint64_t value) override {
    constexpr auto kMost = static_cast<uint64_t>(std::numeric_limits<int64_t>::max());
    if (value > kMost && Building()) FieldError(" has a number that does not fit in 64 bits");
    return Integer(static_cast<int64_t>(std::min(value, kMost)));
  }
  bool number_float(double value, const std::string& text) override {
    const bool whole = text.find_first_of(".eE") == std::string::npos;
    if (whole && Building()) FieldError(" has a number that does not fit in 64 bits");
    return Scalar(Field::Kind::kOther, Value::MakeFloat(value));
  }
  bool binary(binary_t&) override { return Scalar(Field::Kind::kOther, Value::MakeNone()); }

  bool string(std::string& value) override {
    if (Building()) return Build([&] { builder_.Add(Value::MakeText(std::move(value))); });
    if (depth_ == 1 && field_ != nullptr) field_->text = std::move(value);
    return Scalar(Field::Kind::kString, Value());
  }

  bool start_object(size_t) override { return Start(true); }
  bool start_array(size_t) override {
    if (depth_ == 0) return Fail("a row must be an object, not a list");
    return Start(false);
  }

  bool key(std::string& value) override {
    if (depth_ == 1) return RowKey(value);
    return !Building() || Build([&] { builder_.Key(value); });
  }

  bool end_object() override { return End(Field::Kind::kObject); }
  bool end_array() override { return End(Field::Kind::kList); }

  bool parse_error(size_t position, const std::string&, const json::exception& error) override {
    // "[json.exception.parse_error.101] parse error at line 1, column 9: syntax error while ..."
    std::string what = error.what();
    const size_t colon = what.find(": ");
    if (colon != std::string::npos) what.erase(0, colon + 2);
    // Its quotation may end inside a character.
    std::erase_if(what, [](char c) { return c < ' ' || c > '~'; });
    if (what.size() > 300) what.resize(300);
    const size_t byte = std::min(position == 0 ? 0 : position - 1, line_.size());
    const bool ends_early = byte >= line_.size();
    return Fail(absl::StrCat("not JSON at column ", ColumnOf(line_, byte), ": ", what,
                             ends_early ? "; each row is one whole line" : ""));
  }

 private:
  bool Fail(std::string_view what) {
    if (status_.ok()) status_ = Refuse(kReason, what);
    return false;
  }

  // `what` is wrong inside the field's value; what stands in its lists is named by entry.
  void FieldError(const std::string& what) {
    if (field_->error.empty()) field_->error = absl::StrCat(Absl(field_->name), what);
  }
  void EntryError(const std::string& what) {
    FieldError(absl::StrCat("[", field_->integers.size(), "]", what));
  }

  bool Building() const { return depth_ >= 2 && field_ != nullptr && field_->keeps_values; }

  template <typename Step>
  bool Build(Step step) {
    step();
    if (!builder_.error().empty()) FieldError(builder_.error());
    return true;
  }

  bool Start(bool object) {
    if (++depth_ > limits_.depth) {
      return Fail(absl::StrCat("nested deeper than ", limits_.depth, " levels"));
    }
    if (field_ == nullptr) return true;
    if (Building()) return Build([&] { builder_.Begin(object); });
    if (depth_ == 2) field_->kind = object ? Field::Kind::kOther : Field::Kind::kEmptyList;
    if (depth_ == 3 && field_->takes_integers) EntryError(" must be a whole number");
    return true;
  }

  bool End(Field::Kind kind) {
    if (Building()) {
      Build([&] { builder_.End(); });
      if (depth_ == 2) {
        field_->value = builder_.Take();
        field_->kind =
            field_->value.Truth() || kind == Field::Kind::kObject ? kind : Field::Kind::kEmptyList;
      }
    }
    --depth_;
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

  bool Scalar(Field::Kind kind, Value value) {
    if (depth_ == 0) return Fail("a row must be an object");
    if (field_ == nullptr) return true;
    if (Building()) return Build([&] { builder_.Add(std::move(value)); });
    if (depth_ == 1) field_->kind = kind;
    if (depth_ == 2 && field_->takes_integers) EntryError(" must be a whole number");
    return true;
  }

  bool Integer(int64_t value) {
    if (depth_ != 2 || field_ == nullptr || !field_->takes_integers) {
      return Scalar(Field::Kind::kOther, Value::MakeInt(value));
    }
    field_->kind = Field::Kind::kIntegers;
    if (value < std::numeric_limits<int32_t>::min() ||
        value > std::numeric_limits<int32_t>::max()) {
      EntryError(" is out of range");
      value = 0;
    }
    field_->integers.push_back(static_cast<int32_t>(value));
    return true;
  }

  const std::string_view line_;
  const DatasetLimits& limits_;
  Fields& fields_;
  absl::Status status_;
  int depth_ = 0;
  Field* field_ = nullptr;  // whose value is being read; null: of a key that no format uses
  ValueBuilder builder_;    // of all values that are kept
};

absl::Status CheckField(const Field& field, std::initializer_list<Field::Kind> kinds,
                        std::string_view expected) {
  if (!field.error.empty()) return Refuse(kReason, field.error);
  if (std::find(kinds.begin(), kinds.end(), field.kind) != kinds.end()) return absl::OkStatus();
  return Refuse(kReason, absl::StrCat(Absl(field.name),
                                      field.present() ? " must be " : " is missing: it must be ",
                                      Absl(expected)));
}

// Of a field that may be absent: none then.
Value ValueOf(const Field& field) {
  if (field.kind == Field::Kind::kString) return Value::MakeText(field.text);
  return field.present() && field.kind != Field::Kind::kNull ? field.value : Value::MakeNone();
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

// What a conversation gives its template beside its messages.
absl::StatusOr<ChatInputs> MakeInputs(const Fields& fields) {
  if (fields.chat_template.present() && fields.chat_template.kind != Field::Kind::kNull) {
    return Refuse(kReason,
                  "a row cannot bring a chat_template: all rows are rendered by the model's (lora "
                  "model add --chat-template FILE)");
  }
  ChatInputs inputs;
  for (const Field* field : {&fields.tools, &fields.kwargs}) {
    if (!field->error.empty()) return Refuse(kReason, field->error);
  }
  absl::StatusOr<Value> tools = MakeTools(ValueOf(fields.tools));
  if (!tools.ok()) return tools.status();
  inputs.tools = *std::move(tools);
  absl::StatusOr<jinja::Variables> variables = MakeVariables(ValueOf(fields.kwargs));
  if (!variables.ok()) return variables.status();
  inputs.variables = *std::move(variables);
  return inputs;
}

absl::StatusOr<DatasetRow> MakeConversation(const Fields& fields, const Field& field,
                                            const DatasetLimits& limits) {
  if (absl::Status status =
          CheckField(field, {Field::Kind::kList}, "a list of one or more messages");
      !status.ok()) {
    return status;
  }
  absl::StatusOr<Value> list = FromShareGpt(field.name, field.value);
  if (!list.ok()) return list.status();
  absl::StatusOr<std::vector<ChatMessage>> messages =
      MakeMessages(field.name, *list, limits.messages);
  if (!messages.ok()) return messages.status();
  if (!HasAssistant(*messages)) {
    return Refuse(kReason,
                  absl::StrCat(Absl(field.name), " has no turn of role \"assistant\" to train on"));
  }
  absl::StatusOr<ChatInputs> inputs = MakeInputs(fields);
  if (!inputs.ok()) return inputs.status();
  return MessagesRow{*std::move(messages), *std::move(inputs)};
}

absl::StatusOr<DatasetRow> MakePromptCompletion(Fields& fields, const DatasetLimits& limits) {
  using Kind = Field::Kind;
  for (const Field* field : {&fields.prompt, &fields.completion}) {
    if (absl::Status status = CheckField(*field, {Kind::kString, Kind::kList},
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
  PromptCompletionMessagesRow row;
  for (const auto& [field, messages] :
       {std::pair(&fields.prompt, &row.prompt), std::pair(&fields.completion, &row.completion)}) {
    absl::StatusOr<std::vector<ChatMessage>> made =
        MakeMessages(field->name, field->value, limits.messages);
    if (!made.ok()) return made.status();
    *messages = *std::move(made);
  }
  if (!HasAssistant(row.completion)) {
    return Refuse(kReason, "completion has no turn of role \"assistant\" to train on");
  }
  absl::StatusOr<ChatInputs> inputs = MakeInputs(fields);
  if (!inputs.ok()) return inputs.status();
  row.inputs = *std::move(inputs);
  return row;
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
absl::StatusOr<DatasetRow> MakeRow(Fields& fields, const DatasetLimits& limits) {
  if (fields.input_ids.present()) return MakeTokens(fields);
  for (const Field* field : {&fields.messages, &fields.conversations}) {
    if (field->present()) return MakeConversation(fields, *field, limits);
  }
  if (fields.prompt.present() && fields.completion.present()) {
    return MakePromptCompletion(fields, limits);
  }
  if (fields.instruction.present() && fields.output.present()) return MakeInstruction(fields);
  if (fields.text.present()) {
    if (absl::Status status = CheckString(fields.text); !status.ok()) return status;
    return TextRow{std::move(fields.text.text)};
  }
  return Refuse(
      kReason,
      absl::StrCat("unknown format: the row's keys are (", absl::StrJoin(fields.keys, ", "),
                   "); expected messages; conversations; prompt and "
                   "completion; instruction and output; text; or input_ids and labels; columns of "
                   "other names are renamed as rows are stored, by --columns "
                   "prompt=question,completion=answer or Python's columns"));
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
  return MakeRow(fields, limits);
}

}  // namespace lorad::storage

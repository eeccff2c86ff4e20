#include "storage/datasets/chat_template.h"

#include <algorithm>
#include <utility>

#include "storage/files/errors.h"
#include "storage/jinja/program.h"
#include "storage/tokenization/unicode.h"

namespace lorad::storage {
namespace {

using jinja::Value;

bool IsUtf8(const Value& value) {
  if (value.is_text()) return tokenization::IsUtf8(value.text());
  if (value.is_list()) return std::ranges::all_of(value.list().items, IsUtf8);
  if (!value.is_dict()) return true;
  return std::ranges::all_of(value.dict().items, [](const auto& item) {
    return tokenization::IsUtf8(item.first) && IsUtf8(item.second);
  });
}

// The message with the texts of its content's parts behind one another.
Value WithoutParts(const Value& message) {
  const Value* content = message.dict().Find("content");
  if (content == nullptr || !content->is_list()) return message;
  std::string text;
  for (const Value& part : content->list().items) {
    const Value* of_part = part.is_dict() ? part.dict().Find("text") : nullptr;
    if (of_part != nullptr && of_part->is_text()) text += of_part->text();
  }
  jinja::Dict fields = message.dict();
  fields.Set("content", Value::MakeText(std::move(text)));
  return Value::MakeDict(std::move(fields));
}

}  // namespace

ChatMessage MakeMessage(std::string_view role, std::string_view content) {
  jinja::Dict fields;
  fields.Set("role", Value::MakeText(std::string(role)));
  fields.Set("content", Value::MakeText(std::string(content)));
  return {std::string(role), Value::MakeDict(std::move(fields))};
}

ChatTemplate::ChatTemplate(std::unique_ptr<const jinja::Program> program)
    : program_(std::move(program)), prints_parts_(PrintsParts()) {}
ChatTemplate::ChatTemplate(ChatTemplate&&) noexcept = default;
ChatTemplate& ChatTemplate::operator=(ChatTemplate&&) noexcept = default;
ChatTemplate::~ChatTemplate() = default;

absl::StatusOr<ChatTemplate> ChatTemplate::Parse(std::string_view jinja_text) {
  absl::StatusOr<jinja::Program> program = jinja::ParseProgram(jinja_text);
  if (!program.ok()) return program.status();
  return ChatTemplate(std::make_unique<const jinja::Program>(*std::move(program)));
}

bool ChatTemplate::marks_generation() const { return program_->marks_generation; }

// By trying: of a template for texts alone a list becomes nothing, an error, or Python's writing of
// the list.
bool ChatTemplate::PrintsParts() const {
  constexpr std::string_view kProbe = "Zq7";
  jinja::Dict part;
  part.Set("type", Value::MakeText("text"));
  part.Set("text", Value::MakeText(std::string(kProbe)));
  jinja::Dict fields;
  fields.Set("role", Value::MakeText("user"));
  fields.Set("content", Value::MakeList({Value::MakeDict(std::move(part))}));
  jinja::Variables variables = {
      {"messages", Value::MakeList({Value::MakeDict(std::move(fields))})},
      {"bos_token", Value::MakeText("")},
      {"eos_token", Value::MakeText("")},
      {"add_generation_prompt", Value::MakeBool(false)},
      {"tools", Value::MakeNone()},
  };
  const absl::StatusOr<jinja::Printed> printed =
      jinja::Run(*program_, std::move(variables), {100'000, 1 << 20});
  if (!printed.ok()) return false;
  const size_t at = printed->text.find(kProbe);
  if (at == std::string::npos) return false;
  // Written by Python or as JSON it stands in quotes.
  return at == 0 || (printed->text[at - 1] != '\'' && printed->text[at - 1] != '"');
}

absl::StatusOr<RenderedChat> ChatTemplate::Render(std::span<const ChatMessage> messages,
                                                  const ChatInputs& inputs,
                                                  bool add_generation_prompt,
                                                  const ChatTemplateTokens& tokens,
                                                  const ChatTemplateLimits& limits) const {
  std::vector<Value> list;
  int64_t steps = limits.steps + static_cast<int64_t>(inputs.tools.extent().weight);
  for (const ChatMessage& message : messages) {
    if (!IsUtf8(message.fields)) {
      return Refuse("TEXT_INVALID", "a message of the conversation is not UTF-8");
    }
    steps += static_cast<int64_t>(message.fields.extent().weight);
    list.push_back(prints_parts_ ? message.fields : WithoutParts(message.fields));
  }
  jinja::Variables variables = inputs.variables;
  const jinja::Variables known = {
      {"messages", Value::MakeList(std::move(list))},
      {"add_generation_prompt", Value::MakeBool(add_generation_prompt)},
      {"bos_token", Value::MakeText(tokens.bos_token)},
      {"eos_token", Value::MakeText(tokens.eos_token)},
      {"unk_token", Value::MakeText(tokens.unk_token)},
      {"pad_token", Value::MakeText(tokens.pad_token)},
      {"tools", inputs.tools},
      {"documents", Value::MakeNone()},
  };
  variables.insert(variables.end(), known.begin(), known.end());
  absl::StatusOr<jinja::Printed> printed =
      jinja::Run(*program_, std::move(variables), {steps, limits.output_bytes});
  if (!printed.ok()) return printed.status();
  RenderedChat chat{std::move(printed->text), {}};
  for (const auto& [begin, end] : printed->generated) {
    chat.generated.push_back({static_cast<uint32_t>(begin), static_cast<uint32_t>(end)});
  }
  return chat;
}

}  // namespace lorad::storage

#include "storage/datasets/chat_template.h"

#include <utility>

#include "storage/files/errors.h"
#include "storage/jinja/evaluator.h"
#include "storage/jinja/program.h"
#include "storage/jinja/value.h"
#include "storage/tokenization/unicode.h"

namespace lorad::storage {

using jinja::Value;

ChatTemplate::ChatTemplate(std::unique_ptr<const jinja::Program> program)
    : program_(std::move(program)) {}
ChatTemplate::ChatTemplate(ChatTemplate&&) noexcept = default;
ChatTemplate& ChatTemplate::operator=(ChatTemplate&&) noexcept = default;
ChatTemplate::~ChatTemplate() = default;

absl::StatusOr<ChatTemplate> ChatTemplate::Parse(std::string_view jinja_text) {
  absl::StatusOr<jinja::Program> program = jinja::ParseProgram(jinja_text);
  if (!program.ok()) return program.status();
  return ChatTemplate(std::make_unique<const jinja::Program>(*std::move(program)));
}

absl::StatusOr<std::string> ChatTemplate::Render(const std::vector<ChatMessage>& messages,
                                                 bool add_generation_prompt,
                                                 const ChatTemplateTokens& tokens,
                                                 const ChatTemplateLimits& limits) const {
  std::vector<Value> list;
  int64_t steps = limits.steps;
  for (const ChatMessage& message : messages) {
    if (!tokenization::IsUtf8(message.role) || !tokenization::IsUtf8(message.content)) {
      return Refuse("TEXT_INVALID", "a message of the conversation is not UTF-8");
    }
    steps += static_cast<int64_t>(message.role.size() + message.content.size());
    jinja::Dict dict;
    dict.Set("role", Value::MakeText(message.role));
    dict.Set("content", Value::MakeText(message.content));
    list.push_back(Value::MakeDict(std::move(dict)));
  }
  std::vector<std::pair<std::string, Value>> variables = {
      {"messages", Value::MakeList(std::move(list))},
      {"add_generation_prompt", Value::MakeBool(add_generation_prompt)},
      {"bos_token", Value::MakeText(tokens.bos_token)},
      {"eos_token", Value::MakeText(tokens.eos_token)},
      {"unk_token", Value::MakeText(tokens.unk_token)},
      {"pad_token", Value::MakeText(tokens.pad_token)},
      {"tools", Value::MakeNone()},
      {"documents", Value::MakeNone()},
  };
  absl::StatusOr<jinja::Printed> printed =
      jinja::Run(*program_, std::move(variables), {steps, limits.output_bytes});
  if (!printed.ok()) return printed.status();
  return std::move(printed->text);
}

}  // namespace lorad::storage

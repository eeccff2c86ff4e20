#pragma once

// Conversations to text by a model's own chat template: the subset of Jinja that
// docs/formats/chat_template.md lists.

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "storage/jinja/evaluator.h"
#include "storage/jinja/value.h"
#include "storage/tokenization/encoding.h"

namespace lorad::storage {

struct ChatMessage {
  std::string role;
  jinja::Value fields;  // a dict: all of the message's keys, `role` and `content` among them
  bool trained = true;  // of an assistant's turn: it has no weight of 0
};
// A message of a role and a text alone.
ChatMessage MakeMessage(std::string_view role, std::string_view content);

// What a conversation gives its template beside its messages.
struct ChatInputs {
  jinja::Value tools = jinja::Value::MakeNone();  // a list of dicts
  jinja::Variables variables;                     // by name; they go before the model's tokens
};

// The tokens that a template may refer to by name beside `messages`. Those that a model does not
// have stay empty strings.
struct ChatTemplateTokens {
  std::string bos_token;
  std::string eos_token;
  std::string unk_token;
  std::string pad_token;
};

// Bounds on one Render; a template that passes one ends with an error, not with the process.
struct ChatTemplateLimits {
  // Evaluated nodes, and one more for every 16 bytes or item made; a conversation adds its bytes.
  int64_t steps = 4'000'000;
  int64_t output_bytes = 64 << 20;
};

struct RenderedChat {
  std::string text;
  std::vector<TextSpan> generated;  // between marks of {% generation %}; in order, may be empty
};

// A parsed template. Immutable: may be rendered from any number of threads at once.
class ChatTemplate {
 public:
  // InvalidArgument with reason TEMPLATE_INVALID (not Jinja; with line) or TEMPLATE_UNSUPPORTED (a
  // statement, filter, test, function or method that is not implemented, by name and line). The
  // text is parsed as transformers does: trim_blocks and lstrip_blocks on, one newline at the end
  // dropped.
  static absl::StatusOr<ChatTemplate> Parse(std::string_view jinja_text);

  ChatTemplate(ChatTemplate&&) noexcept;
  ChatTemplate& operator=(ChatTemplate&&) noexcept;
  ~ChatTemplate();

  // Whether it has {% generation %} somewhere.
  bool marks_generation() const;

  // The text of a conversation. A content that is a list of text parts is given as one text where
  // the template does not print parts. InvalidArgument with reason TEMPLATE_REJECTED (the template
  // called raise_exception: its message), TEMPLATE_FAILED (an operation on the wrong type, by name
  // and line), TEMPLATE_LIMIT or TEXT_INVALID (a message that is not UTF-8). REQUIRES: `tokens` and
  // `inputs` are.
  absl::StatusOr<RenderedChat> Render(std::span<const ChatMessage> messages,
                                      const ChatInputs& inputs, bool add_generation_prompt,
                                      const ChatTemplateTokens& tokens,
                                      const ChatTemplateLimits& limits = {}) const;

 private:
  explicit ChatTemplate(std::unique_ptr<const jinja::Program> program);

  bool PrintsParts() const;

  std::unique_ptr<const jinja::Program> program_;
  bool prints_parts_ = false;
};

}  // namespace lorad::storage

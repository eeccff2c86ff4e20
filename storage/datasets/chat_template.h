#pragma once

// Conversations to text by a model's own chat template: the subset of Jinja that
// docs/formats/chat_template.md lists.

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace lorad::storage {

struct ChatMessage {
  std::string role;
  std::string content;
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

namespace jinja {
struct Program;
}

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

  // The text of a conversation. InvalidArgument with reason TEMPLATE_REJECTED (the template called
  // raise_exception: its message), TEMPLATE_FAILED (an operation on the wrong type, by name and
  // line), TEMPLATE_LIMIT or TEXT_INVALID (a message that is not UTF-8). REQUIRES: `tokens` are.
  absl::StatusOr<std::string> Render(const std::vector<ChatMessage>& messages,
                                     bool add_generation_prompt, const ChatTemplateTokens& tokens,
                                     const ChatTemplateLimits& limits = {}) const;

 private:
  explicit ChatTemplate(std::unique_ptr<const jinja::Program> program);

  std::unique_ptr<const jinja::Program> program_;
};

}  // namespace lorad::storage

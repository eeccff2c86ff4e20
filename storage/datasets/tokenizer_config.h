#pragma once

// The parts of a Hugging Face tokenizer_config.json that change a rendered conversation.

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "storage/datasets/chat_template.h"

namespace lorad::storage {

struct TokenizerConfig {
  // Texts of the model's special tokens, where it has them. eos_token is the end-of-text token of
  // plain rows.
  std::optional<std::string> bos_token;
  std::optional<std::string> eos_token;
  std::optional<std::string> unk_token;
  std::optional<std::string> pad_token;
  // The texts of these and of all other special tokens that the file names. transformers finds each
  // of them whole in a text, also where tokenizer.json does not list it among its added tokens.
  std::vector<std::string> special_tokens;
  // The chat template's text (of a list of templates, the one named "default"); empty if the model
  // has none.
  std::string chat_template;

  // The same tokens as a template sees them.
  ChatTemplateTokens template_tokens() const;
};

// Parses tokenizer_config.json. `chat_template_jinja` is the text of chat_template.jinja beside it,
// or nothing; it wins over the JSON's chat_template, as in transformers. InvalidArgument (reason
// TOKENIZER_CONFIG_INVALID) names the field.
absl::StatusOr<TokenizerConfig> ParseTokenizerConfig(
    std::string_view tokenizer_config_json, std::optional<std::string_view> chat_template_jinja);

}  // namespace lorad::storage

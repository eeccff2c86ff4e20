// The parts of a base model by which rows are encoded: tokenizer, chat template, special tokens.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "storage/datasets/chat_template.h"
#include "storage/datasets/tokenizer.h"

namespace lorad::storage {

class ModelDirectory;

// Immutable once made: any number of threads.
struct TextModel {
  std::unique_ptr<const Tokenizer> tokenizer;         // null: rows of tokens alone
  std::unique_ptr<const ChatTemplate> chat_template;  // null: none
  ChatTemplateTokens tokens;                          // eos_token ends plain rows
  int64_t vocabulary = 0;                             // of the model: ids lie below
  std::string fingerprint;                            // of the directory
};

// Tokenizer and template of a directory; both may be absent, neither may be broken. A
// `chat_template` that is not empty goes in the place of the directory's, which is not looked at.
absl::StatusOr<TextModel> LoadTextModel(const ModelDirectory& directory,
                                        std::string_view chat_template = "");

}  // namespace lorad::storage

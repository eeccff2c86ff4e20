// Prompts to token ids: what a model is asked, as it was trained to be asked.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "storage/datasets/dataset.h"
#include "storage/datasets/text_model.h"

namespace lorad::storage {

class ModelDirectory;

struct Prompt {
  std::vector<int32_t> ids;
  std::string reference = {};  // of a row: its own answer, up to the token that ends it
};

// All functions: INVALID_ARGUMENT with reason PROMPT_INVALID, or TEMPLATE_*, says what is wrong;
// that the model has no tokenizer, or no template, among it.

// As it is, with what the post-processor adds.
absl::StatusOr<Prompt> TextPrompt(std::string_view text, const TextModel& model);
// A JSON array of {"role", "content"}, rendered with add_generation_prompt = true.
absl::StatusOr<Prompt> ChatPrompt(std::string_view messages_json, const TextModel& model);
// What stands before the row's last answer, as training renders it. `ends`: EndTokens.
absl::StatusOr<Prompt> RowPrompt(const DatasetRow& row, const TextModel& model,
                                 const std::vector<int32_t>& ends);

// The tokens that end an answer: eos_token_id of generation_config.json, where that is not there or
// names none of config.json, and where that names none either the tokenizer's eos_token. So
// transformers' generate() has them but for the last.
std::vector<int32_t> EndTokens(const ModelDirectory& directory, const TextModel& model);

}  // namespace lorad::storage

#include "storage/datasets/row_render.h"

#include <cassert>
#include <string_view>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "storage/datasets/conversation_render.h"
#include "storage/files/errors.h"

namespace lorad::storage {
namespace {

constexpr std::string_view kReason = "DATASET_INVALID";
// The prompts that Stanford Alpaca trained with (its train.py, PROMPT_DICT).
constexpr std::string_view kAlpacaWithInput =
    "Below is an instruction that describes a task, paired with an input that provides further "
    "context. Write a response that appropriately completes the request.\n\n### Instruction:\n";
constexpr std::string_view kAlpacaWithoutInput =
    "Below is an instruction that describes a task. Write a response that appropriately completes "
    "the request.\n\n### Instruction:\n";
constexpr std::string_view kAlpacaInput = "\n\n### Input:\n";
constexpr std::string_view kAlpacaResponse = "\n\n### Response:";

TextSpan Span(size_t begin, size_t end) {
  return {static_cast<uint32_t>(begin), static_cast<uint32_t>(end)};
}

std::string AlpacaPrompt(const InstructionRow& row) {
  if (row.input.empty()) {
    return absl::StrCat(Absl(kAlpacaWithoutInput), row.instruction, Absl(kAlpacaResponse));
  }
  return absl::StrCat(Absl(kAlpacaWithInput), row.instruction, Absl(kAlpacaInput), row.input,
                      Absl(kAlpacaResponse));
}

absl::StatusOr<std::vector<RenderedRow>> RenderPlain(const TextModel& model,
                                                     std::string_view prompt,
                                                     std::string_view completion,
                                                     TrainOn train_on) {
  if (model.tokens.eos_token.empty()) {
    return Refuse(kReason,
                  "the base model names no end-of-text token (eos_token in tokenizer_config.json), "
                  "which ends rows of this format");
  }
  std::vector<RenderedRow> rows(1);
  RenderedRow& rendered = rows[0];
  rendered.text = absl::StrCat(Absl(prompt), Absl(completion));
  if (!completion.ends_with(model.tokens.eos_token)) rendered.text += model.tokens.eos_token;
  const size_t begin = train_on == TrainOn::kAll ? 0 : prompt.size();
  rendered.trained = {Span(begin, rendered.text.size())};
  rendered.add_special_tokens = true;
  return rows;
}

struct RowRenderer {
  const TextModel& model;
  const TrainOn train_on;

  absl::StatusOr<std::vector<RenderedRow>> operator()(const MessagesRow& row) const {
    return RenderConversation(model, {row.messages, row.inputs}, train_on);
  }
  absl::StatusOr<std::vector<RenderedRow>> operator()(
      const PromptCompletionMessagesRow& row) const {
    std::vector<ChatMessage> messages = row.prompt;
    messages.insert(messages.end(), row.completion.begin(), row.completion.end());
    return RenderConversation(model, {messages, row.inputs, row.prompt.size(), true}, train_on);
  }
  absl::StatusOr<std::vector<RenderedRow>> operator()(const PromptCompletionRow& row) const {
    return RenderPlain(model, row.prompt, row.completion, train_on);
  }
  absl::StatusOr<std::vector<RenderedRow>> operator()(const InstructionRow& row) const {
    return RenderPlain(model, AlpacaPrompt(row), row.output, train_on);
  }
  absl::StatusOr<std::vector<RenderedRow>> operator()(const TextRow& row) const {
    return RenderPlain(model, "", row.text, train_on);
  }
  absl::StatusOr<std::vector<RenderedRow>> operator()(const TokensRow&) const {
    assert(false);
    return std::vector<RenderedRow>();
  }
};

}  // namespace

absl::StatusOr<std::vector<RenderedRow>> RenderRow(const DatasetRow& row, const TextModel& model,
                                                   TrainOn train_on) {
  return std::visit(RowRenderer{model, train_on}, row);
}

}  // namespace lorad::storage

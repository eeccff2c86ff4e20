#include "storage/datasets/row_render.h"

#include <cassert>
#include <span>
#include <string_view>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "storage/files/errors.h"

namespace lorad::storage {
namespace {

constexpr std::string_view kReason = "DATASET_INVALID";
// Every turn of a conversation renders all before it; a row may make this much text on the way.
constexpr size_t kRenderedBytesMax = size_t{256} << 20;

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

// Renders a conversation; turns from `first_trained` on that are the assistant's are trained on.
class ConversationRenderer {
 public:
  ConversationRenderer(const TextModel& model, const std::vector<ChatMessage>& messages,
                       const ChatInputs& inputs, size_t first_trained, TrainOn train_on)
      : model_(model),
        messages_(messages),
        inputs_(inputs),
        first_trained_(first_trained),
        train_on_(train_on) {}

  absl::StatusOr<RenderedRow> Render() {
    if (model_.chat_template == nullptr) {
      return Refuse(kReason,
                    "the base model has no chat template: use rows of prompt and completion "
                    "strings, or a model that has one");
    }
    RenderedRow rendered;
    absl::StatusOr<std::string> whole = RenderFirst(messages_.size(), false);
    if (!whole.ok()) return whole.status();
    rendered.text = *std::move(whole);
    if (train_on_ == TrainOn::kAll) {
      rendered.trained = {Span(0, rendered.text.size())};
      return rendered;
    }
    for (size_t turn = first_trained_; turn < messages_.size(); ++turn) {
      if (messages_[turn].role != "assistant" || !messages_[turn].trained) continue;
      absl::StatusOr<TextSpan> added = AddedBy(turn, rendered.text);
      if (!added.ok()) return added.status();
      rendered.trained.push_back(*added);
    }
    return rendered;
  }

 private:
  absl::StatusOr<std::string> RenderFirst(size_t count, bool add_generation_prompt) {
    absl::StatusOr<RenderedChat> chat = model_.chat_template->Render(
        std::span(messages_).first(count), inputs_, add_generation_prompt, model_.tokens);
    if (!chat.ok()) return chat.status();
    rendered_bytes_ += chat->text.size();
    if (rendered_bytes_ > kRenderedBytesMax) {
      return Refuse(kReason,
                    "the conversation is too long: its turns together render to more than "
                    "256 MiB");
    }
    return std::move(chat->text);
  }

  absl::StatusOr<TextSpan> AddedBy(size_t turn, const std::string& whole) {
    absl::StatusOr<std::string> before = RenderFirst(turn, true);
    if (!before.ok()) return before.status();
    std::string after = whole;
    if (turn + 1 < messages_.size()) {
      absl::StatusOr<std::string> until = RenderFirst(turn + 1, false);
      if (!until.ok()) return until.status();
      after = *std::move(until);
    }
    if (!after.starts_with(*before)) {
      return Refuse(kReason,
                    absl::StrCat("turn ", turn,
                                 ": the chat template renders the conversation with "
                                 "the answer otherwise than before it, so what to train on cannot "
                                 "be told"));
    }
    if (!whole.starts_with(after)) {
      return Refuse(kReason, absl::StrCat("turn ", turn,
                                          ": the chat template renders it otherwise once "
                                          "more turns follow, so what to train on cannot be told"));
    }
    return Span(before->size(), after.size());
  }

  const TextModel& model_;
  const std::vector<ChatMessage>& messages_;
  const ChatInputs& inputs_;
  const size_t first_trained_;
  const TrainOn train_on_;
  size_t rendered_bytes_ = 0;
};

absl::StatusOr<RenderedRow> RenderPlain(const TextModel& model, std::string_view prompt,
                                        std::string_view completion, TrainOn train_on) {
  if (model.tokens.eos_token.empty()) {
    return Refuse(kReason,
                  "the base model names no end-of-text token (eos_token in tokenizer_config.json), "
                  "which ends rows of this format");
  }
  RenderedRow rendered;
  rendered.text = absl::StrCat(Absl(prompt), Absl(completion));
  if (!completion.ends_with(model.tokens.eos_token)) rendered.text += model.tokens.eos_token;
  const size_t begin = train_on == TrainOn::kAll ? 0 : prompt.size();
  rendered.trained = {Span(begin, rendered.text.size())};
  rendered.add_special_tokens = true;
  return rendered;
}

struct RowRenderer {
  const TextModel& model;
  const TrainOn train_on;

  absl::StatusOr<RenderedRow> operator()(const MessagesRow& row) const {
    return ConversationRenderer(model, row.messages, row.inputs, 0, train_on).Render();
  }
  absl::StatusOr<RenderedRow> operator()(const PromptCompletionMessagesRow& row) const {
    std::vector<ChatMessage> messages = row.prompt;
    messages.insert(messages.end(), row.completion.begin(), row.completion.end());
    return ConversationRenderer(model, messages, row.inputs, row.prompt.size(), train_on).Render();
  }
  absl::StatusOr<RenderedRow> operator()(const PromptCompletionRow& row) const {
    return RenderPlain(model, row.prompt, row.completion, train_on);
  }
  absl::StatusOr<RenderedRow> operator()(const InstructionRow& row) const {
    return RenderPlain(model, AlpacaPrompt(row), row.output, train_on);
  }
  absl::StatusOr<RenderedRow> operator()(const TextRow& row) const {
    return RenderPlain(model, "", row.text, train_on);
  }
  absl::StatusOr<RenderedRow> operator()(const TokensRow&) const {
    assert(false);
    return RenderedRow();
  }
};

}  // namespace

absl::StatusOr<RenderedRow> RenderRow(const DatasetRow& row, const TextModel& model,
                                      TrainOn train_on) {
  return std::visit(RowRenderer{model, train_on}, row);
}

}  // namespace lorad::storage

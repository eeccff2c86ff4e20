#include "storage/datasets/prompt.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "storage/datasets/chat_template.h"
#include "storage/datasets/row_render.h"
#include "storage/files/errors.h"
#include "storage/models/model_directory.h"

namespace lorad::storage {
namespace {

constexpr std::string_view kReason = "PROMPT_INVALID";

absl::StatusOr<Prompt> Encode(std::string_view text, bool add_special_tokens,
                              const TextModel& model) {
  if (model.tokenizer == nullptr) {
    return Refuse(kReason, "the base model has no tokenizer: ask with token_ids");
  }
  absl::StatusOr<Encoding> encoding = model.tokenizer->Encode(text, add_special_tokens);
  if (!encoding.ok()) return encoding.status();
  return Prompt{.ids = std::move(encoding->ids)};
}

std::vector<int32_t> Ids(const nlohmann::json& config) {
  const auto found = config.is_object() ? config.find("eos_token_id") : config.end();
  std::vector<int32_t> ids;
  if (found == config.end()) return ids;
  const auto add = [&](const nlohmann::json& id) {
    if (id.is_number_integer()) ids.push_back(id.get<int32_t>());
  };
  if (found->is_array()) {
    for (const nlohmann::json& id : *found) add(id);
  } else {
    add(*found);
  }
  return ids;
}

// The text before the first of the tokens that end an answer, whose texts these are.
std::string BeforeEnd(std::string text, const TextModel& model, const std::vector<int32_t>& ends) {
  size_t end = text.size();
  for (const int32_t id : ends) {
    const absl::StatusOr<std::string> of_token = model.tokenizer->Decode({id}, false);
    if (of_token.ok() && !of_token->empty()) end = std::min(end, text.find(*of_token));
  }
  text.resize(end);
  return text;
}

}  // namespace

absl::StatusOr<Prompt> TextPrompt(std::string_view text, const TextModel& model) {
  return Encode(text, true, model);
}

absl::StatusOr<Prompt> ChatPrompt(std::string_view messages_json, const TextModel& model) {
  if (model.chat_template == nullptr) {
    return Refuse(kReason,
                  "the base model has no chat template: ask with a text (--raw), or register the "
                  "model with one");
  }
  // A row whose prompt it is: so it is read as rows are.
  const absl::StatusOr<DatasetRow> row =
      ParseRow(absl::StrCat("{\"prompt\": ", Absl(messages_json),
                            ", \"completion\": [{\"role\": \"assistant\", \"content\": \"-\"}]}"));
  if (!row.ok()) return Refuse(kReason, absl::StrCat("messages: ", row.status().message()));
  const auto* messages = std::get_if<PromptCompletionMessagesRow>(&*row);
  if (messages == nullptr) return Refuse(kReason, "messages must be a JSON array of messages");
  absl::StatusOr<RenderedChat> rendered =
      model.chat_template->Render(messages->prompt, messages->inputs, true, model.tokens);
  if (!rendered.ok()) return rendered.status();
  return Encode(rendered->text, false, model);
}

absl::StatusOr<Prompt> RowPrompt(const DatasetRow& row, const TextModel& model,
                                 const std::vector<int32_t>& ends) {
  if (model.tokenizer == nullptr) {
    return Refuse(kReason,
                  "the base model has no tokenizer, so neither its answer nor the row's own is a "
                  "text: ask with token_ids");
  }
  if (const auto* tokens = std::get_if<TokensRow>(&row)) {
    Prompt prompt;
    size_t end = 0;
    while (end < tokens->labels.size() && tokens->labels[end] < 0) ++end;
    prompt.ids.assign(tokens->input_ids.begin(),
                      tokens->input_ids.begin() + static_cast<int64_t>(end));
    std::vector<int32_t> rest(tokens->input_ids.begin() + static_cast<int64_t>(end),
                              tokens->input_ids.end());
    rest.erase(std::ranges::find_first_of(rest, ends), rest.end());
    absl::StatusOr<std::string> reference = model.tokenizer->Decode(rest, true);
    if (!reference.ok()) return reference.status();
    prompt.reference = *std::move(reference);
    return prompt;
  }
  if (std::holds_alternative<TextRow>(row)) {
    return Refuse(kReason, "a row of text alone asks nothing: it has no answer of its own");
  }
  absl::StatusOr<std::vector<RenderedRow>> rendered = RenderRow(row, model, TrainOn::kAssistant);
  if (!rendered.ok()) return rendered.status();
  if (rendered->empty() || rendered->back().trained.empty()) {
    return Refuse(kReason, "the row has no answer of its own");
  }
  const RenderedRow& last = rendered->back();
  const TextSpan answer = last.trained.back();
  absl::StatusOr<Prompt> prompt =
      Encode(std::string_view(last.text).substr(0, answer.begin), last.add_special_tokens, model);
  if (prompt.ok()) {
    prompt->reference =
        BeforeEnd(last.text.substr(answer.begin, answer.end - answer.begin), model, ends);
  }
  return prompt;
}

std::vector<int32_t> EndTokens(const ModelDirectory& directory, const TextModel& model) {
  for (const char* file : {"generation_config.json", "config.json"}) {
    const absl::StatusOr<std::string> text = directory.ReadText(file);
    if (!text.ok()) continue;
    std::vector<int32_t> ids = Ids(nlohmann::json::parse(*text, nullptr, false));
    if (!ids.empty()) return ids;
  }
  if (model.tokenizer == nullptr || model.tokens.eos_token.empty()) return {};
  const std::optional<int32_t> id = model.tokenizer->TokenToId(model.tokens.eos_token);
  return id ? std::vector<int32_t>{*id} : std::vector<int32_t>{};
}

}  // namespace lorad::storage

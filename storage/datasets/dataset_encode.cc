#include "storage/datasets/dataset_encode.h"

#include <algorithm>
#include <cassert>

#include "absl/strings/str_cat.h"
#include "storage/datasets/tokenizer_config.h"
#include "storage/files/errors.h"
#include "storage/files/files.h"
#include "storage/models/model_directory.h"

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

// A row's text, what of it is trained on, and whether the post-processor adds its tokens.
struct Rendered {
  std::string text;
  std::vector<TextSpan> trained;
  bool add_special_tokens = false;
};

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
                       size_t first_trained)
      : model_(model), messages_(messages), first_trained_(first_trained) {}

  absl::StatusOr<Rendered> Render() {
    if (model_.chat_template == nullptr) {
      return Refuse(kReason,
                    "the base model has no chat template: use rows of prompt and completion "
                    "strings, or a model that has one");
    }
    Rendered rendered;
    absl::StatusOr<std::string> whole = RenderFirst(messages_.size(), false);
    if (!whole.ok()) return whole.status();
    rendered.text = *std::move(whole);
    for (size_t turn = first_trained_; turn < messages_.size(); ++turn) {
      if (messages_[turn].role != "assistant") continue;
      absl::StatusOr<TextSpan> added = AddedBy(turn, rendered.text);
      if (!added.ok()) return added.status();
      rendered.trained.push_back(*added);
    }
    return rendered;
  }

 private:
  absl::StatusOr<std::string> RenderFirst(size_t count, bool add_generation_prompt) {
    const std::vector<ChatMessage> first(messages_.begin(),
                                         messages_.begin() + static_cast<ptrdiff_t>(count));
    absl::StatusOr<std::string> text =
        model_.chat_template->Render(first, add_generation_prompt, model_.tokens);
    if (!text.ok()) return text.status();
    rendered_bytes_ += text->size();
    if (rendered_bytes_ > kRenderedBytesMax) {
      return Refuse(kReason,
                    "the conversation is too long: its turns together render to more than "
                    "256 MiB");
    }
    return text;
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
  const size_t first_trained_;
  size_t rendered_bytes_ = 0;
};

absl::StatusOr<Rendered> RenderPlain(const TextModel& model, std::string_view prompt,
                                     std::string_view completion) {
  if (model.tokens.eos_token.empty()) {
    return Refuse(kReason,
                  "the base model names no end-of-text token (eos_token in tokenizer_config.json), "
                  "which ends rows of this format");
  }
  Rendered rendered;
  rendered.text = absl::StrCat(Absl(prompt), Absl(completion), model.tokens.eos_token);
  rendered.trained = {Span(prompt.size(), rendered.text.size())};
  rendered.add_special_tokens = true;
  return rendered;
}

struct RowRenderer {
  const TextModel& model;

  absl::StatusOr<Rendered> operator()(const MessagesRow& row) const {
    return ConversationRenderer(model, row.messages, 0).Render();
  }
  absl::StatusOr<Rendered> operator()(const PromptCompletionMessagesRow& row) const {
    std::vector<ChatMessage> messages = row.prompt;
    messages.insert(messages.end(), row.completion.begin(), row.completion.end());
    return ConversationRenderer(model, messages, row.prompt.size()).Render();
  }
  absl::StatusOr<Rendered> operator()(const PromptCompletionRow& row) const {
    return RenderPlain(model, row.prompt, row.completion);
  }
  absl::StatusOr<Rendered> operator()(const InstructionRow& row) const {
    return RenderPlain(model, AlpacaPrompt(row), row.output);
  }
  absl::StatusOr<Rendered> operator()(const TextRow& row) const {
    return RenderPlain(model, "", row.text);
  }
  absl::StatusOr<Rendered> operator()(const TokensRow&) const {
    assert(false);
    return Rendered();
  }
};

// A token is trained on if it begins inside trained text; what the post-processor put in is not.
void LabelTokens(const Encoding& encoding, EncodedRow* row) {
  row->labels.assign(encoding.ids.size(), kNotTrained);
  const size_t end = encoding.ids.size() - encoding.inserted_back;
  for (size_t i = encoding.inserted_front; i < end; ++i) {
    const uint32_t begin = encoding.spans[i].begin;
    const auto after = std::upper_bound(
        row->trained.begin(), row->trained.end(), begin,
        [](uint32_t position, const TextSpan& span) { return position < span.begin; });
    if (after != row->trained.begin() && begin < std::prev(after)->end) {
      row->labels[i] = encoding.ids[i];
    }
  }
}

absl::StatusOr<EncodedRow> EncodeText(const DatasetRow& content, const TextModel& model) {
  if (model.tokenizer == nullptr) {
    return Refuse(kReason,
                  "the base model's directory has no tokenizer.json: it takes rows of input_ids "
                  "and labels alone");
  }
  absl::StatusOr<Rendered> rendered = std::visit(RowRenderer{model}, content);
  if (!rendered.ok()) return rendered.status();
  absl::StatusOr<Encoding> encoding =
      model.tokenizer->Encode(rendered->text, rendered->add_special_tokens);
  if (!encoding.ok()) return encoding.status();
  EncodedRow row;
  row.text = std::move(rendered->text);
  row.trained = std::move(rendered->trained);
  LabelTokens(*encoding, &row);
  row.ids = std::move(encoding->ids);
  return row;
}

absl::Status CheckIds(const EncodedRow& row, int64_t vocabulary) {
  for (size_t i = 0; i < row.ids.size(); ++i) {
    for (int32_t id : {row.ids[i], row.labels[i]}) {
      if (id < vocabulary) continue;
      return Refuse(kReason,
                    absl::StrCat("token id ", id, " at position ", i,
                                 " is outside of the base model's vocabulary of ", vocabulary));
    }
  }
  return absl::OkStatus();
}

}  // namespace

int64_t TrainedTokens(const std::vector<int32_t>& labels) {
  if (labels.empty()) return 0;
  return static_cast<int64_t>(labels.size()) - 1 -
         std::count(labels.begin() + 1, labels.end(), kNotTrained);
}

absl::StatusOr<TextModel> LoadTextModel(const ModelDirectory& directory) {
  TextModel model;
  model.vocabulary = directory.description().vocabulary;
  model.fingerprint = directory.fingerprint();
  if (!directory.has_tokenizer()) return model;
  const auto path = [&directory](const char* file) { return JoinPath(directory.path(), file); };
  absl::StatusOr<std::string> config_json = directory.ReadText("tokenizer_config.json");
  if (!config_json.ok() && !absl::IsNotFound(config_json.status())) return config_json.status();
  absl::StatusOr<std::string> jinja = directory.ReadText("chat_template.jinja");
  if (!jinja.ok() && !absl::IsNotFound(jinja.status())) return jinja.status();
  absl::StatusOr<TokenizerConfig> config =
      ParseTokenizerConfig(config_json.ok() ? std::string_view(*config_json) : "{}",
                           jinja.ok() ? std::optional<std::string_view>(*jinja) : std::nullopt);
  if (!config.ok()) return At(path("tokenizer_config.json"), config.status());
  model.tokens = config->template_tokens();

  absl::StatusOr<std::string> tokenizer_json = directory.ReadText("tokenizer.json");
  if (!tokenizer_json.ok()) return tokenizer_json.status();
  absl::StatusOr<std::unique_ptr<Tokenizer>> tokenizer =
      Tokenizer::FromJson(*tokenizer_json, config->special_tokens);
  if (!tokenizer.ok()) return At(path("tokenizer.json"), tokenizer.status());
  model.tokenizer = *std::move(tokenizer);
  for (const auto& [name, token] : {std::pair("bos_token", &model.tokens.bos_token),
                                    std::pair("eos_token", &model.tokens.eos_token)}) {
    if (token->empty() || model.tokenizer->TokenToId(*token).has_value()) continue;
    return At(path("tokenizer_config.json"),
              Refuse("TOKENIZER_CONFIG_INVALID",
                     absl::StrCat(name, " ", Quoted(*token), " is no token of tokenizer.json")));
  }
  if (config->chat_template.empty()) return model;
  absl::StatusOr<ChatTemplate> chat_template = ChatTemplate::Parse(config->chat_template);
  if (!chat_template.ok()) {
    return At(path(jinja.ok() ? "chat_template.jinja" : "tokenizer_config.json"),
              chat_template.status());
  }
  model.chat_template = std::make_unique<const ChatTemplate>(*std::move(chat_template));
  return model;
}

absl::StatusOr<EncodedRow> EncodeRow(const DatasetRow& content, const TextModel& model,
                                     const EncodeOptions& options) {
  assert(options.max_length > 0);
  EncodedRow row;
  if (const auto* tokens = std::get_if<TokensRow>(&content)) {
    row.ids = tokens->input_ids;
    row.labels = tokens->labels;
  } else {
    absl::StatusOr<EncodedRow> encoded = EncodeText(content, model);
    if (!encoded.ok()) return encoded.status();
    row = *std::move(encoded);
  }
  if (absl::Status status = CheckIds(row, model.vocabulary); !status.ok()) return status;
  if (TrainedTokens(row.labels) == 0) {
    return Refuse(kReason, "no token of the row is trained on (the first one never is)");
  }
  const size_t limit = static_cast<size_t>(options.max_length);
  if (row.ids.size() <= limit) return row;
  if (options.refuse_overflow) {
    return Refuse(kReason, absl::StrCat("the row has ", row.ids.size(), " tokens, more than the ",
                                        limit, " of max_length"));
  }
  const size_t tokens = row.ids.size();
  row.ids.resize(limit);
  row.labels.resize(limit);
  row.truncated = true;
  if (TrainedTokens(row.labels) == 0) {
    return Refuse(kReason, absl::StrCat("no trained token is left once the row's ", tokens,
                                        " tokens are cut to the ", limit, " of max_length"));
  }
  return row;
}

std::string MarkTrained(const EncodedRow& row, size_t length) {
  std::string text;
  size_t at = 0;
  for (const TextSpan& span : row.trained) {
    if (at >= length) break;
    text.append(row.text, at, span.begin - at);
    absl::StrAppend(&text, "«", row.text.substr(span.begin, span.end - span.begin), "»");
    at = span.end;
  }
  text.append(row.text, at, std::string::npos);
  if (text.size() <= length) return text;
  while (length > 0 && (static_cast<unsigned char>(text[length]) & 0xC0) == 0x80) --length;
  text.resize(length);
  return text + "…";
}

DatasetEncoder::DatasetEncoder(const TextModel& model, const EncodeOptions& options,
                               OnEncoded on_encoded)
    : model_(model), options_(options), on_encoded_(std::move(on_encoded)) {}

absl::Status DatasetEncoder::Encode(int64_t row, int64_t line, const DatasetRow& content) {
  absl::StatusOr<EncodedRow> encoded = EncodeRow(content, model_, options_);
  if (!encoded.ok()) return encoded.status();
  const int32_t tokens = static_cast<int32_t>(encoded->ids.size());
  if (counted_.sample.empty()) counted_.sample = MarkTrained(*encoded);
  counted_.tokens += tokens;
  counted_.trained_tokens += TrainedTokens(encoded->labels);
  counted_.truncated_rows += encoded->truncated ? 1 : 0;
  counted_.longest_tokens = std::max(counted_.longest_tokens, tokens);
  return on_encoded_ ? on_encoded_(row, line, *encoded) : absl::OkStatus();
}

void DatasetEncoder::Complete(DatasetReport* report) const {
  report->tokens = counted_.tokens;
  report->trained_tokens = counted_.trained_tokens;
  report->truncated_rows = counted_.truncated_rows;
  report->longest_tokens = counted_.longest_tokens;
  report->sample = counted_.sample;
}

}  // namespace lorad::storage

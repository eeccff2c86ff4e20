#include "storage/datasets/text_model.h"

#include <optional>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "storage/datasets/tokenizer_config.h"
#include "storage/files/errors.h"
#include "storage/files/files.h"
#include "storage/models/model_directory.h"

namespace lorad::storage {

namespace {

// Where a template is from, for its errors.
std::string PlaceOf(const ModelDirectory& directory, bool given, bool own_file) {
  if (given) return "the chat template that is given";
  return JoinPath(directory.path(), own_file ? "chat_template.jinja" : "tokenizer_config.json");
}

}  // namespace

absl::StatusOr<TextModel> LoadTextModel(const ModelDirectory& directory, std::string_view given) {
  TextModel model;
  model.vocabulary = directory.description().vocabulary;
  model.fingerprint = directory.fingerprint();
  if (!directory.has_tokenizer() && !given.empty()) {
    return Refuse("TOKENIZER_INVALID",
                  absl::StrCat(directory.path(),
                               " has no tokenizer.json, and rows are not rendered without one: "
                               "leave the chat template out"));
  }
  if (!directory.has_tokenizer()) return model;
  const auto path = [&directory](const char* file) { return JoinPath(directory.path(), file); };
  absl::StatusOr<std::string> config_json = directory.ReadText("tokenizer_config.json");
  if (!config_json.ok() && !absl::IsNotFound(config_json.status())) return config_json.status();
  absl::StatusOr<std::string> jinja = given.empty() ? directory.ReadText("chat_template.jinja")
                                                    : absl::StatusOr<std::string>(given);
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
    return At(PlaceOf(directory, !given.empty(), jinja.ok()), chat_template.status());
  }
  model.chat_template = std::make_unique<const ChatTemplate>(*std::move(chat_template));
  return model;
}

}  // namespace lorad::storage

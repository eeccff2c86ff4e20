#include "storage/datasets/tokenizer_config.h"

#include <algorithm>

#include "storage/files/errors.h"
#include "storage/files/json.h"

namespace lorad::storage {
namespace {

using Json = nlohmann::json;

constexpr char kReason[] = "TOKENIZER_CONFIG_INVALID";

absl::Status Invalid(const std::string& what) { return Refuse(kReason, what); }

// A token is its text, or an object that has it as "content".
absl::Status ReadToken(const Json& config, const char* name, std::optional<std::string>* out) {
  const auto found = config.find(name);
  if (found == config.end() || found->is_null()) return absl::OkStatus();
  const Json* text = &*found;
  if (text->is_object()) {
    const auto content = text->find("content");
    if (content == text->end()) return Invalid(std::string(name) + " has no content");
    text = &*content;
  }
  if (!text->is_string()) return Invalid(std::string(name) + " must be a string");
  *out = text->get<std::string>();
  return absl::OkStatus();
}

// The token that `json` is, if it is one.
void AddSpecialToken(const Json& json, std::vector<std::string>* out) {
  const Json* text = &json;
  if (json.is_object() && json.contains("content")) text = &json["content"];
  if (!text->is_string() || text->get_ref<const std::string&>().empty()) return;
  const std::string& token = text->get_ref<const std::string&>();
  if (std::find(out->begin(), out->end(), token) == out->end()) out->push_back(token);
}

std::vector<std::string> SpecialTokens(const Json& config) {
  std::vector<std::string> tokens;
  for (const char* name : {"bos_token", "eos_token", "unk_token", "sep_token", "pad_token",
                           "cls_token", "mask_token"}) {
    if (config.contains(name)) AddSpecialToken(config[name], &tokens);
  }
  for (const char* name : {"additional_special_tokens", "extra_special_tokens"}) {
    const auto found = config.find(name);
    if (found == config.end() || !found->is_structured()) continue;
    for (const Json& token : *found) AddSpecialToken(token, &tokens);
  }
  return tokens;
}

// One template, or a list of named ones.
absl::Status ReadTemplate(const Json& config, std::string* out) {
  const auto found = config.find("chat_template");
  if (found == config.end() || found->is_null()) return absl::OkStatus();
  if (found->is_string()) {
    *out = found->get<std::string>();
    return absl::OkStatus();
  }
  if (!found->is_array()) return Invalid("chat_template must be a string or a list of templates");
  for (const Json& entry : *found) {
    const auto name = entry.is_object() ? entry.find("name") : entry.end();
    const auto text = entry.is_object() ? entry.find("template") : entry.end();
    if (name == entry.end() || text == entry.end() || !name->is_string() || !text->is_string()) {
      return Invalid("an entry of chat_template must have a name and a template");
    }
    if (*name == "default") {
      *out = text->get<std::string>();
      return absl::OkStatus();
    }
  }
  return Invalid("chat_template is a list without a template named \"default\"");
}

}  // namespace

ChatTemplateTokens TokenizerConfig::template_tokens() const {
  return {bos_token.value_or(""), eos_token.value_or(""), unk_token.value_or(""),
          pad_token.value_or("")};
}

absl::StatusOr<TokenizerConfig> ParseTokenizerConfig(
    std::string_view tokenizer_config_json, std::optional<std::string_view> chat_template_jinja) {
  const absl::StatusOr<Json> parsed = ParseJson(tokenizer_config_json, kReason);
  if (!parsed.ok()) return parsed.status();
  const Json& config = *parsed;
  if (!config.is_object()) return Invalid("must be a JSON object, {...}");
  TokenizerConfig out;
  absl::Status status = ReadToken(config, "bos_token", &out.bos_token);
  if (status.ok()) status = ReadToken(config, "eos_token", &out.eos_token);
  if (status.ok()) status = ReadToken(config, "unk_token", &out.unk_token);
  if (status.ok()) status = ReadToken(config, "pad_token", &out.pad_token);
  if (status.ok() && !chat_template_jinja.has_value()) {
    status = ReadTemplate(config, &out.chat_template);
  }
  if (!status.ok()) return status;
  out.special_tokens = SpecialTokens(config);
  if (chat_template_jinja.has_value()) out.chat_template = *chat_template_jinja;
  return out;
}

}  // namespace lorad::storage

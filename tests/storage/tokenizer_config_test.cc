#include "storage/datasets/tokenizer_config.h"

#include "catch2/catch.hpp"
#include "storage/files/errors.h"

namespace lorad::storage {
namespace {

TEST_CASE("tokens are texts or objects, or not there") {
  const auto config = ParseTokenizerConfig(
      R"({"bos_token": "<s>", "eos_token": {"content": "</s>", "lstrip": false}, "pad_token": null,
          "chat_template": "{{ messages }}", "model_max_length": 8192})",
      std::nullopt);
  REQUIRE(config.ok());
  CHECK(config->bos_token == "<s>");
  CHECK(config->eos_token == "</s>");
  CHECK_FALSE(config->pad_token.has_value());
  CHECK_FALSE(config->unk_token.has_value());
  CHECK(config->chat_template == "{{ messages }}");
  CHECK(config->template_tokens().eos_token == "</s>");
  CHECK(config->template_tokens().pad_token.empty());
}

TEST_CASE("special tokens are collected from wherever they are named") {
  const auto config = ParseTokenizerConfig(
      R"({"bos_token": "<s>", "eos_token": {"content": "</s>"}, "pad_token": "</s>", "mask_token": "",
          "additional_special_tokens": ["<a>", {"content": "<b>"}, 3],
          "extra_special_tokens": {"image_token": "<c>"}, "added_tokens_decoder": {}})",
      std::nullopt);
  REQUIRE(config.ok());
  CHECK(config->special_tokens == std::vector<std::string>{"<s>", "</s>", "<a>", "<b>", "<c>"});
}

TEST_CASE("the template is the default one of a list, or the file beside") {
  const std::string list = R"({"chat_template": [{"name": "tool_use", "template": "t"},
                                                 {"name": "default", "template": "d"}]})";
  CHECK(ParseTokenizerConfig(list, std::nullopt)->chat_template == "d");
  CHECK(ParseTokenizerConfig(list, "file")->chat_template == "file");
  CHECK(ParseTokenizerConfig("{}", std::nullopt)->chat_template.empty());
}

TEST_CASE("a wrong field is named") {
  struct Case {
    std::string json, says;
  };
  const std::vector<Case> table = {
      {"", "not JSON: parse error at line 1, column 1"},
      {"[]", "must be a JSON object"},
      {"{\"a\": " + std::string(100'000, '[') + "}", "nested deeper than"},
      {R"({"bos_token": 1})", "bos_token must be a string"},
      {R"({"eos_token": {}})", "eos_token has no content"},
      {R"({"eos_token": {"content": 2}})", "eos_token must be a string"},
      {R"({"chat_template": 1})", "chat_template must be"},
      {R"({"chat_template": [{"name": "x"}]})", "an entry of chat_template"},
      {R"({"chat_template": [1]})", "an entry of chat_template"},
      {R"({"chat_template": []})", "without a template named \"default\""},
  };
  for (const Case& one : table) {
    const absl::Status status = ParseTokenizerConfig(one.json, std::nullopt).status();
    INFO(one.json << ": " << status);
    CHECK(status.code() == absl::StatusCode::kInvalidArgument);
    CHECK(*status.GetPayload(Absl(kReasonPayload)) == "TOKENIZER_CONFIG_INVALID");
    CHECK_THAT(std::string(status.message()), Catch::Contains(one.says));
  }
}

}  // namespace
}  // namespace lorad::storage

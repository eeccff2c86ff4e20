#include "storage/datasets/tokenizer.h"

#include <chrono>
#include <fstream>
#include <iterator>
#include <random>
#include <thread>

#include "catch2/catch.hpp"
#include "nlohmann/json.hpp"
#include "storage/files/errors.h"

namespace lorad::storage {
namespace {

using Json = nlohmann::json;

constexpr char kFolder[] = "tests/storage/testdata/tokenizers/";

std::string ReadText(const std::string& path) {
  std::ifstream in(path);
  REQUIRE(in);
  return {std::istreambuf_iterator<char>(in), {}};
}

std::string Published(const std::string& kind) { return ReadText(kFolder + kind + ".json"); }

std::unique_ptr<Tokenizer> Load(const std::string& json) {
  auto tokenizer = Tokenizer::FromJson(json);
  INFO(tokenizer.status());
  REQUIRE(tokenizer.ok());
  return *std::move(tokenizer);
}

std::vector<uint32_t> Flat(const std::vector<TextSpan>& spans) {
  std::vector<uint32_t> out;
  for (const TextSpan& span : spans) out.insert(out.end(), {span.begin, span.end});
  return out;
}

TEST_CASE("every family gives the library's ids, spans and texts") {
  for (const std::string kind : {"gemma", "gpt2", "llama2", "llama3", "metaspace_always",
                                 "metaspace_first", "metaspace_never", "odd", "olmo2", "phi3",
                                 "phi4", "phi4_mini", "qwen2", "qwen3", "smollm2", "tekken"}) {
    const auto tokenizer = Load(Published(kind));
    std::ifstream cases(kFolder + kind + ".cases.jsonl");
    int count = 0;
    for (std::string line; std::getline(cases, line); ++count) {
      const Json expected = Json::parse(line);
      INFO(kind << ": " << expected["text"].dump(-1, ' ', true));
      const auto encoding = tokenizer->Encode(expected["text"].get<std::string>(),
                                              expected["add_special_tokens"].get<bool>());
      REQUIRE(encoding.ok());
      REQUIRE(encoding->ids == expected["ids"].get<std::vector<int32_t>>());
      REQUIRE(Flat(encoding->spans) == expected["spans"].get<std::vector<uint32_t>>());
      REQUIRE(*tokenizer->Decode(encoding->ids, false) == expected["decoded"]);
      REQUIRE(*tokenizer->Decode(encoding->ids, true) == expected["decoded_skipping"]);
    }
    CHECK(count > 150);
  }
}

TEST_CASE("inserted tokens are counted") {
  const auto tokenizer = Load(Published("llama3"));
  const auto with = tokenizer->Encode("Hi", true);
  const auto without = tokenizer->Encode("Hi", false);
  CHECK(with->inserted_front == 1);
  CHECK(with->inserted_back == 0);
  CHECK(with->ids.front() == *tokenizer->TokenToId("<s>"));
  CHECK(with->ids.size() == without->ids.size() + 1);
  CHECK(without->inserted_front == 0);
}

TEST_CASE("tokens are known by their text, ids by their bound") {
  const auto tokenizer = Load(Published("llama3"));
  CHECK(tokenizer->TokenToId("<|end|>") == tokenizer->vocabulary_size() - 1);
  CHECK_FALSE(tokenizer->TokenToId("<|nowhere|>").has_value());
  CHECK(ReasonOf(tokenizer->Decode({0, tokenizer->vocabulary_size()}, false).status()) ==
        "TOKEN_UNKNOWN");
}

TEST_CASE("a text that is not UTF-8 is refused") {
  const auto tokenizer = Load(Published("qwen2"));
  for (const std::string text : {"a\xFF", "\xC3", "\xED\xA0\x80", "\xF4\x90\x80\x80", "\xC0\x80"}) {
    CHECK(ReasonOf(tokenizer->Encode(text, false).status()) == "TEXT_INVALID");
  }
}

// A change to a published file, and what the refusal must say.
struct BadFile {
  std::string patch;  // JSON merge patch
  std::string reason;
  std::string says;
};

TEST_CASE("what is not understood is refused by name") {
  const std::vector<BadFile> table = {
      {R"({"model": {"type": "WordPiece"}})", "TOKENIZER_UNSUPPORTED", "WordPiece"},
      {R"({"model": {"dropout": 0.1}})", "TOKENIZER_UNSUPPORTED", "dropout"},
      {R"({"model": {"end_of_word_suffix": "</w>"}})", "TOKENIZER_UNSUPPORTED",
       "end_of_word_suffix"},
      {R"({"model": {"byte_fallback": true}})", "TOKENIZER_UNSUPPORTED", "byte_fallback"},
      {R"({"model": {"fuse_unk": 1}})", "TOKENIZER_INVALID", "fuse_unk must be true or false"},
      {R"({"model": {"unk_token": "<none>"}})", "TOKENIZER_INVALID", "<none>"},
      {R"({"model": {"merges": ["a"]}})", "TOKENIZER_INVALID", "merges[0]"},
      {R"({"model": {"merges": ["a b", "b c d"]}})", "TOKENIZER_INVALID", "merges[1]"},
      {R"({"model": {"merges": [["a", "\u0000"]]}})", "TOKENIZER_INVALID", "merge 0"},
      {R"({"model": {"merges": [["", "a"]]}})", "TOKENIZER_INVALID", "merge 0"},
      {R"({"model": {"vocab": {"a": -1}}})", "TOKENIZER_INVALID", "the id of token \"a\""},
      {R"({"model": {"vocab": {"new": 1}}})", "TOKENIZER_INVALID", "share the id 1"},
      {R"({"model": {"vocab": null}})", "TOKENIZER_INVALID", "vocab is missing"},
      {R"({"model": null})", "TOKENIZER_INVALID", "model is missing"},
      {R"({"model": {"news": 1}})", "TOKENIZER_UNSUPPORTED", "\"news\""},
      {R"({"news": 1})", "TOKENIZER_UNSUPPORTED", "\"news\""},
      {R"({"normalizer": {"type": "BertNormalizer"}})", "TOKENIZER_UNSUPPORTED", "BertNormalizer"},
      {R"({"normalizer": {"type": "Prepend", "prepend": 1}})", "TOKENIZER_INVALID", "prepend"},
      {R"({"normalizer": {"type": "Replace", "pattern": {"String": ""}, "content": "x"}})",
       "TOKENIZER_INVALID", "must not be empty"},
      {R"({"normalizer": {"type": "Sequence", "normalizers": [{"type": "NFC"}, {"type": "Nmt"}]}})",
       "TOKENIZER_UNSUPPORTED", "normalizer[1]: normalizer Nmt"},
      {R"({"pre_tokenizer": {"type": "Whitespace", "pretokenizers": null}})",
       "TOKENIZER_UNSUPPORTED", "Whitespace"},
      {R"({"pre_tokenizer": {"pretokenizers": [
          {"type": "ByteLevel", "add_prefix_space": false}, {"type": "Digits", "individual_digits": true}]}})",
       "TOKENIZER_UNSUPPORTED", "Digits after ByteLevel"},
      {R"({"pre_tokenizer": {"type": "Split", "pretokenizers": null, "invert": false,
          "behavior": "Isolated", "pattern": {"Regex": "\\w+"}}})",
       "TOKENIZER_UNSUPPORTED", "'\\w' is not supported"},
      {R"({"pre_tokenizer": {"type": "Metaspace", "pretokenizers": null, "replacement": "__"}})",
       "TOKENIZER_INVALID", "one character"},
      {R"({"post_processor": {"type": "BertProcessing", "processors": null}})",
       "TOKENIZER_UNSUPPORTED", "BertProcessing"},
      {R"({"post_processor": {"type": "TemplateProcessing", "processors": null, "pair": [],
          "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}], "special_tokens": {}}})",
       "TOKENIZER_INVALID", "special_tokens has no \"<s>\""},
      {R"({"post_processor": {"type": "TemplateProcessing", "processors": null, "pair": [],
          "single": [{"Sequence": {"id": "B", "type_id": 0}}], "special_tokens": {}}})",
       "TOKENIZER_UNSUPPORTED", "as A"},
      {R"({"decoder": {"type": "WordPiece"}})", "TOKENIZER_UNSUPPORTED", "WordPiece"},
      {R"({"added_tokens": [{"id": 7, "content": "<s>", "single_word": false, "lstrip": false,
          "rstrip": false, "normalized": false, "special": true}]})",
       "TOKENIZER_INVALID", "id 7"},
      {R"({"added_tokens": [{"id": 7}]})", "TOKENIZER_INVALID", "content is missing"},
      {R"({"added_tokens": {}})", "TOKENIZER_INVALID", "must be a list"},
  };
  const Json published = Json::parse(Published("llama3"));
  for (const BadFile& bad : table) {
    INFO(bad.patch);
    Json json = published;
    json.merge_patch(Json::parse(bad.patch));
    const absl::Status status = Tokenizer::FromJson(json.dump()).status();
    INFO(status);
    CHECK(status.code() == absl::StatusCode::kInvalidArgument);
    CHECK(ReasonOf(status) == bad.reason);
    CHECK_THAT(std::string(status.message()), Catch::Contains(bad.says));
  }
  for (const std::string text : {"", "{", "[]", "3", "null", "{\"model\": "}) {
    CHECK(ReasonOf(Tokenizer::FromJson(text).status()) == "TOKENIZER_INVALID");
  }
}

// A vocabulary that has "</s>" without its standing among the added tokens: transformers finds it
// whole all the same, because tokenizer_config.json names it.
TEST_CASE("special tokens that only the config names are found whole") {
  const std::string listed = Published("llama2");
  Json unlisted = Json::parse(listed);
  unlisted["added_tokens"] = Json::array();
  const std::string text = "one</s> two <s>three<nobody>";
  const std::vector<int32_t> expected = Load(listed)->Encode(text, false)->ids;
  CHECK(Load(unlisted.dump())->Encode(text, false)->ids != expected);
  for (const std::string& json : {listed, unlisted.dump()}) {
    const auto tokenizer = Tokenizer::FromJson(json, {"<unk>", "<s>", "</s>", "<nobody>"});
    REQUIRE(tokenizer.ok());
    CHECK((*tokenizer)->Encode(text, false)->ids == expected);
  }
}

TEST_CASE("a file cut anywhere is refused, not crashed on") {
  const std::string published = Published("smollm2");
  for (size_t bytes = 0; bytes < published.size() - 2; bytes += 97) {
    CHECK_FALSE(Tokenizer::FromJson(published.substr(0, bytes)).ok());
  }
}

TEST_CASE("a megabyte without a seam takes seconds, not hours") {
  constexpr size_t kBytes = 1 << 20;
  const auto begin = std::chrono::steady_clock::now();
  for (const std::string kind : {"llama2", "llama3", "smollm2"}) {
    const auto tokenizer = Load(Published(kind));
    for (const char c : {'a', ' ', '\n', '1', '<'}) {
      const auto encoding = tokenizer->Encode(std::string(kBytes, c), false);
      REQUIRE(encoding.ok());
      CHECK(encoding->spans.back().end == kBytes);
    }
    std::string marks;
    while (marks.size() < kBytes) marks += "\u0316\u0301";
    CHECK(tokenizer->Encode("e" + marks, false).ok());
  }
  // 18 texts; n squared would be hours.
  CHECK(std::chrono::steady_clock::now() - begin < std::chrono::seconds(60));
}

TEST_CASE("threads that share a tokenizer get what one alone gets") {
  const auto tokenizer = Load(Published("llama3"));
  std::vector<std::string> texts;
  std::mt19937 random(7);
  for (int i = 0; i < 400; ++i) {
    std::string text;
    for (int j = 0; j < 200; ++j) text += static_cast<char>("ab cd\n12'."[random() % 10]);
    texts.push_back(text);
  }
  const auto encode_all = [&](const Tokenizer& with) {
    std::vector<std::vector<int32_t>> out;
    for (const std::string& text : texts) out.push_back(with.Encode(text, false)->ids);
    return out;
  };
  std::vector<std::vector<std::vector<int32_t>>> results(4);
  std::vector<std::thread> threads;
  for (auto& result : results) {
    threads.emplace_back([&] { result = encode_all(*tokenizer); });
  }
  for (std::thread& thread : threads) thread.join();
  const auto alone = encode_all(*Load(Published("llama3")));
  for (const auto& result : results) CHECK(result == alone);
}

TEST_CASE("a normalizer cannot make a text endless") {
  Json json = Json::parse(Published("qwen2"));
  const Json doubling = {
      {"type", "Replace"}, {"pattern", {{"String", "a"}}}, {"content", "aaaaaaaa"}};
  json["normalizer"] = {{"type", "Sequence"}, {"normalizers", Json(9, doubling)}};
  const auto tokenizer = Load(json.dump());
  const absl::Status status = tokenizer->Encode(std::string(10000, 'a'), false).status();
  CHECK(status.code() == absl::StatusCode::kResourceExhausted);
}

}  // namespace
}  // namespace lorad::storage

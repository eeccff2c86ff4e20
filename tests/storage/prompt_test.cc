// What is asked as tokens, and tokens as text while they come.
#include "storage/datasets/prompt.h"

#include <catch2/catch.hpp>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>

#include "storage/datasets/text_stream.h"
#include "storage/files/errors.h"
#include "tests/storage/letter_tokenizer.h"

namespace lorad::storage {
namespace {

using Json = nlohmann::json;

constexpr char kFolder[] = "tests/storage/testdata/tokenizers/";
constexpr std::string_view kTemplate =
    "{% for m in messages %}{% if m['role'] == 'assistant' %}[A:{{ m['content'] }}{{ eos_token }}]"
    "{% else %}[U:{{ m['content'] }}]{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}[A:{% endif %}";

TextModel Model(std::string_view chat_template = kTemplate) {
  TextModel model;
  model.tokenizer = std::make_unique<LetterTokenizer>();
  model.vocabulary = model.tokenizer->vocabulary_size();
  if (!chat_template.empty()) {
    auto parsed = ChatTemplate::Parse(chat_template);
    REQUIRE(parsed.ok());
    model.chat_template = std::make_unique<const ChatTemplate>(*std::move(parsed));
  }
  model.tokens.eos_token = "<e>";
  return model;
}

// Each token as its letter (E end, B begin), then the row's own answer; or the error.
std::string Text(const absl::StatusOr<Prompt>& prompt) {
  if (!prompt.ok()) return std::string(prompt.status().message());
  std::string text;
  for (const int32_t id : prompt->ids) {
    text += id == 256 ? "E" : id == 257 ? "B" : LetterTokenizer::Letters(id);
  }
  return prompt->reference.empty() ? text : text + " -> " + prompt->reference;
}

constexpr int32_t kEnd = 256;

std::string OfRow(const std::string& line) {
  const auto row = ParseRow(line);
  REQUIRE(row.ok());
  return Text(RowPrompt(*row, Model(), {kEnd}));
}

TEST_CASE("a text is asked as it is, messages as the template renders them") {
  CHECK(Text(TextPrompt("hi", Model())) == "Bhi");
  CHECK(Text(ChatPrompt(R"([{"role": "user", "content": "hi"}])", Model())) == "[U:hi][A:");
  CHECK(
      Text(ChatPrompt(
          R"([{"role":"user","content":"a"},{"role":"assistant","content":"b"},{"role":"user","content":"c"}])",
          Model())) == "[U:a][A:bE][U:c][A:");
}

TEST_CASE("what cannot be asked says why") {
  CHECK(Text(ChatPrompt("[]", Model(""))).starts_with("the base model has no chat template"));
  CHECK(Text(TextPrompt("hi", TextModel())).starts_with("the base model has no tokenizer"));
  CHECK(Text(ChatPrompt("\"hi\"", Model())).starts_with("messages"));
  CHECK(Text(ChatPrompt("[{\"role\": 3}]", Model())).starts_with("messages: "));
  CHECK(Text(ChatPrompt("[", Model())).starts_with("messages: "));
}

TEST_CASE("a row is asked up to its last answer, which is its own") {
  CHECK(OfRow(R"({"prompt": "2+2=", "completion": "4"})") == "B2+2= -> 4");
  CHECK(OfRow(R"({"messages": [{"role":"user","content":"a"},{"role":"assistant","content":"b"},
              {"role":"user","content":"c"},{"role":"assistant","content":"d"}]})") ==
        "[U:a][A:bE][U:c][A: -> d");
  CHECK(OfRow(R"({"input_ids": [65, 66, 67], "labels": [-100, -100, 67]})") == "AB -> C");
  CHECK(OfRow(R"({"input_ids": [65, 67, 256, 10], "labels": [-100, 67, 256, 10]})") == "A -> C");
  CHECK(OfRow(R"({"text": "abc"})").starts_with("a row of text alone asks nothing"));
  const auto tokens = ParseRow(R"({"input_ids": [65, 66], "labels": [-100, 66]})");
  REQUIRE(tokens.ok());
  CHECK(Text(RowPrompt(*tokens, TextModel(), {})).starts_with("the base model has no tokenizer"));
}

// ---- text ----

std::unique_ptr<Tokenizer> Published(const std::string& kind) {
  std::ifstream in(kFolder + kind + ".json");
  auto tokenizer = Tokenizer::FromJson(std::string(std::istreambuf_iterator<char>(in), {}));
  REQUIRE(tokenizer.ok());
  return *std::move(tokenizer);
}

// Every piece is whole characters, and together they are what the library decodes.
TEST_CASE("tokens one by one give the library's text in whole characters") {
  int held = 0;
  for (const std::string kind : {"gemma", "gpt2", "llama2", "llama3", "metaspace_always",
                                 "metaspace_first", "metaspace_never", "odd", "olmo2", "phi3",
                                 "phi4", "phi4_mini", "qwen2", "qwen3", "smollm2", "tekken"}) {
    const auto tokenizer = Published(kind);
    std::ifstream cases(kFolder + kind + ".cases.jsonl");
    for (std::string line; std::getline(cases, line);) {
      const Json expected = Json::parse(line);
      const auto ids = expected["ids"].get<std::vector<int32_t>>();
      INFO(kind << ": " << expected["text"].dump(-1, ' ', true));
      TextStream stream(tokenizer.get(), {});
      std::string text;
      for (size_t i = 0; i < ids.size(); ++i) {
        const std::string piece = stream.Add({ids[i]}, i + 1 == ids.size());
        CHECK_NOTHROW(Json(piece).dump());  // throws where it is not UTF-8
        held += piece.empty() ? 1 : 0;
        text += piece;
      }
      REQUIRE(text == expected["decoded_skipping"].get<std::string>());
    }
  }
  CHECK(held > 100);  // characters of several tokens are among them
}

std::vector<int32_t> Bytes(std::string_view text) {
  std::vector<int32_t> ids;
  for (const char c : text) ids.push_back(static_cast<unsigned char>(c));
  return ids;
}

TEST_CASE("a stop text ends an answer before it, and what may become one is held back") {
  LetterTokenizer letters;
  TextStream stream(&letters, {"END", "\n\n"});
  CHECK(stream.Add(Bytes("ab"), false) == "ab");
  CHECK(stream.Add(Bytes("cE"), false) == "c");
  CHECK(stream.Add(Bytes("Nd\n"), false) == "ENd");
  CHECK(stream.Add(Bytes("eEN"), false) == "\ne");
  CHECK_FALSE(stream.stopped());
  CHECK(stream.Add(Bytes("Dmore"), false) == "");
  CHECK(stream.stopped());
  CHECK(stream.Add(Bytes("x"), true) == "");

  TextStream whole(&letters, {"END"});
  CHECK(whole.Add(Bytes("xEN"), true) == "xEN");  // nothing follows
  TextStream none(nullptr, {});
  CHECK(none.Add({1, 2, 3}, true) == "");
}

}  // namespace
}  // namespace lorad::storage

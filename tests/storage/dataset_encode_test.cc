#include "storage/datasets/dataset_encode.h"

#include <catch2/catch.hpp>

#include "storage/files/errors.h"
#include "tests/storage/letter_tokenizer.h"

namespace lorad::storage {
namespace {

// [U:hi][A:] before an answer, [U:hi][A:yo<e>] after it.
constexpr std::string_view kTemplate =
    "{% for m in messages %}{% if m['role'] == 'assistant' %}[A:{{ m['content'] }}{{ eos_token }}]"
    "{% else %}[U:{{ m['content'] }}]{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}[A:{% endif %}";

TextModel Model(std::string_view chat_template = kTemplate, std::vector<std::string> pairs = {},
                bool ends_texts = false) {
  TextModel model;
  model.tokenizer = std::make_unique<LetterTokenizer>(std::move(pairs), ends_texts);
  model.vocabulary = model.tokenizer->vocabulary_size();
  if (!chat_template.empty()) {
    auto parsed = ChatTemplate::Parse(chat_template);
    REQUIRE(parsed.status().message() == "");
    model.chat_template = std::make_unique<const ChatTemplate>(*std::move(parsed));
  }
  model.tokens.eos_token = "<e>";
  return model;
}

// Each token as its letter (E end, B begin), in parentheses where trained on; or the error.
std::string Text(const absl::StatusOr<EncodedRow>& row) {
  if (!row.ok()) return std::string(row.status().message());
  REQUIRE(row->ids.size() == row->labels.size());
  std::string text;
  bool inside = false;
  for (size_t i = 0; i < row->ids.size(); ++i) {
    const bool trained = row->labels[i] != kNotTrained;
    if (trained) REQUIRE(row->labels[i] == row->ids[i]);
    if (trained != inside) text += trained ? "(" : ")";
    inside = trained;
    const int32_t id = row->ids[i];
    text += id == 256 ? "E" : id == 257 ? "B" : LetterTokenizer::Letters(id);
  }
  return text + (inside ? ")" : "") + (row->truncated ? " cut" : "");
}

absl::StatusOr<EncodedRow> Encode(const std::string& line, const TextModel& model,
                                  EncodeOptions options = {}) {
  const auto row = ParseRow(line);
  REQUIRE(row.status().message() == "");
  absl::StatusOr<EncodedRows> encoded = EncodeRow(*row, model, options);
  if (!encoded.ok()) return encoded.status();
  REQUIRE(encoded->sequences.size() == 1);
  return std::move(encoded->sequences[0]);
}

// All sequences of a row, or the error.
std::string Texts(const std::string& line, const TextModel& model, EncodeOptions options = {}) {
  const auto row = ParseRow(line);
  REQUIRE(row.status().message() == "");
  absl::StatusOr<EncodedRows> encoded = EncodeRow(*row, model, options);
  if (!encoded.ok()) return std::string(encoded.status().message());
  std::string text;
  for (size_t i = 0; i < encoded->sequences.size(); ++i) {
    CHECK(encoded->sequences[i].sequence == static_cast<int32_t>(i));
    text += (i > 0 ? " | " : "") + Text(std::move(encoded->sequences[i]));
  }
  return text + (encoded->skipped > 0 ? " skipped " + std::to_string(encoded->skipped) : "");
}

TEST_CASE("What is trained on, format by format") {
  const TextModel model = Model();
  struct Case {
    std::string line, expected;
  };
  const Case cases[] = {
      {R"({"messages":[{"role":"user","content":"hi"},{"role":"assistant","content":"yo"}]})",
       "[U:hi][A:(yoE])"},
      {R"({"messages":[{"role":"user","content":"a"},{"role":"assistant","content":"b"},)"
       R"({"role":"user","content":"c"},{"role":"assistant","content":"d"}]})",
       "[U:a][A:(bE])[U:c][A:(dE])"},
      {R"({"messages":[{"role":"assistant","content":"b"},{"role":"user","content":"c"}]})",
       "[A:(bE])[U:c]"},
      // An answer that holds the end mark's text.
      {R"({"messages":[{"role":"user","content":"<e>"},{"role":"assistant","content":"<e>"}]})",
       "[U:E][A:(EE])"},
      // Of prompt and completion the completion's turns alone.
      {R"({"prompt":[{"role":"user","content":"a"},{"role":"assistant","content":"b"},)"
       R"({"role":"user","content":"c"}],"completion":[{"role":"assistant","content":"d"}]})",
       "[U:a][A:bE][U:c][A:(dE])"},
      {R"({"prompt":"p: ","completion":"c"})", "Bp: (cE)"},
      {R"({"prompt":"","completion":""})", "B(E)"},
      {R"({"prompt":"p","completion":""})", "Bp(E)"},
      {R"({"text":"ab"})", "B(abE)"},
      {R"({"input_ids":[97,98,99],"labels":[-100,98,-100]})", "a(b)c"},
  };
  for (const Case& c : cases) {
    INFO(c.line);
    CHECK(Text(Encode(c.line, model)) == c.expected);
  }
}

TEST_CASE("A row that ends with the end token gets no second one") {
  const TextModel model = Model();
  CHECK(Text(Encode(R"({"prompt":"p","completion":"c<e>"})", model)) == "Bp(cE)");
  CHECK(Text(Encode(R"({"prompt":"p","completion":"<e>c"})", model)) == "Bp(EcE)");
  CHECK(Text(Encode(R"({"prompt":"p<e>","completion":""})", model)) == "BpE(E)");
  CHECK(Text(Encode(R"({"text":"ab<e>"})", model)) == "B(abE)");
}

// Each case's texts are prompt and completion; a token of several letters stands in brackets.
TEST_CASE("What is trained on begins where the prompt's tokens and the row's part") {
  const TextModel model = Model(kTemplate, {"bb", " c", "ab", "de"});
  struct Case {
    std::string prompt, completion, expected;
  };
  const Case cases[] = {
      {"a:", "cde", "Ba:(c[de]E)"},  // at the border
      {"a: ", "cd", "Ba:([ c]dE)"},  // the prompt's blank goes into the answer's first token
      {"ab", "b", "B(a[bb]E)"},      // the prompt's last token falls apart
      {"abb", "x", "Ba[bb](xE)"},   {"d", "e", "B([de]E)"}, {"a: ", "", "Ba: (E)"},
  };
  for (const Case& c : cases) {
    INFO(c.prompt << c.completion);
    CHECK(Text(Encode("{\"prompt\":\"" + c.prompt + "\",\"completion\":\"" + c.completion + "\"}",
                      model)) == c.expected);
  }
  // Turns too: the template's "[A: " and an answer's "c" share a token, "d" and "e]" at its end.
  const TextModel chat = Model(
      "{% for m in messages %}{% if m['role'] == 'assistant' %}[A: {{ m['content'] }}e]{% else %}"
      "[U:{{ m['content'] }}]{% endif %}{% endfor %}{% if add_generation_prompt %}[A: {% endif %}",
      {" c", "de", "]["});
  CHECK(Text(Encode(R"({"messages":[{"role":"user","content":"a"},{"role":"assistant","content":)"
                    R"("cd"},{"role":"user","content":"b"},{"role":"assistant","content":"x"}]})",
                    chat)) == "[U:a[][]A:([ c][de][][])U:b[][]A: (xe])");
}

TEST_CASE("What the post-processor puts behind a completion is trained on, as in TRL") {
  const TextModel model = Model(kTemplate, {}, /*ends_texts=*/true);
  CHECK(Text(Encode(R"({"prompt":"p","completion":"c"})", model)) == "Bp(cEE)");
  CHECK(Text(Encode(R"({"text":"c"})", model)) == "B(cEE)");
}

TEST_CASE("Alpaca's prompts, to the letter") {
  const TextModel model = Model("");
  CHECK(Encode(R"({"instruction":"Add.","input":"1 2","output":"3"})", model)->text ==
        "Below is an instruction that describes a task, paired with an input that provides further "
        "context. Write a response that appropriately completes the request.\n\n### "
        "Instruction:\nAdd.\n\n### Input:\n1 2\n\n### Response:3<e>");
  const auto row = Encode(R"({"instruction":"Add.","output":"3"})", model);
  CHECK(row->text ==
        "Below is an instruction that describes a task. Write a response that appropriately "
        "completes the request.\n\n### Instruction:\nAdd.\n\n### Response:3<e>");
  CHECK(TrainedTokens(row->labels) == 2);
}

TEST_CASE("Cutting at max_length") {
  const TextModel model = Model();
  const std::string line = R"({"prompt":"abc","completion":"def"})";  // B abc def E
  CHECK(Text(Encode(line, model, {8})) == "Babc(defE)");
  CHECK(Text(Encode(line, model, {8, Overflow::kRefuse})) == "Babc(defE)");
  CHECK(Text(Encode(line, model, {6})) == "Babc(de) cut");
  CHECK(Text(Encode(line, model, {5})) == "Babc(d) cut");
  CHECK(Text(Encode(line, model, {4})) ==
        "no trained token is left once the row's 8 tokens are cut to the 4 of max_length");
  CHECK(Text(Encode(line, model, {7, Overflow::kRefuse})) ==
        "the row has 8 tokens, more than the 7 of max_length");
}

TEST_CASE("Rows that do not do") {
  const std::string messages =
      R"({"messages":[{"role":"user","content":"hi"},{"role":"assistant","content":"yo"}]})";
  const TextModel model = Model();
  struct Case {
    std::string line, expected;
  };
  const Case cases[] = {
      {R"({"input_ids":[97],"labels":[97]})",
       "no token of the row is trained on (the first one never is)"},
      {R"({"input_ids":[97,98],"labels":[97,-100]})",
       "no token of the row is trained on (the first one never is)"},
      {R"({"input_ids":[97,258],"labels":[-100,97]})",
       "token id 258 at position 1 is outside of the base model's vocabulary of 258"},
      {R"({"input_ids":[97,98],"labels":[-100,999]})",
       "token id 999 at position 1 is outside of the base model's vocabulary of 258"},
  };
  for (const Case& c : cases) {
    INFO(c.line);
    CHECK(Text(Encode(c.line, model)) == c.expected);
  }

  TextModel bare = Model("");
  CHECK(Text(Encode(messages, bare)) ==
        "the base model has no chat template: use rows of prompt and completion strings, or a "
        "model that has one");
  bare.tokens.eos_token.clear();
  CHECK(Text(Encode(R"({"text":"a"})", bare)) ==
        "the base model names no end-of-text token (eos_token in tokenizer_config.json), which "
        "ends rows of this format");
  TextModel no_tokenizer;
  no_tokenizer.vocabulary = 100;
  CHECK(Text(Encode(R"({"text":"a"})", no_tokenizer)) ==
        "the base model's directory has no tokenizer.json: it takes rows of input_ids and labels "
        "alone");
  CHECK(Text(Encode(R"({"input_ids":[97,98],"labels":[97,98]})", no_tokenizer)) == "(ab)");
}

TEST_CASE("Templates that rewrite what was said before") {
  const std::string two = R"({"messages":[{"role":"user","content":"a"},{"role":"assistant",)"
                          R"("content":"b"},{"role":"assistant","content":"c"}]})";
  // The number of messages stands in front.
  CHECK(Text(Encode(two, Model("{{ messages | length }}{% for m in messages %}{{ m['content'] }}"
                               "{% endfor %}"))) ==
        "turn 1: the chat template renders the conversation with the answer otherwise than before "
        "it, so what to train on cannot be told");
  // Only the last answer is kept whole.
  CHECK(Text(Encode(two, Model("{% for m in messages %}{% if loop.last %}{{ m['content'] }}{% else "
                               "%}-{% endif %}{% endfor %}"))) ==
        "turn 1: the chat template renders the conversation with the answer otherwise than before "
        "it, so what to train on cannot be told");
  // The end mark moves behind the last turn: a sequence for each, as the model would have seen it.
  CHECK(Texts(two, Model("{% for m in messages %}{{ m['content'] }}{% endfor %}"
                         "{% if not add_generation_prompt %}.{% endif %}")) == "a(b.) | ab(c.)");
  CHECK(Text(Encode(two, Model("{{ raise_exception('roles must alternate') }}")))
            .find("roles must alternate") != std::string::npos);
}

// Thoughts (in round brackets of the row) are kept in the last answer alone, as Qwen3 does.
constexpr std::string_view kThinking =
    "{% for m in messages %}{% if m['role'] == 'assistant' %}[A:{% if loop.last %}<"
    "{{ m['reasoning_content'] }}>{% endif %}{{ m['content'] }}]{% else %}[U:{{ m['content'] }}]"
    "{% endif %}{% endfor %}{% if add_generation_prompt %}[A:{% endif %}";

TEST_CASE("A conversation whose earlier turns are rewritten is a sequence for each answer") {
  const TextModel model = Model(kThinking);
  const auto answer = [](const std::string& content, const std::string& more = "") {
    return R"({"role":"assistant","content":")" + content + R"(","reasoning_content":"t")" + more +
           "}";
  };
  const std::string user = R"({"role":"user","content":"u"})";
  const auto row = [](const std::string& turns) { return R"({"messages":[)" + turns + "]}"; };
  const std::string both = row(user + "," + answer("b") + "," + user + "," + answer("ccc"));
  CHECK(Texts(both, model) == "[U:u][A:(<t>b]) | [U:u][A:b][U:u][A:(<t>ccc])");
  CHECK(Texts(row(user + "," + answer("b")), model) == "[U:u][A:(<t>b])");
  // Only what is trained on is asked for.
  CHECK(Texts(row(user + "," + answer("b", R"(,"weight":0)") + "," + user + "," + answer("c")),
              model) == "[U:u][A:b][U:u][A:(<t>c])");
  CHECK(Texts(row(user + "," + answer("b") + "," + user + "," + answer("c", R"(,"weight":0)")),
              model) == "[U:u][A:(<t>b])");
  CHECK(Texts(R"({"prompt":[)" + user + "," + answer("b") + "," + user + R"(],"completion":[)" +
                  answer("c") + "]}",
              model) == "[U:u][A:b][U:u][A:(<t>c])");
  CHECK(Texts(row(user + "," + answer("b", R"(,"weight":0)")), model) ==
        "no token of the row is trained on (the first one never is)");
  // All tokens: the whole conversation, once.
  CHECK(Texts(both, model, {.train_on = TrainOn::kAll}) == "([U:u][A:b][U:u][A:<t>ccc])");
  // Each is cut, or skipped, by itself.
  CHECK(Texts(both, model, {10}) ==
        "no trained token is left once the row's 25 tokens are cut to the 10 of max_length");
  CHECK(Texts(both, model, {10, Overflow::kSkip}) == "[U:u][A:(<t) cut skipped 1");

  std::vector<int64_t> rows;
  DatasetEncoder encoder(model, {}, [&](int64_t at, int64_t, const EncodedRow&) {
    rows.push_back(at);
    return absl::OkStatus();
  });
  DatasetScanner scanner({}, [&](int64_t at, int64_t line, const DatasetRow& content) {
    return encoder.Encode(at, line, content);
  });
  REQUIRE(scanner.Add(both + "\n" + row(user + "," + answer("b")) + "\n").ok());
  DatasetReport report = scanner.Finish();
  encoder.Complete(&report);
  CHECK(report.rows == 2);
  CHECK(report.sequences == 3);
  CHECK(rows == std::vector<int64_t>{0, 0, 1});
}

TEST_CASE("What stands between generation marks is trained on") {
  const TextModel model = Model(
      "{% for m in messages %}{% if m['role'] == 'assistant' %}[A:{% generation %}"
      "{{ m['content'] }}.{% endgeneration %}]{% else %}[U:{{ m['content'] }}]{% endif %}"
      "{% endfor %}{% if add_generation_prompt %}[A:{% endif %}",
      {":c", ".]"});
  const std::string head =
      R"({"messages":[{"role":"user","content":"a"},{"role":"assistant","content":"c"},)"
      R"({"role":"user","content":"b"},{"role":"assistant","content":"d")";
  CHECK(Texts(head + "}]}", model) == "[U:a][A([:c][.]])[U:b][A:(d[.]])");
  CHECK(Texts(head + R"(,"weight":0}]})", model) == "[U:a][A([:c][.]])[U:b][A:d[.]]");
  CHECK(Texts(head + "}]}", model, {.train_on = TrainOn::kAll}) ==
        "([U:a][A[:c][.]][U:b][A:d[.]])");
  // Of a completion all that it adds.
  CHECK(Texts(R"({"prompt":[{"role":"user","content":"a"}],"completion":[{"role":"assistant",)"
              R"("content":"d"}]})",
              model) == "[U:a][A:(d[.]])");

  CHECK(Texts(head + "}]}", Model("{% for m in messages %}{{ m['content'] }}{% if m['x'] %}"
                                  "{% generation %}x{% endgeneration %}{% endif %}{% endfor %}")) ==
        "the chat template has {% generation %} marks, and they mark nothing in this conversation");
  CHECK(Texts(R"({"messages":[{"role":"assistant","content":"b","weight":0},)"
              R"({"role":"assistant","content":"c"}]})",
              Model("{% for m in messages %}{% generation %}{{ m['content'] }}{% endgeneration %}"
                    "{% endfor %}{% if not add_generation_prompt %}.{% endif %}")) ==
        "turn 0: the chat template renders it otherwise once more turns follow, so what its weight "
        "of 0 takes out cannot be told");

  // Marks that begin within the generation prompt: a weight of 0 takes its own turn out all the same.
  const TextModel early = Model(
      "{% for m in messages %}{% if m['role'] == 'assistant' %}[A{% generation %}:"
      "{{ m['content'] }}]{% endgeneration %}{% else %}[U:{{ m['content'] }}]{% endif %}"
      "{% endfor %}{% if add_generation_prompt %}[A:{% endif %}");
  const auto weighed = [&](const std::string& first, const std::string& second) {
    return Texts(R"({"messages":[{"role":"user","content":"a"},{"role":"assistant","content":"c")" +
                     first + R"(},{"role":"assistant","content":"d")" + second + "}]}",
                 early);
  };
  const std::string none = R"(,"weight":0)";
  CHECK(weighed("", "") == "[U:a][A(:c])[A(:d])");
  CHECK(weighed("", none) == "[U:a][A(:c])[A:d]");
  CHECK(weighed(none, R"(,"weight":1)") == "[U:a][A:c][A(:d])");
  CHECK(weighed(none, none) == "no token of the row is trained on (the first one never is)");
}

TEST_CASE("A row shown with its trained text marked") {
  const TextModel model = Model();
  const auto row =
      Encode(R"({"messages":[{"role":"user","content":"hi"},{"role":"assistant","content":"yo"}]})",
             model);
  REQUIRE(row.ok());
  CHECK(MarkTrained(*row) == "[U:hi][A:«yo<e>]»");
  CHECK(MarkTrained(*row, 11) == "[U:hi][A:«…");
  CHECK(MarkTrained(*row, 10) == "[U:hi][A:…");  // not inside of a character
}

TEST_CASE("A file is encoded row by row and counted") {
  const TextModel model = Model();
  std::vector<int64_t> rows;
  DatasetEncoder encoder(model, {5}, [&](int64_t row, int64_t, const EncodedRow&) {
    rows.push_back(row);
    return absl::OkStatus();
  });
  DatasetScanner scanner({}, [&](int64_t row, int64_t line, const DatasetRow& content) {
    return encoder.Encode(row, line, content);
  });
  REQUIRE(scanner
              .Add("{\"prompt\":\"a\",\"completion\":\"b\"}\n"
                   "{\"prompt\":\"aaaaaa\",\"completion\":\"b\"}\n"
                   "{\"prompt\":\"a\",\"completion\":\"bcdef\"}\n")
              .ok());
  DatasetReport report = scanner.Finish();
  encoder.Complete(&report);
  CHECK(rows == std::vector<int64_t>{0, 2});
  CHECK(report.rows == 3);
  CHECK(report.tokens == 4 + 5);
  CHECK(report.trained_tokens == 2 + 3);
  CHECK(report.truncated_rows == 1);
  CHECK(report.longest_tokens == 5);
  CHECK(report.sample == "a«b<e>»");
  REQUIRE(report.errors.size() == 1);
  CHECK(report.errors[0].line == 2);
}

DatasetReport EncodeLines(const std::vector<std::string>& lines, EncodeOptions options,
                          std::vector<int64_t>* rows) {
  const TextModel model = Model();
  DatasetEncoder encoder(model, options, [&](int64_t row, int64_t, const EncodedRow&) {
    rows->push_back(row);
    return absl::OkStatus();
  });
  DatasetScanner scanner({.errors_listed = 2}, [&](int64_t row, int64_t line, const auto& content) {
    return encoder.Encode(row, line, content);
  });
  for (const std::string& line : lines) REQUIRE(scanner.Add(line + "\n").ok());
  DatasetReport report = scanner.Finish();
  encoder.Complete(&report);
  return report;
}

TEST_CASE("Rows without a trained token are all named, or skipped and counted") {
  const std::string good = R"({"prompt":"a","completion":"b"})";
  const std::string long_prompt = R"({"prompt":"aaaaaa","completion":"b"})";
  const std::vector<std::string> lines = {long_prompt, good, long_prompt, long_prompt,
                                          "",          good, long_prompt};
  std::vector<int64_t> rows;
  const DatasetReport named = EncodeLines(lines, {5}, &rows);
  CHECK(named.error_count == 4);
  CHECK(named.errors.size() == 2);
  CHECK(ToText(named.untrained_lines, 100) == "1, 3-4, 7");
  CHECK(ToText(named.untrained_lines, 7) == "1, 3-4 and 1 more");
  CHECK(rows == std::vector<int64_t>{1, 4});

  rows.clear();
  const DatasetReport skipped = EncodeLines(lines, {5, Overflow::kSkip}, &rows);
  CHECK(skipped.error_count == 0);
  CHECK(skipped.rows == 6);
  CHECK(skipped.skipped_rows == 4);
  CHECK(skipped.truncated_rows == 0);  // of those that are left
  CHECK(skipped.untrained_lines.empty());
  CHECK(rows == std::vector<int64_t>{1, 4});

  const DatasetReport none = EncodeLines({long_prompt, long_prompt}, {5, Overflow::kSkip}, &rows);
  REQUIRE(none.error_count == 1);
  CHECK(none.errors[0].reason ==
        "no row is left: of none of the 2 is a token trained on; raise max_length");
  // Another mistake is one with SKIP too.
  CHECK(EncodeLines({good, R"({"prompt":"a"})"}, {5, Overflow::kSkip}, &rows).error_count == 1);
}

TEST_CASE("All tokens trained on") {
  const TextModel model = Model();
  const EncodeOptions all{.train_on = TrainOn::kAll};
  struct Case {
    std::string line, expected;
  };
  const Case cases[] = {
      {R"({"messages":[{"role":"user","content":"hi"},{"role":"assistant","content":"yo"}]})",
       "([U:hi][A:yoE])"},
      {R"({"prompt":[{"role":"user","content":"a"}],"completion":[{"role":"assistant",)"
       R"("content":"d"}]})",
       "([U:a][A:dE])"},
      {R"({"prompt":"p: ","completion":"c"})", "B(p: cE)"},
      {R"({"text":"ab"})", "B(abE)"},
      {R"({"input_ids":[97,98,99],"labels":[-100,98,-100]})", "a(b)c"},
  };
  for (const Case& c : cases) {
    INFO(c.line);
    CHECK(Text(Encode(c.line, model, all)) == c.expected);
  }
}

}  // namespace
}  // namespace lorad::storage

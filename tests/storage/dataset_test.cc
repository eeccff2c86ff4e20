#include "storage/datasets/dataset.h"

#include <catch2/catch.hpp>
#include <iostream>
#include <random>

#include "storage/files/errors.h"
#include "storage/files/files.h"
#include "storage/files/sha256.h"
#include "tests/storage/temp_directory.h"

namespace lorad::storage {
namespace {

DatasetReport Scan(std::string_view bytes, size_t chunk = 1 << 20, DatasetLimits limits = {},
                   DatasetScanner::OnRow on_row = nullptr) {
  DatasetScanner scanner(limits, std::move(on_row));
  for (size_t at = 0; at < bytes.size(); at += chunk) {
    const absl::Status status = scanner.Add(bytes.substr(at, chunk));
    if (!status.ok()) {
      DatasetReport report = scanner.report();
      report.errors.push_back({-1, std::string(status.message())});
      return report;
    }
  }
  return scanner.Finish();
}

// "text 2 rows", then a line for each error.
std::string Text(const DatasetReport& report) {
  std::string text = report.format ? std::string(ToText(*report.format)) : "none";
  text += " " + std::to_string(report.rows) + " rows";
  for (const RowError& error : report.errors) {
    text += "\n" + std::to_string(error.line) + ": " + error.reason;
  }
  return text;
}

TEST_CASE("Rows of every format") {
  struct Case {
    std::string line;
    DatasetFormat format;
    size_t kind;
  };
  const Case cases[] = {
      {R"({"messages":[{"role":"user","content":"a"},{"role":"assistant","content":"b"}]})",
       DatasetFormat::kMessages, 0},
      {R"({"prompt":"a","completion":"b"})", DatasetFormat::kPromptCompletion, 1},
      {R"({"prompt":[{"role":"user","content":"a"}],"completion":[{"role":"assistant","content":"b"}]})",
       DatasetFormat::kPromptCompletion, 2},
      {R"({"instruction":"a","input":"b","output":"c"})", DatasetFormat::kInstruction, 3},
      {R"({"instruction":"a","output":"c"})", DatasetFormat::kInstruction, 3},
      {R"({"instruction":"a","input":null,"output":"c"})", DatasetFormat::kInstruction, 3},
      {R"({"text":"a"})", DatasetFormat::kText, 4},
      {R"({"input_ids":[1,2],"labels":[-100,2]})", DatasetFormat::kTokens, 5},
      // Keys of several formats: the first in the page's table.
      {R"({"instruction":"a","input":"","output":"c","text":"all"})", DatasetFormat::kInstruction,
       3},
      {R"({"prompt":"x","messages":[{"role":"assistant","content":"b"}]})",
       DatasetFormat::kMessages, 0},
      {R"({"text":"a","input_ids":[1,2],"labels":[1,2]})", DatasetFormat::kTokens, 5},
      // Keys of none are ignored, whatever they hold.
      {R"({"id":1.5e3,"meta":{"text":[{"role":1}],"deep":[[[]]]},"text":"a","tags":["x",null]})",
       DatasetFormat::kText, 4},
  };
  for (const Case& c : cases) {
    INFO(c.line);
    const auto row = ParseRow(c.line);
    REQUIRE(row.status().message() == "");
    CHECK(FormatOf(*row) == c.format);
    CHECK(row->index() == c.kind);
  }
}

std::string Json(const ChatMessage& message) { return jinja::ToJson(message.fields, -1).value(); }

TEST_CASE("Contents arrive as written") {
  const auto messages =
      ParseRow(R"({"messages":[{"content":"a\né\u00e9\ud83d\ude00","role":"assistant"}]})");
  REQUIRE(messages.ok());
  CHECK(std::get<MessagesRow>(*messages).messages[0].role == "assistant");
  CHECK(Json(std::get<MessagesRow>(*messages).messages[0]) ==
        R"({"content": "a\néé😀", "role": "assistant"})");
  const auto tokens = ParseRow(R"({"labels":[-100,7],"input_ids":[0,2147483647]})");
  REQUIRE(tokens.ok());
  CHECK(std::get<TokensRow>(*tokens).input_ids == std::vector<int32_t>{0, 2147483647});
  CHECK(std::get<TokensRow>(*tokens).labels == std::vector<int32_t>{-100, 7});
}

TEST_CASE("Messages as they come") {
  const auto row = ParseRow(
      R"({"conversations":[{"from":"human","value":"a"},{"from":"gpt","value":"b","weight":0}]})");
  REQUIRE(row.status().message() == "");
  CHECK(FormatOf(*row) == DatasetFormat::kMessages);
  const std::vector<ChatMessage>& turns = std::get<MessagesRow>(*row).messages;
  CHECK(Json(turns[0]) == R"({"role": "user", "content": "a"})");
  CHECK(turns[0].trained);
  CHECK(turns[1].role == "assistant");
  CHECK_FALSE(turns[1].trained);

  const auto calls = ParseRow(
      R"({"messages":[{"role":"user","content":[{"type":"text","text":"a"}],"name":"x"},)"
      R"({"role":"assistant","content":null,"thinking":"t","tool_calls":[{"type":"function",)"
      R"("function":{"name":"f","arguments":{"b":[1,2.5,true,null]}}}]},)"
      R"({"role":"tool","content":"5","tool_call_id":"1"},{"role":"assistant","content":"c"}],)"
      R"("tools":"[{\"type\":\"function\"}]","chat_template_kwargs":{"enable_thinking":false}})");
  REQUIRE(calls.status().message() == "");
  const auto& content = std::get<MessagesRow>(*calls);
  REQUIRE(content.messages.size() == 4);
  CHECK(Json(content.messages[0]) ==
        R"({"role": "user", "content": [{"type": "text", "text": "a"}], "name": "x"})");
  CHECK(Json(content.messages[1]) ==
        R"({"role": "assistant", "content": null, "thinking": "t", "tool_calls": [{"type": )"
        R"("function", "function": {"name": "f", "arguments": {"b": [1, 2.5, true, null]}}}]})");
  CHECK(jinja::ToJson(content.inputs.tools, -1) == R"([{"type": "function"}])");
  REQUIRE(content.inputs.variables.size() == 1);
  CHECK(content.inputs.variables[0].first == "enable_thinking");
}

TEST_CASE("Bad rows, each with one clear reason") {
  struct Case {
    std::string line, reason;
  };
  const Case cases[] = {
      {"{",
       "not JSON at column 2: syntax error while parsing object key - unexpected end of input; "
       "expected string literal; each row is one whole line"},
      {R"({"text": é})",
       "not JSON at column 10: syntax error while parsing value - invalid literal; "
       "last read: '\"text\": '"},
      {R"({"text":"a"} x)",
       "not JSON at column 14: syntax error while parsing value - invalid "
       "literal; last read: '\"a\"} x'; expected end of input"},
      {"[1]", "a row must be an object, not a list"},
      {"7", "a row must be an object"},
      {"\"text\"", "a row must be an object"},
      {std::string("{\"text\":\"a\"}\0junk", 17), "a zero byte at column 13"},
      {"{\"text\":\"é\xff\"}", "not UTF-8 at column 11"},
      {"{\"text\":\"\xed\xa0\x80\"}", "not UTF-8 at column 10"},      // a surrogate
      {"{\"text\":\"\xc0\xaf\"}", "not UTF-8 at column 10"},          // overlong
      {"{\"text\":\"\xf4\x90\x80\x80\"}", "not UTF-8 at column 10"},  // beyond U+10FFFF
      {"\xEF\xBB\xBF{\"text\":\"a\"}",
       "a byte order mark at column 1; it may stand at the file's start alone"},
      {"{}",
       "unknown format: the row's keys are (); expected messages; conversations; "
       "prompt and completion; instruction and output; text; or input_ids and labels; columns of "
       "other names are renamed as rows are stored, by --columns prompt=question,completion=answer "
       "or Python's columns"},
      {R"({"question":"a","answer":"b"})",
       "unknown format: the row's keys are (question, answer); expected messages; conversations; "
       "prompt and "
       "completion; instruction and output; text; or input_ids and labels; columns of other names "
       "are renamed as rows are stored, by --columns prompt=question,completion=answer or Python's "
       "columns"},
      {"{\"" + std::string(39, 'k') + "é\":1}",
       "unknown format: the row's keys are (" + std::string(39, 'k') +
           "); expected messages; conversations; prompt and completion; instruction and output; "
           "text; or "
           "input_ids and labels; columns of other names are renamed as rows are stored, by "
           "--columns prompt=question,completion=answer or Python's columns"},
      {R"({"text":"a","text":"b"})", "key \"text\" stands twice"},
      {R"({"text":1})", "text must be a string"},
      {R"({"text":null})", "text must be a string"},
      {R"({"instruction":"a","input":3,"output":"b"})", "input must be a string"},
      {R"({"messages":"a"})", "messages must be a list of one or more messages"},
      {R"({"messages":[]})", "messages must be a list of one or more messages"},
      {R"({"messages":["a"]})", "messages[0] must be a message object"},
      {R"({"messages":[[]]})", "messages[0] must not be a list"},
      {R"({"messages":[{"role":"user"}]})", "messages[0] has no content"},
      {R"({"messages":[{"role":"user","content":"a"},{"content":"a"}]})",
       "messages[1] has no role"},
      {R"({"messages":[{"role":"assistant","content":["a"]}]})",
       "messages[0].content[0] must be an object with a \"type\""},
      {R"({"messages":[{"role":"assistant","content":[{"type":"image","url":"x"}]}]})",
       "messages[0].content[0] is of type \"image\"; parts of type \"text\" alone are implemented"},
      {R"({"messages":[{"role":"assistant","content":[{"type":"text"}]}]})",
       "messages[0].content[0].text must be a string"},
      {R"({"messages":[{"role":"assistant","content":5}]})",
       "messages[0].content must be a string, null or a list of parts, not 5"},
      {R"({"messages":[{"role":7,"content":""}]})", "messages[0].role must be a string, not 7"},
      {R"({"messages":[{"role":"assistant","content":"a","content":"b"}]})",
       "messages[0] has \"content\" twice"},
      {R"({"messages":[{"role":"assistant","tool_calls":[]}]})", "messages[0] has no content"},
      {R"({"messages":[{"role":"assistant","content":"","tool_calls":{}}]})",
       "messages[0].tool_calls must be a list"},
      {R"({"messages":[{"role":"assistant","content":"","tool_calls":[{"function":{}}]}]})",
       "messages[0].tool_calls[0].function.name must be a string"},
      {R"({"messages":[{"role":"user","content":""},{"role":"assistant","content":null,)"
       R"("tool_calls":[{"function":{"name":"f","arguments":"{a: 1}"}}]}]})",
       "messages[1].tool_calls[0].function.arguments is not JSON: \"{a: 1}\""},
      {R"({"messages":[{"role":"assistant","content":"","weight":0.5}]})",
       "messages[0].weight must be 0 or 1, got 0.5"},
      {R"({"messages":[{"role":"assistant","content":"","weight":true}]})",
       "messages[0].weight must be 0 or 1, got true"},
      {R"({"messages":[{"role":"assistant","content":"","n":{"a":1,"a":2}}]})",
       "messages[0] has \"a\" twice"},
      {R"({"messages":[{"role":"assistant","content":"","n":18446744073709551615}]})",
       "messages has a number that does not fit in 64 bits"},
      {R"({"messages":[{"role":"assistant","content":""}],"tools":"[{"})", "tools is not JSON"},
      {R"({"messages":[{"role":"assistant","content":""}],"tools":["f"]})",
       "tools must be a list of objects, or that as JSON in a string"},
      {R"({"messages":[{"role":"assistant","content":""}],"chat_template":"{{ x }}"})",
       "a row cannot bring a chat_template: all rows are rendered by the model's (lora model add "
       "--chat-template FILE)"},
      {R"({"messages":[{"role":"assistant","content":""}],"chat_template_kwargs":{"tools":1}})",
       "chat_template_kwargs must not have \"tools\""},
      {R"({"conversations":[{"from":"bot","value":"a"}]})",
       "conversations[0].from must be human, user, gpt, assistant, system, tool or observation, "
       "got \"bot\""},
      {R"({"conversations":[{"from":"human","value":"a"}]})",
       "conversations has no turn of role \"assistant\" to train on"},
      {R"({"conversations":[{"from":"gpt"}]})", "conversations[0] has no content"},
      {R"({"messages":[{"role":"user","content":"a"}]})",
       "messages has no turn of role \"assistant\" to train on"},
      {R"({"prompt":"a","completion":[{"role":"assistant","content":"b"}]})",
       "prompt and completion must both be strings or both lists of messages"},
      {R"({"prompt":[{"role":"user","content":"a"}],"completion":[{"role":"user","content":"b"}]})",
       "completion has no turn of role \"assistant\" to train on"},
      {R"({"prompt":1,"completion":"b"})",
       "prompt must be a string or a list of one or more messages"},
      {R"({"input_ids":[1,2]})",
       "labels is missing: it must be a list of one or more whole numbers"},
      {R"({"input_ids":[],"labels":[]})", "input_ids must be a list of one or more whole numbers"},
      {R"({"input_ids":[1,2],"labels":[1]})",
       "input_ids has 2 entries and labels 1; they must be aligned"},
      {R"({"input_ids":[1,2.5],"labels":[1,2]})", "input_ids[1] must be a whole number"},
      {R"({"input_ids":[1,"2"],"labels":[1,2]})", "input_ids[1] must be a whole number"},
      {R"({"input_ids":[-1,2],"labels":[1,2]})", "input_ids[0] is -1"},
      {R"({"input_ids":[1,2],"labels":[-1,2]})", "labels[0] is -1; a label is a token id, or -100"},
      {R"({"input_ids":[1,2147483648],"labels":[1,2]})", "input_ids[1] is out of range"},
      {R"({"input_ids":[1,99999999999999999999],"labels":[1,2]})",
       "input_ids[1] must be a whole number"},
      {"{\"text\":" + std::string(40, '[') + std::string(40, ']') + "}",
       "nested deeper than 32 levels"},
  };
  for (const Case& c : cases) {
    INFO(c.line);
    const auto row = ParseRow(c.line);
    REQUIRE_FALSE(row.ok());
    CHECK(row.status().message() == c.reason);
    CHECK(row.status().GetPayload(Absl(kReasonPayload)) == absl::Cord("DATASET_INVALID"));
  }
}

TEST_CASE("Files: ends of lines, byte order mark, blank lines, the last line without its end") {
  struct Case {
    std::string bytes, expected;
  };
  const std::string a = R"({"text":"a"})", p = R"({"prompt":"a","completion":"b"})";
  const Case cases[] = {
      {"", "none 0 rows\n0: the file has no rows"},
      {"\n\r\n  \t\n", "none 0 rows\n0: the file has no rows"},
      {"\xEF\xBB\xBF", "none 0 rows\n0: the file has no rows"},
      {a, "text 1 rows"},
      {a + "\n", "text 1 rows"},
      {"\xEF\xBB\xBF" + a + "\r\n\r\n" + a + "\r\n", "text 2 rows"},
      {a + "\n\n{\n" + a + "\n7",
       "text 4 rows\n3: not JSON at column 2: syntax error while parsing object key - unexpected "
       "end "
       "of input; expected string literal; each row is one whole line\n5: a row must be an object"},
      {a + "\n" + p + "\n",
       "text 2 rows\n2: a row of prompt and completion strings in a file of text (line 1); one "
       "file "
       "has one format"},
      {"x\n" + p + "\n" + a,
       "prompt_completion 3 rows\n1: not JSON at column 1: syntax error while parsing value - "
       "invalid "
       "literal; last read: 'x'\n3: a row of text in a file of prompt and completion strings (line "
       "2); one file has one format"},
      {a + "\n\xEF\xBB\xBF" + a,
       "text 2 rows\n2: a byte order mark at column 1; it may stand at the file's start alone"},
  };
  for (const Case& c : cases) {
    INFO(c.bytes);
    CHECK(Text(Scan(c.bytes)) == c.expected);
    CHECK(Text(Scan(c.bytes, 1)) == c.expected);
    CHECK(Text(Scan(c.bytes, 7)) == c.expected);
  }
  CHECK(Scan(a + "\r\n" + a).size_bytes == 26);
}

TEST_CASE("Limits") {
  DatasetLimits limits;
  limits.row_bytes = 20;
  limits.rows = 3;
  limits.file_bytes = 100;
  limits.messages = 1;
  limits.errors_listed = 2;
  const std::string a = R"({"text":"a"})", exact = R"({"text":"12345678"}  )";
  REQUIRE(exact.size() == 21);
  for (size_t chunk : {1, 5, 1000}) {
    CHECK(Text(Scan(exact.substr(0, 20) + "\r\n" + a, chunk, limits)) == "text 2 rows");
    CHECK(Text(Scan(exact + "\n" + a, chunk, limits)) == "text 2 rows\n1: longer than 20 bytes");
    CHECK(Text(Scan(std::string(70, '{') + "\n" + a + "\n", chunk, limits)) ==
          "text 2 rows\n1: longer than 20 bytes");
    CHECK(Text(Scan(a + "\n" + a + "\n" + a + "\n" + a + "\n", chunk, limits)) ==
          "text 3 rows\n-1: the file has more than 3 rows; split it");
    CHECK(Text(Scan(std::string(101, '\n'), chunk, limits)) ==
          "none 0 rows\n-1: the file is longer than 100 bytes; split it");
  }
  CHECK(ParseRow(exact, limits).status().message() == "longer than 20 bytes");
  limits.row_bytes = 200;
  CHECK(ParseRow(R"({"messages":[{"role":"a","content":""},{"role":"a","content":""}]})", limits)
            .status()
            .message() == "messages has more than 1 messages");
  limits.values = {.values = 4, .keys = 2};
  limits.messages = 8;
  const std::string three = R"({"messages":[{"role":"a","content":"","c":1}]})";
  CHECK(ParseRow(three, limits).status().message() == "messages has an object of more than 2 keys");
  limits.values.keys = 3;
  limits.values.values = 5;
  CHECK(ParseRow(three, limits).status().message() ==
        "messages has no turn of role \"assistant\" to train on");
  limits.values.values = 4;
  CHECK(ParseRow(three, limits).status().message() == "messages has more than 4 values");
  const DatasetReport report = Scan("1\n2\n3\n", 1000, limits);
  CHECK(report.errors.size() == 2);
  CHECK(report.error_count == 3);
  CHECK(ToStatus(report).message() == "line 1: a row must be an object (and 2 more bad rows)");
  CHECK(ToStatus(Scan("")).message() == "the file has no rows");
  CHECK(ToStatus(Scan(a)).ok());
}

TEST_CASE("Good rows are handed on with their numbers; what comes back is the row's error") {
  std::vector<std::pair<int64_t, int64_t>> seen;
  const DatasetReport report = Scan("{\"text\":\"a\"}\n\nbad\n{\"text\":\"b\"}\n", 3, {},
                                    [&](int64_t row, int64_t line, const DatasetRow& content) {
                                      seen.emplace_back(row, line);
                                      return std::get<TextRow>(content).text == "b"
                                                 ? absl::InvalidArgumentError("no b")
                                                 : absl::OkStatus();
                                    });
  CHECK(seen == std::vector<std::pair<int64_t, int64_t>>{{0, 1}, {2, 4}});
  REQUIRE(report.errors.size() == 2);
  CHECK(report.errors[1].line == 4);
  CHECK(report.errors[1].reason == "no b");
}

TEST_CASE("A file on disk, and one that is not there") {
  const TempDirectory directory;
  const std::string rows = "{\"text\":\"a\"}\n{\"text\":\"b\"}\n";
  const std::string path = directory.Write("a.jsonl", rows);
  const std::string sha256 = Sha256::Of(rows);
  const auto report = ScanDataset(RealFiles(), path, sha256);
  REQUIRE(report.ok());
  CHECK(Text(*report) == "text 2 rows");
  CHECK(absl::IsNotFound(ScanDataset(RealFiles(), path + "x", sha256).status()));
  // Other bytes, whether they are rows or not, and within the limits or not.
  for (const std::string& other : {rows + rows, std::string("{\n"), rows + std::string(99, ' ')}) {
    directory.Write("a.jsonl", other);
    const DatasetLimits limits{.file_bytes = std::ssize(rows)};
    const auto changed = ScanDataset(RealFiles(), path, sha256, limits);
    CHECK(ReasonOf(changed.status()) == "DATASET_CHANGED");
  }
}

// Valid rows with bytes changed, cut or doubled: always a row or a reason, never anything else, and
// the same whatever the chunks.
TEST_CASE("Damaged files") {
  const uint32_t fresh = std::random_device()();
  std::cout << "random seed " << fresh << "\n";
  const std::string good =
      "{\"messages\":[{\"role\":\"user\",\"content\":\"é\"},{\"role\":\"assistant\",\"content\":"
      "\"b\\u00e9\"}]}\r\n{\"prompt\":\"a\",\"completion\":\"b\"}\n{\"input_ids\":[1,2],\"labels\":"
      "[-100,2]}\n{\"text\":\"x\"}\n";
  for (uint32_t seed : {7u, fresh}) {
    std::mt19937 random(seed);
    INFO("seed " << seed);
    for (int i = 0; i < 2000; ++i) {
      std::string bytes = good;
      for (size_t n = 1 + random() % 4; n > 0; --n) {
        const size_t at = random() % bytes.size();
        switch (random() % 3) {
          case 0:
            bytes[at] = static_cast<char>(random());
            break;
          case 1:
            bytes.erase(at, 1 + random() % 5);
            break;
          default:
            bytes.insert(at, bytes.substr(random() % bytes.size(), random() % 9));
        }
        if (bytes.empty()) bytes = "{";
      }
      const std::string whole = Text(Scan(bytes));
      REQUIRE(Text(Scan(bytes, 1 + random() % 40)) == whole);
    }
  }
}

}  // namespace
}  // namespace lorad::storage

#include "storage/datasets/chat_template.h"

#include <fstream>

#include "catch2/catch.hpp"
#include "nlohmann/json.hpp"
#include "storage/files/errors.h"

namespace lorad::storage {
namespace {

using Json = nlohmann::json;

const ChatTemplateTokens kTokens = {"<s>", "</s>", "<unk>", "<pad>"};

absl::StatusOr<std::string> Render(const std::string& text,
                                   const std::vector<ChatMessage>& messages = {},
                                   const ChatTemplateLimits& limits = {}) {
  const auto parsed = ChatTemplate::Parse(text);
  if (!parsed.ok()) return parsed.status();
  absl::StatusOr<RenderedChat> chat = parsed->Render(messages, {}, false, kTokens, limits);
  if (!chat.ok()) return chat.status();
  return chat->text;
}

TEST_CASE("templates print what jinja2 prints") {
  std::ifstream cases("tests/storage/testdata/templates.jsonl");
  int count = 0;
  for (std::string line; std::getline(cases, line); ++count) {
    const Json expected = Json::parse(line);
    INFO(expected.dump());
    std::vector<ChatMessage> messages;
    for (const Json& message : expected["messages"]) {
      messages.push_back(
          MakeMessage(message["role"].get<std::string>(), message["content"].get<std::string>()));
    }
    const auto parsed = ChatTemplate::Parse(expected["template"].get<std::string>());
    const auto printed =
        parsed.ok() ? parsed->Render(messages, {}, expected["add_generation_prompt"], kTokens)
                    : absl::StatusOr<RenderedChat>(parsed.status());
    INFO(printed.status());
    if (expected.contains("output")) {
      REQUIRE(printed.ok());
      CHECK(printed->text == expected["output"]);
    } else if (expected.contains("rejected")) {
      CHECK(ReasonOf(printed.status()) == "TEMPLATE_REJECTED");
      CHECK_THAT(std::string(printed.status().message()),
                 Catch::EndsWith(expected["rejected"].get<std::string>()));
    } else {
      CHECK(printed.status().code() == absl::StatusCode::kInvalidArgument);
    }
  }
  CHECK(count > 250);
}

struct Bad {
  std::string text;
  std::string reason;
  std::string says;
};

TEST_CASE("what is not implemented is refused by name and line when it is parsed") {
  const std::vector<Bad> table = {
      {"{% call f() %}{% endcall %}", "TEMPLATE_UNSUPPORTED", "statement 'call'"},
      {"{% macro f() %}{{ g() }}{% endmacro %}", "TEMPLATE_UNSUPPORTED", "function 'g'"},
      {"{% macro f(a b) %}{% endmacro %}", "TEMPLATE_INVALID", "expected ','"},
      {"{% macro f(loop) %}{% endmacro %}", "TEMPLATE_INVALID", "'loop' cannot be assigned"},
      {"{% for x in y %}{% macro f() %}{% break %}{% endmacro %}{% endfor %}", "TEMPLATE_INVALID",
       "'break' outside"},
      {"{% macro f() %}", "TEMPLATE_INVALID", "a missing endmacro"},
      {"\n\n{% include 'x' %}", "TEMPLATE_UNSUPPORTED", "line 3: statement 'include'"},
      {"{% raw %}{% endraw %}", "TEMPLATE_UNSUPPORTED", "statement 'raw'"},
      {"{{ x | sha1 }}", "TEMPLATE_UNSUPPORTED", "filter 'sha1'"},
      {"{{ x | tojson(sort_keys=true) }}", "TEMPLATE_UNSUPPORTED", "'sort_keys'"},
      {"{{ x is prime }}", "TEMPLATE_UNSUPPORTED", "test 'prime'"},
      {"{{ x.format(1) }}", "TEMPLATE_UNSUPPORTED", "method 'format'"},
      {"{{ lipsum() }}", "TEMPLATE_UNSUPPORTED", "function 'lipsum'"},
      {"{{ f(1)(2) }}", "TEMPLATE_UNSUPPORTED", "a call"},
      {"{{ x[0](2) }}", "TEMPLATE_UNSUPPORTED", "a call"},
      {"{{ 2 ** 3 }}", "TEMPLATE_UNSUPPORTED", "'**'"},
      {"{{ '%s' % 1 }}", "TEMPLATE_UNSUPPORTED", "'%'"},
      {"{{ loop }}", "TEMPLATE_UNSUPPORTED", "'loop' by itself"},
      {"{{ loop.changed(1) }}", "TEMPLATE_UNSUPPORTED", "'loop.changed'"},
      {"{{ x | map('nope') }}", "TEMPLATE_UNSUPPORTED", "filter 'nope'"},
      {"{{ x | select('nope') }}", "TEMPLATE_UNSUPPORTED", "test 'nope'"},
      {"{{ x | select(y) }}", "TEMPLATE_UNSUPPORTED", "without a name"},
      {"{% for x in y recursive %}{% endfor %}", "TEMPLATE_UNSUPPORTED", "'recursive'"},
      {"{{ x(*y) }}", "TEMPLATE_UNSUPPORTED", "'*'"},
      {"{{ range(*y) }}", "TEMPLATE_UNSUPPORTED", "'*'"},
      {"{% if x %}", "TEMPLATE_INVALID", "a missing endif"},
      {"{% endif %}", "TEMPLATE_INVALID", "'endif' outside"},
      {"{% break %}", "TEMPLATE_INVALID", "'break' outside"},
      {"{{ x", "TEMPLATE_INVALID", "without its end"},
      {"{{ 'x }}", "TEMPLATE_INVALID", "without its end"},
      {"{# x", "TEMPLATE_INVALID", "without its #}"},
      {"{{ x ] }}", "TEMPLATE_INVALID", "closes nothing"},
      {"{{ 1 + }}", "TEMPLATE_INVALID", "expected an expression"},
      {"{{ x y }}", "TEMPLATE_INVALID", "found 'y'"},
      {"{{ $ }}", "TEMPLATE_INVALID", "'$'"},
      {"{{ 99999999999999999999 }}", "TEMPLATE_INVALID", "a bad number"},
      {"{{ x | replace('a') }}", "TEMPLATE_INVALID", "too few arguments"},
      {"{{ x | trim('a', 'b') }}", "TEMPLATE_INVALID", "too many arguments"},
      {"{{ x is divisibleby }}", "TEMPLATE_INVALID", "expected an expression"},
      {"{% set loop = 1 %}", "TEMPLATE_INVALID", "'loop' cannot be assigned"},
      {"{% set x, %}", "TEMPLATE_INVALID", "a missing endset"},
      {"\xFF", "TEMPLATE_INVALID", "UTF-8"},
  };
  for (const Bad& bad : table) {
    INFO(bad.text);
    const absl::Status status = ChatTemplate::Parse(bad.text).status();
    INFO(status);
    CHECK(status.code() == absl::StatusCode::kInvalidArgument);
    CHECK(ReasonOf(status) == bad.reason);
    CHECK_THAT(std::string(status.message()), Catch::Contains(bad.says));
  }
}

TEST_CASE("a wrong operation says what and where") {
  const std::vector<Bad> table = {
      {"{{ nothing.at_all }}", "TEMPLATE_FAILED", "'nothing' is undefined"},
      {"\n{{ messages + 1 }}", "TEMPLATE_FAILED",
       "line 2: an arithmetic operator between list and int"},
      {"{{ 9223372036854775807 + 1 }}", "TEMPLATE_FAILED", "64 bits"},
      {"{{ (-9223372036854775807 - 1) // -1 }}", "TEMPLATE_FAILED", "64 bits"},
      {"{{ raise_exception('not so') }}", "TEMPLATE_REJECTED", "rejects the conversation: not so"},
      {"{{ strftime_now('%c') }}", "TEMPLATE_FAILED", "a format that is not implemented"},
      {"{% macro f(a) %}{% endmacro %}{{ f(1, 2) }}", "TEMPLATE_FAILED",
       "macro 'f' does not take these arguments"},
  };
  for (const Bad& bad : table) {
    INFO(bad.text);
    const absl::Status status = Render(bad.text).status();
    CHECK(status.code() == absl::StatusCode::kInvalidArgument);
    CHECK(ReasonOf(status) == bad.reason);
    CHECK_THAT(std::string(status.message()), Catch::Contains(bad.says));
  }
}

std::string Repeated(const std::string& text, int count) {
  std::string out;
  for (int i = 0; i < count; ++i) out += text;
  return out;
}

TEST_CASE("no template runs, grows or nests without end") {
  const std::string doubling = "{% set ns = namespace(x='aaaaaaaa') %}{% for i in range(99) %}";
  for (const std::string& text : {
           std::string("{% for i in range(1000000000) %}{% endfor %}"),
           std::string(
               "{% for i in range(9999) %}{% for j in range(9999) %}{% endfor %}{% endfor %}"),
           doubling + "{% set ns.x = ns.x + ns.x %}{% endfor %}",
           doubling + "{% set ns.x = [ns.x, ns.x] %}{% endfor %}{{ ns.x }}",
           doubling + "{% set ns.x = ns.x.replace('a', ns.x) %}{% endfor %}",
           std::string("{{ 'aaaaaaaa' * 1000000000000 }}"),
           std::string("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}"),
           std::string("{% macro f(a) %}{{ f(a + a) }}{% endmacro %}{{ f('aaaaaaaa') }}"),
           "{% macro f() %}" + Repeated("{% if 1 %}", 90) + "{{ " + Repeated("(", 90) + "f()" +
               Repeated(")", 90) + " }}" + Repeated("{% endif %}", 90) + "{% endmacro %}{{ f() }}",
           doubling + "{{ ns.x * 100000 }}{% endfor %}",
       }) {
    INFO(text);
    const absl::Status status = Render(text).status();
    CHECK(status.code() == absl::StatusCode::kInvalidArgument);
    CHECK((ReasonOf(status) == "TEMPLATE_LIMIT" || ReasonOf(status) == "TEMPLATE_FAILED"));
  }
  CHECK(ReasonOf(Render("{{ 'abc' }}", {}, {1000, 2}).status()) == "TEMPLATE_LIMIT");
  for (const std::string& text :
       {"{{ " + Repeated("(", 100000) + " }}", "{{ " + Repeated("- ", 100000) + "1 }}",
        "{{ " + Repeated("not ", 100000) + "1 }}", "{{ 1" + Repeated(" + 1", 100000) + " }}",
        "{{ 1" + Repeated(" | abs", 100000) + " }}", "{{ x" + Repeated("[0", 100000) + " }}",
        Repeated("{% if 1 %}", 100000), "{{ " + Repeated("1 if ", 100000) + " }}"}) {
    CHECK_FALSE(ChatTemplate::Parse(text).ok());
  }
}

TEST_CASE("parts of a content go to templates that print parts, their text to others") {
  jinja::Dict part;
  part.Set("type", jinja::Value::MakeText("text"));
  part.Set("text", jinja::Value::MakeText("a"));
  const jinja::Value parts = jinja::Value::MakeList({jinja::Value::MakeDict(part)});
  jinja::Dict fields;
  fields.Set("role", jinja::Value::MakeText("user"));
  fields.Set("content", parts);
  const std::vector<ChatMessage> messages = {{"user", jinja::Value::MakeDict(fields)}};
  const std::string aware =
      "{% for m in messages %}{% if m.content is string %}{{ m.content }}{% else %}"
      "{% for p in m.content %}<{{ p.text }}>{% endfor %}{% endif %}{% endfor %}";
  CHECK(*Render(aware, messages) == "<a>");
  CHECK(*Render("{% for m in messages %}{{ m.content }};{% endfor %}", messages) == "a;");
  CHECK(*Render("{% for m in messages %}{{ m.content | trim }};{% endfor %}", messages) == "a;");
  CHECK(*Render("{% for m in messages %}{{ m.content if m.content is string }};{% endfor %}",
                messages) == "a;");
}

TEST_CASE("what stands between generation marks") {
  const auto spans = [](const std::string& text) {
    const auto parsed = ChatTemplate::Parse(text);
    REQUIRE(parsed.ok());
    CHECK(parsed->marks_generation() == (text.find("generation") != std::string::npos));
    const std::vector<ChatMessage> messages = {MakeMessage("user", "é"), MakeMessage("a", "bcd")};
    const auto chat = parsed->Render(messages, {}, false, kTokens);
    REQUIRE(chat.ok());
    std::string out = chat->text;
    for (const TextSpan& span : chat->generated) {
      out += " " + std::to_string(span.begin) + "-" + std::to_string(span.end);
    }
    return out;
  };
  CHECK(spans("{% for m in messages %}x{% generation %}{{ m.content }}{% endgeneration %}"
              "{% endfor %}") == "xéxbcd 1-3 4-7");
  CHECK(spans("{% for m in messages %}{{ m.content }}{% endfor %}") == "ébcd");
  CHECK(spans("{% if false %}{% generation %}{% endgeneration %}{% endif %}x") == "x");
}

TEST_CASE("a namespace that holds itself is freed") {
  CHECK(*Render(
            "{% set ns = namespace() %}{% set ns.x = [ns] %}{% set ns.x = ns %}{{ ns.x == ns }}") ==
        "True");
}

TEST_CASE("a long conversation gets a budget to match") {
  const std::string content(5 << 20, 'x');
  const std::string text = "{% for m in messages %}{{ '[' + m.content | trim + ']' }}{% endfor %}";
  const auto printed =
      Render(text, {MakeMessage("user", content), MakeMessage("assistant", content)});
  REQUIRE(printed.ok());
  CHECK(printed->size() == 2 * content.size() + 4);
}

}  // namespace
}  // namespace lorad::storage

#include "planner/scenario/fields.h"

#include <catch2/catch.hpp>

namespace lorad::planner::scenario {
namespace {

using nlohmann::json;

struct Example {
  int64_t gpus = 0;
  double margin = 0;
  bool shared = false;
  std::string rule;
  std::vector<int64_t> lengths;
  std::vector<std::vector<double>> times;
  std::vector<std::string> names;
  std::vector<int64_t> ranks;
  double alpha = 0;
};

Example Read(Fields& fields) {
  Example example;
  example.gpus = fields.Int64("gpus", {.min = 1, .max = 8});
  example.margin = fields.Number("margin", {.min = 0, .max = 1, .fallback = 0.5});
  example.shared = fields.Bool("shared", false);
  example.rule = fields.String("rule", {.choices = {"first", "best"}, .fallback = "best"});
  example.lengths = fields.Int64s("lengths", {.min = 1, .max = 100}, {.max = 4, .required = false});
  example.times = fields.NumberLists("times", {.above_min = true}, {.min = 1}, {.required = false});
  example.names = fields.Strings("names", {}, {.required = false});
  for (Fields& job : fields.Objects("jobs", {.max = 3, .required = false})) {
    example.ranks.push_back(job.Int64("rank", {.min = 1, .max = 512}));
  }
  Fields inner = fields.Object("inner", false);
  example.alpha = inner.Number("alpha", {.min = 1, .fallback = 2});
  if (fields.ok() && example.gpus == 7) fields.Violate("gpus", "is odd", "give an even number");
  return example;
}

// "" or every violation.
std::string Errors(const std::string& text) {
  const auto scenario = ParseScenario(text);
  if (!scenario.ok()) return std::string(scenario.status().message());
  return std::string(ReadScenario<Example>(*scenario, Read).status().message());
}

TEST_CASE("A scenario without faults") {
  const auto scenario = ParseScenario(
      R"({"gpus": 8, "margin": 1, "shared": true, "rule": "first", "lengths": [1, 100],
          "times": [[0.5], [1, 2.5]], "names": ["a"], "jobs": [{"rank": 1}, {"rank": 512}],
          "inner": {"alpha": 3}})");
  REQUIRE(scenario.ok());
  const auto example = ReadScenario<Example>(*scenario, Read);
  REQUIRE(example.ok());
  CHECK(example->gpus == 8);
  CHECK(example->margin == 1);
  CHECK(example->shared);
  CHECK(example->rule == "first");
  CHECK(example->lengths == std::vector<int64_t>{1, 100});
  CHECK(example->times == std::vector<std::vector<double>>{{0.5}, {1, 2.5}});
  CHECK(example->names == std::vector<std::string>{"a"});
  CHECK(example->ranks == std::vector<int64_t>{1, 512});
  CHECK(example->alpha == 3);
}

TEST_CASE("What is left out has its fallback") {
  const auto example = ReadScenario<Example>(json{{"gpus", 2}}, Read);
  REQUIRE(example.ok());
  CHECK(example->margin == 0.5);
  CHECK_FALSE(example->shared);
  CHECK(example->rule == "best");
  CHECK(example->lengths.empty());
  CHECK(example->alpha == 2);
}

TEST_CASE("Each violation by itself") {
  const std::pair<std::string, std::string> cases[] = {
      {R"({})", "$.gpus: is missing; give a whole number from 1 to 8"},
      {R"({"gpus": 0})", "$.gpus: is 0; give a whole number from 1 to 8"},
      {R"({"gpus": -1})", "$.gpus: is -1; give a whole number from 1 to 8"},
      {R"({"gpus": 1.5})", "$.gpus: is 1.5; give a whole number from 1 to 8"},
      {R"({"gpus": 2.0})", "$.gpus: is 2.0; give a whole number from 1 to 8"},
      {R"({"gpus": null})", "$.gpus: is null; give a whole number from 1 to 8"},
      {R"({"gpus": "2"})", "$.gpus: is \"2\"; give a whole number from 1 to 8"},
      {R"({"gpus": 18446744073709551615})",
       "$.gpus: is 18446744073709551615; give a whole number from 1 to 8"},
      {R"({"gpus": 99999999999999999999})", "$.gpus: is 1e+20; give a whole number from 1 to 8"},
      {R"({"gpus": 7})", "$.gpus: is odd; give an even number"},
      {R"({"gpus": 1, "margin": -0.1})", "$.margin: is -0.1; give a number from 0 to 1"},
      {R"({"gpus": 1, "margin": "x"})", "$.margin: is \"x\"; give a number from 0 to 1"},
      {R"({"gpus": 1, "shared": 1})", "$.shared: is 1; give true or false"},
      {R"({"gpus": 1, "rule": "last"})", R"($.rule: is "last"; give one of "first", "best")"},
      {R"({"gpus": 1, "lengths": {}})",
       "$.lengths: is an object; give a list of 0 to 4 entries, each a whole number from 1 to 100"},
      {R"({"gpus": 1, "lengths": [1, 2, 3, 4, 5]})",
       "$.lengths: is a list of 5; give a list of 0 to 4 entries, each a whole number from 1 to "
       "100"},
      {R"({"gpus": 1, "lengths": [1, 101]})",
       "$.lengths[1]: is 101; give a whole number from 1 to 100"},
      {R"({"gpus": 1, "times": [[1, 0]]})", "$.times[0][1]: is 0; give a number above 0"},
      {R"({"gpus": 1, "times": [[]]})",
       "$.times[0]: is a list of 0; give a list of 1 to 100000 entries, each a number above 0"},
      {R"({"gpus": 1, "times": [3]})",
       "$.times[0]: is 3; give a list of 1 to 100000 entries, each a number above 0"},
      {R"({"gpus": 1, "names": [""]})", "$.names[0]: is \"\"; give a text of 1 to 200 bytes"},
      {R"({"gpus": 1, "jobs": [{"rank": 1}, {}]})",
       "$.jobs[1].rank: is missing; give a whole number from 1 to 512"},
      {R"({"gpus": 1, "jobs": [3]})", "$.jobs[0]: is 3; give an object"},
      {R"({"gpus": 1, "inner": []})", "$.inner: is a list of 0; give an object"},
      {R"({"gpus": 1, "inner": {"beta": 1}})",
       "$.inner.beta: is not known here; remove it; there are alpha"},
      {R"({"gpus": 1, "gpus": 2})", "$.gpus: stands there twice; keep one"},
      {R"({"gpus": 1, "inner": [{}, {"a b": 1, "a b": 2}]})",
       R"($.inner[1]["a b"]: stands there twice; keep one)"},
      {R"({"gpus": 1, "about": "x"})", "$.about: is \"x\"; give a list of lines of text"},
      {R"({"gpus": 1, "about": ["x", 1]})",
       "$.about: is a list of 2; give a list of lines of text"},
      {R"([])", "$: is a list of 0; give one JSON object"},
      {R"(3)", "$: is 3; give one JSON object"},
  };
  for (const auto& [text, expected] : cases) {
    INFO(text);
    CHECK(Errors(text) == expected);
  }
}

TEST_CASE("All violations at once, in the order of reading") {
  CHECK(Errors(R"({"gpus": 0, "margin": 2, "jobs": [{"rank": 0, "x": 1}, 5], "y": 1})") ==
        "$.gpus: is 0; give a whole number from 1 to 8\n"
        "$.margin: is 2; give a number from 0 to 1\n"
        "$.jobs[1]: is 5; give an object\n"
        "$.jobs[0].rank: is 0; give a whole number from 1 to 512\n"
        "$.jobs[0].x: is not known here; remove it; there are rank\n"
        "$.y: is not known here; remove it; there are about, gpus, inner, jobs, lengths, margin, "
        "names, rule, shared, times");
}

TEST_CASE("Names of one kind, and what is said of what is no object") {
  const json scenario =
      json::parse(R"({"jobs": [{"name": "a"}, {"name": "a"}, {"name": ""}, {"name": ""}, 3, 4]})");
  size_t after_first = 0, in_all = 0;
  const auto read = [&](Fields& fields) {
    std::set<std::string> names;
    for (Fields& job : fields.Objects("jobs", {.max = 10})) {
      job.OwnName("job", &names);
      if (!job.is_object()) job.Violate("name", "is never said", "nothing");
      if (after_first == 0) after_first = job.violations();
    }
    in_all = fields.violations();
    return 0;
  };
  CHECK(ReadScenario<int>(scenario, read).status().message() ==
        "$.jobs[4]: is 3; give an object\n"
        "$.jobs[5]: is 4; give an object\n"
        "$.jobs[1].name: is another job's too; give each its own name\n"
        "$.jobs[2].name: is \"\"; give a text of 1 to 200 bytes\n"
        "$.jobs[3].name: is \"\"; give a text of 1 to 200 bytes");
  CHECK(after_first == 2);
  CHECK(in_all == 5);
}

TEST_CASE("Hundreds of violations are counted") {
  json scenario = {{"gpus", 1}, {"names", json::array()}};
  for (int i = 0; i < 250; ++i) scenario["names"].push_back("");
  const std::string errors(ReadScenario<Example>(scenario, Read).status().message());
  CHECK(std::count(errors.begin(), errors.end(), '\n') == 100);
  CHECK(errors.substr(errors.rfind('\n')) == "\nand 150 more");
}

TEST_CASE("What is no JSON says where") {
  CHECK(Errors("{").find("$: is no JSON: parse error at line 1, column 2") == 0);
  for (const char* nothing : {"", " \n"}) CHECK(Errors(nothing).find("$: is empty; write ") == 0);
  CHECK(Errors("{\"gpus\": 1,\n}").find("$: is no JSON: parse error at line 2, column 1") == 0);
  CHECK(Errors("{\"gpus\": 1e999}").find("$: is no JSON: number overflow parsing '1e999'") == 0);
  CHECK(Errors("{\"gpus\": NaN}").find("$: is no JSON: ") == 0);
  CHECK(Errors("{\"gpus\": \"\xff\"}").find("$: is no JSON: ") == 0);
  CHECK(Errors("{} {}").find("$: is no JSON: ") == 0);
}

TEST_CASE("A number that is not finite") {
  const json scenario = {{"gpus", 1}, {"margin", std::numeric_limits<double>::infinity()}};
  CHECK(ReadScenario<Example>(scenario, Read).status().message() ==
        "$.margin: is null; give a number from 0 to 1");
}

TEST_CASE("Depth is bounded") {
  const std::string deep = std::string(100000, '[');
  CHECK(Errors("{\"a\":" + deep).find("is deeper than 32 levels; nest less") != std::string::npos);
}

}  // namespace
}  // namespace lorad::planner::scenario

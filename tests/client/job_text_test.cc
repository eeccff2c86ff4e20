#include "client/inputs/job_text.h"

#include <catch2/catch.hpp>
#include <fstream>
#include <iterator>
#include <sstream>

#include "client/calls/error.h"
#include "client/job_file.h"

namespace lorad::client {
namespace {

const char* NameOf(JobFormat format) {
  return format == JobFormat::kYaml   ? "job.yaml"
         : format == JobFormat::kToml ? "job.toml"
                                      : "job.json";
}

std::string Printed(const absl::Status& status) {
  std::ostringstream out;
  PrintError(status, out);
  return out.str();
}

// The job as JSON, or why it is none.
std::string TextOf(JobFormat format, const std::string& text) {
  const auto job = ReadJobText(format, text, NameOf(format));
  if (!job.ok()) return std::string(job.status().message());
  return job->mistakes.empty() ? job->root.dump() : job->mistakes.front().second;
}

std::string ErrorOf(JobFormat format, const std::string& text) {
  const auto job = ParseJob(text, NameOf(format), format);
  return job.ok() ? "" : Printed(job.status());
}

constexpr char kJson[] = R"({
  "base_model": "smollm2-135m", "training_dataset": "rows", "display_name": "no",
  "adapter": {"r": 8, "lora_alpha": 16, "use_rslora": true, "target_modules": ["q_proj", "v_proj"],
              "rank_pattern": {"layers.0.self_attn.q_proj": 4}, "seed": 16},
  "training": {"max_steps": 100, "learning_rate": 2e-4, "eps": 1e-8, "max_grad_norm": 1.0,
               "lr_scheduler_type": "cosine", "shuffle": false, "validation_dataset": null},
  "priority": -3, "labels": {"team": "math", "version": "1.10", "on": "yes"}
})";

constexpr char kYaml[] = R"(# A job.
base_model: smollm2-135m
training_dataset: &data rows
display_name: no
adapter:
  r: 8
  lora_alpha: 16
  use_rslora: true
  target_modules: [q_proj, v_proj]
  rank_pattern: {layers.0.self_attn.q_proj: 4}
  seed: 0x10
training:
  max_steps: 1e2
  learning_rate: 2e-4
  eps: 1e-8
  max_grad_norm: 1.
  lr_scheduler_type: cosine
  shuffle: False
  validation_dataset: ~
priority: -3
labels:
  team: math
  version: "1.10"
  on: yes
)";

constexpr char kToml[] = R"(# A job.
base_model = "smollm2-135m"
training_dataset = "rows"
display_name = "no"
priority = -3
labels = {team = "math", version = "1.10", on = "yes"}

[adapter]
r = 8
lora_alpha = 16
use_rslora = true
target_modules = ["q_proj", "v_proj"]
rank_pattern."layers.0.self_attn.q_proj" = 4
seed = 0x10

[training]
max_steps = 1e2
learning_rate = 2e-4
eps = 1e-8
max_grad_norm = 1.0
lr_scheduler_type = "cosine"
shuffle = false
)";

TEST_CASE("one job in three formats is one request") {
  std::string json = kJson;
  const std::string null = ", \"validation_dataset\": null";
  json.erase(json.find(null), null.size());
  std::string yaml = kYaml;
  const std::string nothing = "  validation_dataset: ~\n";
  yaml.erase(yaml.find(nothing), nothing.size());
  const auto wanted = ParseJob(json, "job.json");
  REQUIRE(wanted.ok());
  CHECK(wanted->training().learning_rate() == 2e-4);
  CHECK(wanted->display_name() == "no");
  const auto of_yaml = ParseJob(yaml, "job.yaml", JobFormat::kYaml);
  const auto of_toml = ParseJob(kToml, "job.toml", JobFormat::kToml);
  REQUIRE(of_yaml.ok());
  REQUIRE(of_toml.ok());
  CHECK(of_yaml->DebugString() == wanted->DebugString());
  CHECK(of_toml->DebugString() == wanted->DebugString());
  // What no section has is a mistake in each of them, null or not.
  CHECK(ErrorOf(JobFormat::kJson, kJson).find("did you mean validation_dataset?") !=
        std::string::npos);
  CHECK(ErrorOf(JobFormat::kYaml, kYaml).find("did you mean validation_dataset?") !=
        std::string::npos);
}

TEST_CASE("the examples are one job") {
  const auto read = [](const std::string& path, JobFormat format) {
    std::ifstream file(path);
    const std::string text((std::istreambuf_iterator<char>(file)), {});
    const auto job = ParseJob(text, path, format);
    return job.ok() ? job->DebugString() : Printed(job.status());
  };
  const std::string of_yaml = read("examples/jobs/gsm8k.yaml", JobFormat::kYaml);
  CHECK(of_yaml.find("batch_size: 8") != std::string::npos);
  CHECK(of_yaml == read("examples/jobs/gsm8k.toml", JobFormat::kToml));
}

TEST_CASE("the format goes by the option, then by the file's name") {
  struct Case {
    const char* path;
    const char* format;
    JobFormat wanted;
  };
  const Case cases[] = {
      {"job.json", "", JobFormat::kJson},
      {"job.yaml", "", JobFormat::kYaml},
      {"a/b.YML", "", JobFormat::kYaml},
      {"job.toml", "", JobFormat::kToml},
      {"-", "", JobFormat::kJson},
      {"job", "", JobFormat::kJson},
      {"-", "yaml", JobFormat::kYaml},
      {"-", "toml", JobFormat::kToml},
      {"job.yaml", "json", JobFormat::kJson},
      {"yaml", "", JobFormat::kJson},
  };
  for (const Case& c : cases) {
    INFO(c.path << " " << c.format);
    const auto format = JobFormatOf(c.path, c.format);
    REQUIRE(format.ok());
    CHECK(*format == c.wanted);
  }
  CHECK(Printed(JobFormatOf("job.yaml", "xml").status()) ==
        "error: USAGE: --format must be json, yaml or toml, got xml\n");
}

TEST_CASE("what YAML's values mean") {
  struct Case {
    const char* yaml;
    const char* json;
  };
  const Case cases[] = {
      {"1e-3", "0.001"},
      {"2E+4", "20000.0"},
      {".5", "0.5"},
      {"5.", "5.0"},
      {"-0.25", "-0.25"},
      {"12", "12"},
      {"+3", "3"},
      {"-7", "-7"},
      {"0", "0"},
      {"0x1F", "31"},
      {"0o17", "15"},
      {"18446744073709551615", "18446744073709551615"},
      {"100000000000000000000", "1e+20"},
      {"!!int 3", "3"},
      {"true", "true"},
      {"TRUE", "true"},
      {"False", "false"},
      {"", "null"},
      {"~", "null"},
      {"null", "null"},
      {"[1, two, 3.0]", "[1,\"two\",3.0]"},
      {"{b: 1}", "{\"b\":1}"},
      // Text: Norway, YAML 1.1's other truths, times, groups of digits, and what is no whole number.
      {"no", "\"no\""},
      {"NO", "\"NO\""},
      {"yes", "\"yes\""},
      {"on", "\"on\""},
      {"y", "\"y\""},
      {"12:30:45", "\"12:30:45\""},
      {"2026-11-26", "\"2026-11-26\""},
      {"1_000", "\"1_000\""},
      {"1e", "\"1e\""},
      {"e5", "\"e5\""},
      {"--", "\"--\""},
      {".", "\".\""},
      {"0x", "\"0x\""},
      {"0xg", "\"0xg\""},
      {"0x1FFFFFFFFFFFFFFFF", "\"0x1FFFFFFFFFFFFFFFF\""},
      {"1.2.3", "\"1.2.3\""},
      {"\"12\"", "\"12\""},
      {"'true'", "\"true\""},
      {"!!str 12", "\"12\""},
      {"|\n  x\n   y", "\"x\\n y\\n\""},
      {">\n  x\n  y", "\"x y\\n\""},
      // What may mean two things, or none.
      {"012",
       "is octal in YAML 1.1 and decimal in YAML 1.2, got 012; leave the 0 out, or put it "
       "in quotes"},
      {".inf", "must be a finite number, got .inf"},
      {"-.INF", "must be a finite number, got -.INF"},
      {".nan", "must be a finite number, got .nan"},
      {"1e999", "must be a finite number, got 1e999"},
  };
  for (const Case& c : cases) {
    INFO(c.yaml);
    const std::string found = TextOf(JobFormat::kYaml, "a: " + std::string(c.yaml) + "\n");
    const bool value = absl::string_view(c.json).find(" got ") == absl::string_view::npos;
    CHECK(found == (value ? "{\"a\":" + std::string(c.json) + "}" : c.json));
  }
}

TEST_CASE("a file that is no job is told by line and column") {
  struct Case {
    JobFormat format;
    std::string text;
    const char* error;
  };
  const JobFormat yaml = JobFormat::kYaml;
  const JobFormat toml = JobFormat::kToml;
  const char* const kNoJob =
      "line 1, column 1: must hold one job, with names and values (base_model: ...), not ";
  const Case cases[] = {
      {yaml, "", "is empty; a job has base_model: ..."},
      {yaml, "# nothing\n", "is empty; a job has base_model: ..."},
      {yaml, "- a: 1\n", "a list"},
      {yaml, "hello\n", "a value"},
      {yaml, "~\n", "nothing"},
      {yaml, "a: 1\n---\nb: 2\n",
       "line 2, column 1: a second document begins; a file holds one job"},
      {yaml, "---\na: 1\n---\n",
       "line 3, column 1: a second document begins; a file holds one job"},
      {yaml, "a: {b: 1\n", "not YAML: line 2, column 1: end of map flow not found"},
      {yaml, "a: 1\n\tb: 2\n",
       "not YAML: line 2, column 1: illegal tab when looking for indentation"},
      {yaml, "a: b: c\n", "not YAML: line 1, column 5: illegal map value"},
      {yaml, "a: *b\n", "not YAML: line 1, column 4: the referenced anchor is not defined"},
      {yaml, "a: &a [1, *a]\n", "line 1, column 11: an alias inside of what it stands for"},
      {yaml, "a: &a b\n*a : 1\n", "line 2, column 1: an alias in the place of a name"},
      {yaml, "a: &a {b: 1}\nc:\n  <<: *a\n",
       "line 3, column 3: a merge key (<<) is not read; write its fields out"},
      {yaml, "a: !!python/object:os.system x\n",
       "line 1, column 4: the tag tag:yaml.org,2002:python/object:os.system is not read; leave it "
       "out"},
      {yaml, "a: !mine [1]\n", "line 1, column 4: the tag !mine is not read; leave it out"},
      {yaml, "a: !mine {b: 1}\n", "line 1, column 4: the tag !mine is not read; leave it out"},
      {yaml, "? [a]\n: 1\n", "line 1, column 3: a list or a mapping in the place of a name"},
      {yaml, ": 1\n", "line 1, column 1: a field without a name"},
      {yaml, std::string("a: 1\nb: \0\n", 10),
       "not YAML: line 2, column 4: a control character; is this text in UTF-8?"},
      {yaml, "a: 1\x04\n",
       "not YAML: line 1, column 5: a control character; is this text in UTF-8?"},
      {yaml, "a: 1\nb: \xff\n",
       "not YAML: line 2: is not UTF-8; iconv -f LATIN1 -t UTF-8 makes it from Latin-1"},
      {toml, "", "is empty; a job has base_model = \"...\""},
      {JobFormat::kJson, "", "is empty; a job has {\"base_model\": ...}"},
      {JobFormat::kJson, " \n", "is empty; a job has {\"base_model\": ...}"},
      {toml, "base_model: x\n",
       "not TOML: line 1, column 11: Error while parsing key-value pair: expected '=', saw ':'"},
      {toml, "a = 1\na = 2\n",
       "not TOML: line 2, column 5: Error while parsing key-value pair: cannot redefine existing "
       "integer 'a'"},
      {toml, "[a]\nb = 1\n[a]\n",
       "not TOML: line 3, column 1: Error while parsing table header: cannot redefine existing "
       "table 'a'"},
      {toml, "a = yes\n",
       "not TOML: line 1, column 5: Error while parsing value: could not determine value type"},
      {toml, "a = \"\xff\"\n", "not TOML: line 1, column 5: Encountered invalid utf-8 sequence"},
      {toml, "a = 99999999999999999999\n",
       "not TOML: line 1, column 25: Error while parsing decimal integer: '99999999999999999999' "
       "is not representable in 64 bits"},
  };
  for (const Case& c : cases) {
    INFO(c.text);
    const absl::string_view error(c.error);
    const bool no_job = error == "a list" || error == "a value" || error == "nothing";
    CHECK(ErrorOf(c.format, c.text) == "error: BAD_JOB_FILE: " + std::string(NameOf(c.format)) +
                                           ": " + (no_job ? kNoJob : "") + c.error + "\n");
  }
}

TEST_CASE("what is no JSON, by a name that does not say JSON, may be another format") {
  for (const char* name : {"standard input", "job.conf"}) {
    const std::string error = Printed(ParseJob("base_model: x\n", name).status());
    CHECK(error.find("; --format yaml or toml says that it is no JSON\n") != std::string::npos);
  }
  const std::string error = Printed(ParseJob("base_model: x\n", "job.JSON").status());
  CHECK(error.find("not JSON") != std::string::npos);
  CHECK(error.find("--format") == std::string::npos);
}

TEST_CASE("wrong fields are told by name, line and column") {
  struct Case {
    JobFormat format;
    const char* text;
    const char* line;
  };
  const Case cases[] = {
      {JobFormat::kYaml, "adapter:\n  rnk: 8\n",
       "adapter.rnk: line 2, column 3: no such field; did you mean rank?"},
      {JobFormat::kYaml, "training: {shuffle: no}\n",
       "training.shuffle: line 1, column 12: must be true or false, got \"no\""},
      {JobFormat::kYaml, "labels:\n  version: 1\n",
       "labels.version: line 2, column 3: must be a string, in quotes, got 1"},
      {JobFormat::kYaml, "display_name: true\n",
       "display_name: line 1, column 1: must be a string, in quotes, got true"},
      {JobFormat::kYaml, "base_model: [a]\n",
       "base_model: line 1, column 1: must be a string, got [\"a\"]"},
      {JobFormat::kYaml, "priority: 1\n\npriority: 2\n",
       "priority: line 1, column 1: given again in line 3, column 1"},
      {JobFormat::kYaml, "adapter:\n  seed: 010\n",
       "adapter.seed: line 2, column 3: is octal in YAML 1.1 and decimal in YAML 1.2, got 010; "
       "leave the 0 out, or put it in quotes"},
      {JobFormat::kYaml, "adapter: &a {rank: x}\n",
       "adapter.rank: line 1, column 14: must be a whole number of 32 bits, got \"x\""},
      {JobFormat::kToml, "[adapter]\nrnk = 8\n",
       "adapter.rnk: line 2, column 1: no such field; did you mean rank?"},
      {JobFormat::kToml, "training = {lora_alpha = 8}\n",
       "training.lora_alpha: line 1, column 13: no such field; did you mean adapter.alpha?"},
      {JobFormat::kToml, "labels.version = 1\n",
       "labels.version: line 1, column 8: must be a string, got 1"},
      {JobFormat::kToml, "labels.day = 2026-11-26\n",
       "labels.day: line 1, column 8: is a date or a time in TOML; put it in quotes"},
      {JobFormat::kJson, "{\"training\": {\n\"learning_rate\": 1e400}}",
       "training.learning_rate: line 2: must be a finite number, got 1e400"},
      {JobFormat::kJson, "{\"adapter\": {\"target_modules\": [1, -1e400]}}",
       "adapter.target_modules: line 1: must be a finite number, got -1e400"},
      {JobFormat::kToml, "training.learning_rate = inf\n",
       "training.learning_rate: line 1, column 10: must be a finite number"},
  };
  for (const Case& c : cases) {
    INFO(c.text);
    CHECK(ErrorOf(c.format, c.text) == "error: BAD_JOB_FILE: " + std::string(NameOf(c.format)) +
                                           ": 1 field is wrong\n  " + c.line + "\n");
  }
}

std::string Times(const std::string& text, int times) {
  std::string all;
  for (int i = 0; i < times; ++i) all += text;
  return all;
}

TEST_CASE("an alias is its value, and a thousand million of them are refused") {
  CHECK(TextOf(JobFormat::kYaml, "a: &a [1, &b x]\nb: *b\nc: {d: *a}\n") ==
        R"({"a":[1,"x"],"b":"x","c":{"d":[1,"x"]}})");
  // Nine of nine of nine ...
  std::string bomb = "a: &a [x, x, x, x, x, x, x, x, x]\n";
  for (char name = 'b'; name < 'k'; ++name) {
    const std::string alias = std::string(", *") + static_cast<char>(name - 1);
    bomb += std::string(1, name) + ": &" + name + " [" + Times(alias, 9).substr(2) + "]\n";
  }
  const std::string error = "aliases make more than 1 MiB of this; write out what the job needs";
  CHECK(TextOf(JobFormat::kYaml, bomb) == "job.yaml: line 5, column 36: " + error);
  // One long text, often.
  const std::string text =
      "a: &a " + std::string(100'000, 'x') + "\nb: [" + Times("*a, ", 20) + "]\n";
  CHECK(TextOf(JobFormat::kYaml, text).find(error) != std::string::npos);
  // Levels that an alias brings count too.
  std::string deep = "a: &a [[[[[[[[1]]]]]]]]\nb: [[[[[[[[*a]]]]]]]]\n";
  CHECK(TextOf(JobFormat::kYaml, deep) ==
        "job.yaml: line 2, column 12: nested deeper than 16 "
        "levels");
  deep = "a: &a [[[[[[[1]]]]]]]\nb: [[[[[[[[*a]]]]]]]]\n";
  CHECK(TextOf(JobFormat::kYaml, deep).front() == '{');
}

TEST_CASE("what is nested without end is refused before it takes the stack") {
  struct Case {
    JobFormat format;
    std::string text;
    const char* error;
  };
  const JobFormat yaml = JobFormat::kYaml;
  const JobFormat toml = JobFormat::kToml;
  const Case cases[] = {
      {yaml, "a: " + Times("[", 200'000) + Times("]", 200'000),
       "line 1, column 19: nested deeper than 16 levels"},
      {yaml, Times("- ", 200'000), "line 1, column 33: nested deeper than 16 levels"},
      {yaml, "a:\n" + Times("  ? ", 200'000),
       "line 2, column 7: a list or a mapping in the place of a name"},
      {toml, "a = " + Times("[", 20) + Times("]", 20),
       "line 1, column 20: nested deeper than 16 levels"},
      {toml, "a = " + Times("[", 200'000),
       "not TOML: line 1, column 261: Error while parsing value: exceeded maximum nested value "
       "depth of 256 (TOML_MAX_NESTED_VALUES)"},
      {toml, "\na" + Times(".a", 500'000) + " = 1", "line 2: more than 4096 dots in a line"},
      {toml, "[a" + Times(".a", 4'000) + "]\na" + Times(".a", 4'000) + " = 1",
       "line 1, column 1: nested deeper than 16 levels"},
  };
  for (const Case& c : cases) {
    INFO(c.text.substr(0, 20));
    CHECK(TextOf(c.format, c.text) == std::string(NameOf(c.format)) + ": " + c.error);
  }
}

}  // namespace
}  // namespace lorad::client

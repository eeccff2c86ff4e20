#include "client/calls/usage.h"

#include <CLI/CLI.hpp>
#include <catch2/catch.hpp>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>

#include "client/calls/error.h"
#include "client/calls/range.h"
#include "client/text/nearest.h"

namespace lorad::client {
namespace {

struct Case {
  std::vector<std::string> arguments;
  const char* message;  // a part of it
  const char* help;     // the command whose help is named
};

// The shape of `lora`: commands, a command with commands, options of both.
absl::Status Parse(std::vector<std::string> arguments) {
  CLI::App app("", "lora");
  std::string server, filter, job;
  bool json = false;
  app.add_option("--server", server);
  app.add_flag("--json", json);
  app.require_subcommand(0, 1);
  app.fallthrough();
  CLI::App& ls = *app.add_subcommand("ls");
  ls.add_option("--filter", filter);
  std::optional<int> limit, most;
  std::optional<std::uint64_t> bytes;
  ls.add_option("--limit", limit);
  ls.add_option("--most", most)->check(From(1, 5));
  double share = 0;
  ls.add_option("--share", share)->check(From(0.0, 1.0));
  std::int64_t after = 0;
  std::uint64_t seed = 0;
  ls.add_option("--after", after);
  ls.add_option("--seed", seed);
  ls.add_option("--bytes", bytes)->transform(CLI::AsSizeValue(false));
  app.add_subcommand("watch")->add_option("job", job)->required();
  CLI::App& dataset = *app.add_subcommand("dataset");
  dataset.require_subcommand(1);
  dataset.add_subcommand("validate");
  dataset.add_subcommand("rm");
  RefuseWrongNumbers(app);
  std::vector<std::string> reversed(arguments.rbegin(), arguments.rend());
  try {
    app.parse(reversed);
  } catch (const CLI::ParseError& wrong) {
    return UsageError(app, wrong, arguments);
  }
  return absl::OkStatus();
}

TEST_CASE("wrong usage names the nearest command or option and the right help") {
  const Case cases[] = {
      {{"wach"}, "no such command: lora wach; did you mean `lora watch`?", "lora"},
      {{"--server", "h:1", "wach", "job"}, "did you mean `lora watch`?", "lora"},
      {{"frobnicate"}, "no such command: lora frobnicate; see", "lora"},
      {{"dataset", "validat"}, "did you mean `lora dataset validate`?", "lora dataset"},
      {{"dataset"}, "subcommand is required", "lora dataset"},
      {{"watch"}, "job is required", "lora watch"},
      {{"ls", "--filtr", "x"},
       "lora ls has no option --filtr; did you mean `--filter`?",
       "lora ls"},
      {{"ls", "--limit", ""}, "--limit: needs a number", "lora ls"},
      {{"ls", "--most", ""}, "--most", "lora ls"},
      {{"ls", "--limit="}, "--limit", "lora ls"},
      {{"ls", "--bytes", ""}, "--bytes", "lora ls"},
      {{"ls", "--after", "9223372036854775808"},
       "--after: must be a whole number from -9223372036854775808 to 9223372036854775807, got "
       "'9223372036854775808'",
       "lora ls"},
      {{"ls", "--after", "1.5"}, "--after: must be a whole number", "lora ls"},
      {{"ls", "--limit", "1.5"}, "--limit: must be a whole number", "lora ls"},
      {{"ls", "--seed=-1"}, "--seed: must be a whole number from 0", "lora ls"},
      {{"ls", "--after=-9223372036854775809"}, "--after: must be a whole number", "lora ls"},
      {{"ls", "--seed", "18446744073709551616"},
       "--seed: must be a whole number from 0 to 18446744073709551615",
       "lora ls"},
      {{"ls", "--most", "1e3"}, "--most: must be a whole number from 1 to 5, got '1e3'", "lora ls"},
      {{"ls", "--most", "nan"}, "--most: must be a whole number from 1 to 5, got 'nan'", "lora ls"},
      {{"ls", "--most=-9223372036854775809"}, "from 1 to 5, got '-9223372036854775809'", "lora ls"},
      {{"ls", "--share", "nan"}, "--share: must be a number from 0 to 1, got 'nan'", "lora ls"},
      {{"ls", "--share", "x"}, "--share: must be a number from 0 to 1, got 'x'", "lora ls"},
      {{"ls", "--jsn"}, "did you mean `--json`?", "lora ls"},
      {{"ls", "word"}, "not expected: word; see", "lora ls"},
      {{"ls", "--frobnicate"}, "has no option --frobnicate; see", "lora ls"},
  };
  for (const Case& c : cases) {
    const absl::Status status = Parse(c.arguments);
    const std::string message(status.message());
    INFO(message);
    CHECK(ReasonOf(status) == "USAGE");
    CHECK(ExitStatus(status) == 2);
    CHECK(message.find(c.message) != std::string::npos);
    CHECK(message.find("see `" + std::string(c.help) + " --help`") != std::string::npos);
  }
  CHECK(Parse({"ls", "--filter", "x", "--json"}).ok());
  CHECK(Parse({"ls", "--after", "9223372036854775807", "--seed", "18446744073709551615"}).ok());
  CHECK(Parse({"ls", "--after", "-9223372036854775808"}).ok());
}

TEST_CASE("an error as JSON is one line that has all of it") {
  std::ostringstream out;
  const absl::Status status =
      Error("INVALID_JOB", "2 fields\nare \"wrong\" \x1b[31m\xff", "adapter.rank: a\npriority: b");
  PrintErrorJson(status, out);
  const std::string text = out.str();
  CHECK(std::count(text.begin(), text.end(), '\n') == 1);
  CHECK(text.find('\x1b') == std::string::npos);
  const auto error = nlohmann::json::parse(text).at("error");
  CHECK(error.at("reason") == "INVALID_JOB");
  CHECK(error.at("message") == "2 fields\nare \"wrong\" \x1b[31m\xef\xbf\xbd");
  CHECK(error.at("violations") == nlohmann::json{"adapter.rank: a", "priority: b"});
  CHECK(ExitStatus(status) == 1);
  CHECK(ExitStatus(absl::OkStatus()) == 0);
}

TEST_CASE("what is far from everything is near to nothing") {
  CHECK(Nearest("shwo", {"ls", "show"}) == "show");
  CHECK(Nearest("frobnicate", {"ls", "show"}).empty());
  CHECK(Nearest("x", {}).empty());
}

}  // namespace
}  // namespace lorad::client

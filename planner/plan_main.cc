// lorad-plan: reads a scenario, prints the plan (docs/planner.md).

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <iostream>
#include <iterator>
#include <sstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "planner/scenario/fields.h"
#include "planner/scenario/subcommand.h"

namespace {

namespace scenario = lorad::planner::scenario;

constexpr char kVersion[] = "0.1.0";

struct Options {
  std::string file = "-";
  std::string trace, svg;
  bool json = false;
  int columns = 100;
};

absl::StatusOr<std::string> ReadAll(const std::string& file) {
  std::ostringstream text;
  if (file == "-") {
    text << std::cin.rdbuf();
    return text.str();
  }
  std::ifstream in(file, std::ios::binary);
  in.peek();
  if (!in.is_open() || in.bad()) {  // a folder opens
    return absl::NotFoundError(absl::StrCat(file, " cannot be read: ", std::strerror(errno)));
  }
  text << in.rdbuf();
  return text.str();
}

absl::Status WriteAll(const std::string& file, const std::string& text) {
  std::ofstream out(file, std::ios::binary);
  out << text;
  out.close();
  if (out.good()) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat(file, " cannot be written"));
}

absl::StatusOr<scenario::PlanResult> Plan(const scenario::Subcommand& command,
                                          const Options& options) {
  auto text = ReadAll(options.file);
  if (!text.ok()) return text.status();
  auto json = scenario::ParseScenario(*text);
  if (!json.ok()) {
    return absl::Status(json.status().code(),
                        absl::StrCat(options.file, ": ", std::string(json.status().message())));
  }
  return command.run(*json);
}

absl::Status WriteTimeline(const scenario::PlanResult& result, const Options& options) {
  if (options.trace.empty() && options.svg.empty()) return absl::OkStatus();
  if (!result.timeline.has_value()) {
    return absl::UnimplementedError("this plan has no timeline to write");
  }
  absl::Status status;
  if (!options.trace.empty()) {
    status.Update(WriteAll(options.trace, ToChromeTrace(*result.timeline)));
  }
  if (!options.svg.empty()) status.Update(WriteAll(options.svg, ToSvg(*result.timeline)));
  return status;
}

int Fail(const absl::Status& status) {
  std::cout.flush();
  std::cerr << "error: " << std::string(status.message()) << "\n";
  return status.code() == absl::StatusCode::kInvalidArgument ? 2 : 1;
}

int Run(const scenario::Subcommand& command, const Options& options) {
  const auto result = Plan(command, options);
  if (!result.ok()) return Fail(result.status());
  if (const absl::Status status = WriteTimeline(*result, options); !status.ok()) {
    return Fail(status);
  }
  if (options.json) {
    std::cout << result->json.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) << "\n";
  } else {
    std::cout << result->text;
    if (result->timeline.has_value()) {
      std::cout << "\n" << ToText(*result->timeline, options.columns);
    }
  }
  if (std::cout.flush().good()) return 0;
  return Fail(absl::UnavailableError("standard output cannot be written"));
}

// Its first word is no subcommand: CLI11 would say that one is required.
bool IsUnknown(int argc, char** argv) {
  if (argc < 2 || argv[1][0] == '-') return false;
  const auto& subcommands = scenario::Subcommands();
  return std::none_of(subcommands.begin(), subcommands.end(),
                      [&](const scenario::Subcommand& command) { return command.name == argv[1]; });
}

}  // namespace

int main(int argc, char** argv) {
  if (IsUnknown(argc, argv)) {
    std::cerr << "error: " << argv[1] << " is no subcommand; see `lorad-plan --help`\n";
    return 2;
  }
  CLI::App app(
      "lorad-plan: what the planner would do, from a scenario.\n"
      "stdout is the plan, stderr is talk. Exit status: 0 done, 1 no such plan, 2 wrong scenario "
      "or usage.",
      "lorad-plan");
  app.set_version_flag("--version", kVersion);
  app.require_subcommand(1);
  Options options;
  for (const scenario::Subcommand& command : scenario::Subcommands()) {
    CLI::App* sub = app.add_subcommand(std::string(command.name), std::string(command.summary));
    sub->add_option("SCENARIO", options.file, "JSON file; - is standard input")
        ->capture_default_str();
    sub->add_flag("--json", options.json, "Print JSON");
    sub->add_option("--trace", options.trace, "Write the timeline as a Chrome trace to this file");
    sub->add_option("--svg", options.svg, "Draw the timeline into this file");
    sub->add_option("--columns", options.columns, "Width of the timeline as text")
        ->check(CLI::Range(10, 100000))
        ->capture_default_str();
  }
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& help) {
    return app.exit(help);
  } catch (const CLI::ParseError& wrong) {
    std::cerr << "error: " << wrong.what() << "; see `lorad-plan --help`\n";
    return 2;
  }
  for (const scenario::Subcommand& command : scenario::Subcommands()) {
    if (app.got_subcommand(std::string(command.name))) return Run(command, options);
  }
  return 2;
}
